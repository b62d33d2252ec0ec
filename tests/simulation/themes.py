"""Themes: what a seed insists on, beside what is drawn: combinations that chance brings too rarely.

Each is a set of changes to a `tests.simulation.scenario.Scenario`; ``faults.x`` names a fault.
"""

from __future__ import annotations

from typing import Any

FORGET_MS_MIN = 120_000
"""More than any clocks of functions are apart: what is edited now is never too old."""

PLAIN: dict[str, Any] = {}
CLOCKS: dict[str, Any] = {
    "client_skew_ms": 9_000,
    "function_skew_ms": 6_000,
    "functions": 4,
    "tables": ({"name": "table0", "append": True, "typed": True}, {"name": "table1"}),
    "faults.lose_answer": 0.2,
    "faults.lose_port_answer": 0.1,
    "coarse_ms": 1,
    "span_ms": 600_000,
}
"""Functions disagree on what is too far ahead."""
MEETING: dict[str, Any] = {
    "together": True,
    "clients": 4,
    "rows": 2,
    "tables": ({"name": "table0"}, {"name": "table1", "typed": True}),
    "functions": 4,
    "faults.torn_commit": 0.9,
    "faults.slow_port": 0.02,
    "switch": 0.5,
}
"""Pushes meet at the same rows while commits become visible."""
WARM: dict[str, Any] = {
    **MEETING,
    "clients": 5,
    "bursts": 8,
    "burst_edits_max": 3,
    "functions": 3,
    "client_skew_ms": 0,
    "function_skew_ms": 50,
    "backpressure_bytes_max": 268_435_456,
    "reinstalls": 0,
    "faults.throttle": 0.0,
    "faults.crash_function": 0.0,
}
"""The same, with nothing that makes functions forget what they remember."""
MOVES: dict[str, Any] = {
    "relanings": 12,
    "lane_moves": 0.3,
    "together": True,
    "function_skew_ms": 20_000,
    "poll_s": 600.0,
    "functions": 4,
    "switch": 0.5,
}
"""Tables are placed anew under functions whose clocks differ."""
FIREWALL: dict[str, Any] = {"firewall": 0.3, "bursts": 3, "burst_edits_max": 4}
"""Something before the gateway refuses whole pushes for one of their edits, and names none."""
HOTEL: dict[str, Any] = {
    "firewall": 0.1,
    "faults.portal": 0.2,
    "faults.foreign_answer": 0.2,
    "bursts": 4,
    "burst_edits_max": 4,
    "tables": ({"name": "table0", "append": True, "typed": True}, {"name": "table1"}),
}
"""Login pages and proxies answer in the gateway's place, whether or not a request arrived."""
HOTEL_ROW: dict[str, Any] = {
    **HOTEL,
    "firewall": 0.3,
    "rows": 1,
    "bursts": 12,
    "clients": 2,
    "together": False,
    "span_ms": 600_000,
    "poll_s": 20.0,
    "rulings": 0,
}
"""The same, while one row is edited again and again, some of it together with events."""
RUNS: dict[str, Any] = {"faults.slow_run": 0.5, "lease_s": 20, "flush_every_s": 20}
"""Runs of the materialiser overtake each other."""
FLUSHES: dict[str, Any] = {
    "span_ms": 3_600_000,
    "faults.flush_broken": 0.5,
    "faults.lose_port_answer": 0.1,
    "flush_every_s": 20,
    "bursts": 8,
}
"""Flushes fail midway and are repeated, while much is edited."""
TABLE_FLUSHES: dict[str, Any] = {**FLUSHES, "table_flushes": 0.6, "formats": 3}
"""Single tables are flushed between, and objects of batches change their form."""
CHECKPOINTS: dict[str, Any] = {
    "retain_every_s": 60,
    "trim_every_s": 0,
    "keep_ms": 60_000,
    "flush_every_s": 20,
    "span_ms": 600_000,
    "bursts": 8,
    "reinstalls": 5,
    "tables": ({"name": "table0", "typed": True}, {"name": "table1"}),
    "faults.flush_broken": 0.0,
    "client_skew_ms": 500,
    "function_skew_ms": 50,
}
"""Clients begin with checkpoints, and the log goes behind them."""
TRIMMED: dict[str, Any] = {
    **MEETING,
    "together": False,
    "trim_every_s": 20,
    "retain_every_s": 0,
    "keep_ms": 60_000,
    "flush_every_s": 20,
    "span_ms": 600_000,
    "bursts": 8,
    "reinstalls": 5,
    "faults.flush_broken": 0.0,
}
"""Clients begin with the rows, behind a log that is trimmed, while commits become visible."""
FORGETS: dict[str, Any] = {
    "retain_every_s": 60,
    "trim_every_s": 0,
    "keep_ms": 60_000,
    "forget_ms": FORGET_MS_MIN,
    "flush_every_s": 20,
    "span_ms": 600_000,
    "bursts": 10,
    "rows": 2,
    "poll_s": 600.0,
    "offline": True,
    "tables": ({"name": "table0", "typed": True}, {"name": "table1"}),
    "function_skew_ms": 50,
    "faults.flush_broken": 0.0,
    "faults.throttle": 0.0,
    "faults.lose_port_answer": 0.0,
    "faults.late_write": 0.0,
    "faults.crash_function": 0.0,
}
"""Deletions are forgotten while clients are away."""
RULES: dict[str, Any] = {
    "rulings": 5,
    "reclaims": 5,
    "bursts": 8,
    "rows": 3,
    "tables": ({"name": "table0", "typed": True}, {"name": "table1"}),
}
"""Rules and claims change often."""
FORGOTTEN: dict[str, Any] = {
    **FORGETS,
    "trim_every_s": 20,
    "rulings": 2,
    "reclaims": 2,
    "clients": 4,
    "bursts": 20,
    "burst_edits_max": 2,
    "rows": 8,
    "span_ms": 3_600_000,
    "poll_s": 20.0,
    "offline": False,
    "tables": ({"name": "table0", "typed": True},),
}
"""Deletions are forgotten of rows that not everyone sees; there are a dozen of them in each."""
EAGER: dict[str, Any] = {
    **FORGOTTEN,
    "eager": True,
    "rulings": 1,
    "reclaims": 0,
    "reinstalls": 5,
    "bursts": 10,
}
"""The same, of rows that their author wrote before it had read anything."""
PARTED: dict[str, Any] = {
    **FORGOTTEN,
    "page_deltas": 1,
    "together": True,
    "rulings": 1,
    "reclaims": 0,
    "reinstalls": 0,
    "relanings": 0,
    "widenings": 0,
    "rows": 6,
    "burst_edits_max": 4,
    # Between two bursts of all clients a deletion is made and forgotten.
    "span_ms": 7_200_000,
    "forget_ms": 20_000,
    "poll_s": 50.0,
    "flush_every_s": 60,
    "client_skew_ms": 500,
    "row_state_bytes_max": 380_000,
    "commit_items_max": 100,
    "switch": 0.2,
    "functions": 4,
    "faults.slow_run": 0.0,
    "faults.crash_client": 0.0,
    "faults.crash_statement": 0.0,
    "faults.partitions": 0.0,
}
"""The same, of rows that several write at once, in pages of one commit."""
RESTORED: dict[str, Any] = {
    **CLOCKS,
    "bursts": 20,
    "clients": 3,
    "burst_edits_max": 6,
    "page_deltas": 10,
    "rulings": 4,
    "restores": 1,
    "reinstalls": 0,
    "offline": True,
    "poll_s": 20.0,
    "together": True,
    "faults.lose_request": 0.0,
    "faults.crash_statement": 0.0,
}
"""The buffer is restored under clients that do not see all that they wrote."""
SKEWED: dict[str, Any] = {
    "client_skew_ms": 4_000,
    "function_skew_ms": 20_000,
    "functions": 4,
    "rows": 1,
    "bursts": 8,
    "burst_edits_max": 2,
    "span_ms": 60_000,
    "poll_s": 20.0,
    "together": False,
    "offline": False,
    "tables": ({"name": "table0"},),
}
"""One row, edited again and again under clocks that differ."""
RESTARTS: dict[str, Any] = {**SKEWED, "faults.crash_client": 0.2, "coarse_ms": 30_000}
"""The same, in apps that die while their clocks stand still."""
RETURNING: dict[str, Any] = {
    "restores": 1,
    "page_deltas": 1,
    "poll_s": 20.0,
    "bursts": 20,
    "burst_edits_max": 2,
    "clients": 3,
    "relanings": 2,
    "reinstalls": 0,
    "rulings": 0,
    "reclaims": 0,
    "widenings": 0,
    "rogue": 0,
    "offline": False,
    "together": False,
    "rows": 4,
    "span_ms": 1_800_000,
    "flush_every_s": 20,
    "trim_every_s": 20,
    "retain_every_s": 0,
    "keep_ms": 60_000,
    "tables": ({"name": "table0"}, {"name": "table1", "append": True, "typed": True}),
    "faults.flush_broken": 0.0,
    "faults.partitions": 0.0,
    "faults.throttle": 0.0,
    "faults.lose_answer": 0.3,
}
"""Events are lost with a buffer that trims its log, and are offered to it once more."""
LATE: dict[str, Any] = {
    **CLOCKS,
    "bursts": 10,
    "clients": 4,
    "burst_edits_max": 3,
    "faults.late_write": 0.1,
    "together": True,
    "relanings": 4,
    "poll_s": 600.0,
}
"""Pushes happen after their answers."""
REFUSED_LATE: dict[str, Any] = {
    **MOVES,
    "bursts": 8,
    "clients": 2,
    "burst_edits_max": 2,
    "client_skew_ms": 4_000,
    "span_ms": 3_600_000,
    "faults.late_write": 0.1,
    "faults.crash_function": 0.03,
    "faults.lose_answer": 0.0,
    "faults.throttle": 0.0,
    "faults.partitions": 0.0,
    "offline": False,
    "tables": (
        {"name": "table0"},
        {"name": "table1", "append": True, "typed": True, "shard": "s1"},
    ),
}
"""The same, and when they are sent again, another function's clock refuses them."""
HOSTILE: dict[str, Any] = {
    "hostile": True,
    "rulings": 3,
    "reclaims": 2,
    "widenings": 1,
    "bursts": 8,
    "rows": 4,
    "tables": ({"name": "table0", "typed": True}, {"name": "table1"}),
}
"""Values as an enemy would choose them, under rules that compare them."""
VALUES: dict[str, Any] = {
    "by_sql": True,
    "bursts": 8,
    "burst_edits_max": 6,
    "rows": 3,
    "rulings": 0,
    "widenings": 0,
    "destinations": 0,
    "firewall": 0.0,
    "tables": ({"name": "table0"}, {"name": "table1"}),
}
"""Apps edit by SQL too, values look like others, and columns are declared anew in between."""
TRIGGERS: dict[str, Any] = {
    "triggers": True,
    "bursts": 8,
    "burst_edits_max": 6,
    "rows": 3,
    "rulings": 0,
    "widenings": 0,
    "destinations": 0,
    "firewall": 0.0,
    "tables": ({"name": "table0", "typed": True}, {"name": "table1"}),
}
"""Apps make triggers from one synced table to another, and drop them."""
DECLARATIONS: dict[str, Any] = {
    **RULES,
    "made_up": 8,
    "bursts": 6,
    "burst_edits_max": 4,
    "rulings": 3,
    "reclaims": 1,
    "reinstalls": 0,
    "restores": 0,
    "deleted": False,
    "destinations": 0,
    "span_ms": 600_000,
    "poll_s": 60.0,
    "tables": ({"name": "table0", "typed": True},),
}
"""Apps write to many tables and spellings, which rules and schemas come to name."""
FUNCTIONS: dict[str, Any] = {
    "tables": (
        {"name": "json_each", "typed": True},
        {"name": "Pragma_Table_Info"},
        {"name": "select", "append": True, "typed": True},
    ),
    "bursts": 4,
    "clients": 3,
}
"""Tables are named like SQLite's functions and words."""
LIMITS: dict[str, Any] = {
    "commit_items_max": 8,
    "commit_bytes_max": 900,
    "row_state_bytes_max": 600,
    "page_bytes_max": 500,
    "delta_bytes_max": 160,
    "range_bytes_max": 500,
    "range_tables_max": 1,
    "bursts": 8,
    "burst_edits_max": 6,
    "span_ms": 600_000,
}
"""Limits so small that ordinary rows, commits, pages and ranges meet them."""
LIMITS_AND_CLOCKS: dict[str, Any] = {
    **LIMITS,
    "client_skew_ms": 86_400_000,
    "faults.clock_steps": 0.2,
}
"""The same, and edits over them are stamped again, as the device's clock was far ahead."""
LANES: dict[str, Any] = {
    "lane_moves": 0.5,
    "relanings": 4,
    "functions": 4,
    "function_skew_ms": 4_000,
    "switch": 0.5,
    "bursts": 12,
    "rows": 4,
    "together": True,
    "poll_s": 20.0,
    "flush_every_s": 20,
    "widenings": 3,
    "rulings": 2,
    "span_ms": 600_000,
    "faults.lose_port_answer": 0.1,
    "faults.late_write": 0.1,
    "faults.crash_function": 0.03,
}
"""Lanes are opened and closed all the time, by functions whose clocks differ."""
CONFLICTING: dict[str, Any] = {**LANES, "faults.conflict": 0.15}
"""The same, while others are at the items that are written."""
READERS: dict[str, Any] = {
    **LANES,
    "clients": 6,
    "sockets": True,
    "client_skew_ms": 0,
    "function_skew_ms": 50,
    "bursts": 40,
    "burst_edits_max": 2,
    "rows": 20,
    "page_deltas": 50,
    "commit_items_max": 100,
    "lane_moves": 0.9,
    "switch": 0.05,
    "span_ms": 300_000,
    "trim_every_s": 0,
    "retain_every_s": 0,
    "relanings": 0,
    "reinstalls": 0,
    "widenings": 0,
    "rulings": 0,
    "reclaims": 0,
    "restores": 0,
    "destinations": 0,
    "deleted": False,
    "faults.torn_commit": 0.0,
    "faults.late_write": 0.0,
    "faults.lose_port_answer": 0.0,
    "faults.slow_port": 0.0,
    "faults.throttle": 0.0,
    "faults.conflict": 0.0,
    "faults.crash_function": 0.0,
    "faults.partitions": 0.0,
}
"""Many are told of the same edits and pull at the same moment, by functions that forget nothing."""
RULED_READERS: dict[str, Any] = {
    **READERS,
    "rulings": 200,
    "page_deltas": 1,
    "tables": ({"name": "table0", "typed": True}, {"name": "table1"}),
}
"""The same, while rules change all the time."""
APART: dict[str, Any] = {
    **READERS,
    "functions": 2,
    "function_skew_ms": 5_000,
    "sockets": False,
    "poll_s": 1.0,
    "span_ms": 40_000,
    "flush_every_s": 10,
    "bursts": 20,
    "faults.slow_run": 0.0,
}
"""The same, by functions whose clocks are apart, and that are asked again and again."""
LAYOUT: dict[str, Any] = {
    "relanings": 12,
    "range_bytes_max": 1_500,
    "flush_every_s": 20,
    "span_ms": 600_000,
    "bursts": 10,
    "functions": 4,
    "switch": 0.5,
    "faults.slow_port": 0.02,
    "faults.lose_port_answer": 0.1,
    "faults.crash_function": 0.04,
    "faults.flush_broken": 0.5,
}
"""Tables are placed anew in the middle of a flush."""
MANY_TABLES: dict[str, Any] = {
    "tables": tuple({"name": f"table{number}"} for number in range(30)),
    "range_tables_max": 4,
    "rows": 1,
    "bursts": 10,
    "burst_edits_max": 6,
    "flush_every_s": 20,
    "span_ms": 600_000,
    "faults.crash_function": 0.04,
    "faults.flush_broken": 0.3,
}
"""More tables than one range of a flush takes."""
SOCKETS: dict[str, Any] = {
    "sockets": True,
    "token_s": 60,
    "storms": 1,
    "ghosts": True,
    "deleted": False,
    "clients": 3,
    "bursts": 8,
    "burst_edits_max": 2,
    "span_ms": 600_000,
    "poll_s": 600.0,
    "function_skew_ms": 50,
    "faults.lose_frame": 0.2,
    "faults.late_frame": 0.2,
    "faults.double_frame": 0.1,
    "faults.broken_socket": 0.02,
    "faults.short_of_time": 0.2,
}
"""Clients keep WebSockets with short tokens, whose frames are lost and late."""
DELETED: dict[str, Any] = {
    "deleted": True,
    "restores": 0,
    "rulings": 0,
    "reclaims": 0,
    "bursts": 10,
    "functions": 4,
    "switch": 0.5,
    "lane_moves": 0.3,
    "flush_every_s": 20,
    "span_ms": 600_000,
    "poll_s": 60.0,
}
"""The gateway is deleted while clients push and pull, and flushes and retention go on."""
DELETED_AND_RESTORED: dict[str, Any] = {**DELETED, "restores": 1}
"""The same, and the buffer is restored to an earlier moment, before, during or after it."""
SET_UP_ANEW: dict[str, Any] = {
    "anew": True,
    "bursts": 10,
    "clients": 3,
    "burst_edits_max": 3,
    "offline": True,
    "span_ms": 600_000,
    "poll_s": 20.0,
    # Nothing of the old gateway is in the lake, or on its way to it.
    "flush_every_s": 600,
    "flush_threshold_bytes": 8_388_608,
    "trim_every_s": 0,
    "retain_every_s": 0,
    "restores": 0,
    "relanings": 0,
    "reinstalls": 0,
    "rogue": 0,
    "rulings": 0,
    "reclaims": 0,
    "widenings": 0,
    "destinations": 0,
    "deleted": False,
    "sockets": False,
    "firewall": 0.0,
    "backpressure_bytes_max": 268_435_456,
    "faults.torn_commit": 0.0,
    # A copy of a push that named no gateway yet may reach either.
    "faults.duplicate_request": 0.0,
    "faults.slow_request": 0.0,
}
"""The gateway is set up anew under the same name, and clients of the old one meet it."""
DESTINATIONS: dict[str, Any] = {
    "destinations": 2,
    "destination_changes": 4,
    "destinations_away": 0.3,
    "bursts": 10,
    "burst_edits_max": 4,
    "clients": 2,
    "rows": 8,
    "flush_every_s": 20,
    "span_ms": 600_000,
    "restores": 0,
    "deleted": False,
    "together": False,
    "offline": False,
    "tables": ({"name": "table0"}, {"name": "table1", "typed": True}),
    "range_bytes_max": 16_777_216,
    "commit_items_max": 100,
    "commit_bytes_max": 1_600_000,
    "row_state_bytes_max": 380_000,
    "backpressure_bytes_max": 268_435_456,
    "retain_every_s": 0,
    "trim_every_s": 0,
    "rulings": 0,
    "firewall": 0.0,
    "relanings": 0,
    "client_skew_ms": 500,
    "function_skew_ms": 50,
    "faults.partitions": 0.0,
    "faults.flush_broken": 0.1,
    "faults.throttle": 0.02,
    "faults.crash_function": 0.01,
    "faults.late_write": 0.01,
    "faults.lose_port_answer": 0.02,
}
"""Databases beside the lake are declared, filled, away and removed while rows are edited."""
FOLLOWED: dict[str, Any] = {
    **DESTINATIONS,
    "destination_changes": 0,
    "destinations_away": 0.5,
    "tables": tuple({"name": f"table{number}"} for number in range(4)),
}
"""They are declared, and away, and nobody has them filled anew."""
SCATTERED: dict[str, Any] = {
    **FOLLOWED,
    "destinations_away": 0.0,
    "bursts": 3,
    "span_ms": 3_600_000,
    "flush_every_s": 60,
    "tables": tuple({"name": f"table{number}"} for number in range(20)),
    "faults.flush_broken": 0.0,
    "faults.slow_port": 0.0,
    "faults.late_write": 0.0,
    "faults.lose_port_answer": 0.0,
    "faults.throttle": 0.05,
    "faults.crash_function": 0.02,
}
"""The same, of tables that are seldom written to: nothing comes later that would show a gap."""
ANEW: dict[str, Any] = {
    **DESTINATIONS,
    "destination_changes": 8,
    "destinations_away": 0.0,
    "span_ms": 3_600_000,
    "flush_every_s": 60,
    "faults.flush_broken": 0.5,
    "faults.throttle": 0.1,
}
"""They are removed and declared otherwise, while the lake is away."""
FINAL: dict[str, Any] = {
    "tables": (
        {"name": "table0_final", "typed": True},
        {"name": "table1_final", "typed": True, "shard": "s1"},
    ),
    "rulings": 3,
    "reclaims": 2,
    "clients": 3,
    "rows": 2,
    "bursts": 8,
    "burst_edits_max": 3,
    "span_ms": 600_000,
    "poll_s": 60.0,
    "client_skew_ms": 4_000,
    "destinations": 1,
    "destination_changes": 1,
}
"""In tables in which deletes win, rows are deleted while others edit them."""
FINAL_UNRULED: dict[str, Any] = {**FINAL, "rulings": 0, "reclaims": 0, "retain_every_s": 60}
"""The same, of a gateway without sync rules, whose clients are sent every delta."""
OMITTED: dict[str, Any] = {
    **RULES,
    "omissions": True,
    "clients": 3,
    "retain_every_s": 60,
    "span_ms": 600_000,
    "poll_s": 60.0,
}
"""Rules leave columns out, for claims that change as they do."""
OMITTED_EVENTS: dict[str, Any] = {
    **OMITTED,
    "tables": (
        {"name": "table0", "append": True, "typed": True},
        {"name": "table1_final", "typed": True, "shard": "s1"},
    ),
    "retain_every_s": 0,
    "rulings": 3,
}
"""The same, of events, and of rows whose deletes win."""
UNKNOWING: dict[str, Any] = {
    "clients": 4,
    "rows": 20,
    "bursts": 10,
    "burst_edits_max": 3,
    "together": True,
    "offline": True,
    "tables": ({"name": "table0", "typed": True},),
    "span_ms": 600_000,
    "poll_s": 60.0,
    "client_skew_ms": 500,
    "restores": 0,
    "rulings": 0,
    "reinstalls": 0,
}
"""Clients write the same values without knowing of each other."""
UNKNOWING_RULED: dict[str, Any] = {**UNKNOWING, "rulings": 1, "shared": True, "reclaims": 0}
"""The same, with rules that hide none of these rows."""
FLOWS: dict[str, Any] = {
    "flows": 3,
    "flow_changes": 3,
    "flows_away": 0.1,
    "flow_large_rows": 5,
    "clients": 1,
    "bursts": 1,
    "burst_edits_max": 1,
    "rows": 12,
    "poll_s": 600.0,
    "flush_every_s": 300,
    "span_ms": 1_800_000,
    "functions": 1,
    "function_skew_ms": 500,
    "switch": 0.2,
    "destinations": 0,
    "deleted": False,
    "sockets": False,
    "restores": 0,
    "retain_every_s": 0,
    "trim_every_s": 0,
    "rulings": 0,
    "firewall": 0.0,
    "tables": ({"name": "table0"},),
    "faults.crash_function": 0.01,
    "faults.slow_port": 0.01,
    "faults.lose_answer": 0.05,
    "faults.lose_port_answer": 0.01,
    "faults.late_write": 0.0,
    "faults.throttle": 0.01,
    "faults.flush_broken": 0.1,
    "faults.partitions": 0.0,
}
"""Rows move by polled flows between what changes, is away and refuses, while processes die."""
LARGE_FLOWS: dict[str, Any] = {
    **FLOWS,
    "flows": 2,
    "flow_changes": 0,
    "flow_writes": 10,
    "rows": 40,
    "faults.crash_function": 0.02,
}
"""There is much ahead of them, so that jobs are asked for, and die."""
REFUSED_FLOWS: dict[str, Any] = {
    **LARGE_FLOWS,
    "flow_large_rows": 0,
    "flow_writes": 6,
    "flow_fillings": 4,
    "flow_refused": 0.4,
    "faults.crash_function": 0.05,
}
"""Many rows are refused, and leave their source without a trace."""
SLOW_FLOWS: dict[str, Any] = {
    **FLOWS,
    "flow_changes": 12,
    "flows_away": 0.0,
    "switch": 0.5,
    "faults.slow_port": 0.1,
}
"""Polls take longer than their intervals."""
THEMES = [PLAIN, PLAIN, PLAIN, PLAIN, PLAIN, CLOCKS, MEETING, WARM, MOVES, RUNS]
"""What a seed insists on, beside what is drawn: combinations that chance brings too rarely."""
