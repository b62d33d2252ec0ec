"""What one seed stands for: who takes part, what they do, what goes wrong. Plain data.

Every fault is left out of about half of the seeds: a fault that is always there hides others. To
make a failing seed smaller, its scenario is changed (`tests.simulation.shrink`); everything that is
drawn while it runs comes from streams of its own, so that the rest stays as it was.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, replace
from random import Random
from typing import TYPE_CHECKING, Any

from lakesync.core.messages import PAGE_BYTES_MAX
from tests.simulation.themes import (
    DECLARATIONS,
    DELETED,
    DELETED_AND_RESTORED,
    FINAL,
    FINAL_UNRULED,
    FLOWS,
    FLUSHES,
    FORGET_MS_MIN,
    FORGOTTEN,
    FUNCTIONS,
    HOSTILE,
    HOTEL,
    LANES,
    LARGE_FLOWS,
    LAYOUT,
    LIMITS,
    MANY_TABLES,
    OMITTED,
    OMITTED_EVENTS,
    PLAIN,
    READERS,
    RETURNING,
    SET_UP_ANEW,
    SLOW_FLOWS,
    TABLE_FLUSHES,
    THEMES,
    TRIGGERS,
    UNKNOWING,
    UNKNOWING_RULED,
    VALUES,
)

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Faults:
    """Chances, each for one occasion: a request, a port call, a statement; 0 is never."""

    lose_request: float = 0.0
    lose_answer: float = 0.0
    duplicate_request: float = 0.0
    """A request arrives twice, the second time whenever."""
    slow_request: float = 0.0
    """A request takes longer than its client waits."""
    throttle: float = 0.0
    """A port refuses for now."""
    conflict: float = 0.0
    """An item that a port writes to is just being written to by somebody else."""
    lose_port_answer: float = 0.0
    """A port did it, and its caller is told that it could not be reached."""
    late_write: float = 0.0
    """A port's caller is told so at once, and the write happens later."""
    slow_port: float = 0.0
    """A port call takes seconds."""
    slow_run: float = 0.0
    """A run of the materialiser stands still for minutes, for each batch."""
    torn_commit: float = 0.0
    """While a commit happens, some of its items are visible before others."""
    crash_function: float = 0.0
    crash_client: float = 0.0
    """At a request of the client."""
    crash_statement: float = 0.0
    """At one of the client's SQL statements."""
    duplicate_message: float = 0.0
    partitions: float = 0.0
    """How often, for each client and tenth of the time, the network is away."""
    clock_steps: float = 0.0
    """How often, for each clock and tenth of the time, somebody sets it."""
    lose_frame: float = 0.0
    """A frame to a client is lost, and whoever sent it is told that it was sent."""
    late_frame: float = 0.0
    """A frame comes whenever, and behind later ones."""
    double_frame: float = 0.0
    slow_reader: float = 0.0
    short_of_time: float = 0.0
    """A process that notifies has no time for all connections."""
    """A connection has no room for a frame."""
    broken_socket: float = 0.0
    """A connection ends under a frame, in either direction."""
    foreign_answer: float = 0.0
    """A request arrives, and somebody on the way answers in the gateway's place."""
    portal: float = 0.0
    """Somebody on the way answers a request, which does not arrive."""
    flush_broken: float = 0.0
    """The share of tenths of the time in which every write to the lake fails."""


@dataclass(frozen=True)
class Table:
    """One table, as it is declared at first."""

    name: str
    append: bool = False
    typed: bool = False
    """It has a schema; append tables always do."""
    shard: str = "main"


@dataclass(frozen=True)
class Scenario:
    seed: int
    clients: int = 3
    bursts: int = 6
    """Of edits, for each client."""
    burst_edits_max: int = 4
    span_ms: int = 600_000
    """How long clients edit and faults happen; then all is calm."""
    tables: tuple[Table, ...] = (Table("notes"),)
    rows: int = 6
    """Row ids of each merged table, shared by all clients."""
    faults: Faults = field(default_factory=Faults)
    switch: float = 0.3
    """How often a port call lets others run."""
    page_deltas: int = 50
    poll_s: float = 60.0
    client_skew_ms: int = 0
    function_skew_ms: int = 0
    functions: int = 2
    """Functions that take pushes at the same time."""
    commit_items_max: int = 100
    row_state_bytes_max: int = 380_000
    commit_bytes_max: int = 1_600_000
    """Of one commit's log entries."""
    delta_bytes_max: int = 262_144
    range_bytes_max: int = 16_777_216
    range_tables_max: int = 200
    backpressure_bytes_max: int = 268_435_456
    flush_threshold_bytes: int = 8_388_608
    page_bytes_max: int = PAGE_BYTES_MAX
    flush_every_s: int = 60
    lease_s: int = 120
    relanings: int = 0
    """How often a table is put into another shard."""
    shards_besides: int = 0
    """Shards of tables that nobody writes to: they leave heads little room for entries, or none."""
    lane_moves: float = 0.0
    """How often a function moves to another lane before a push, as if it had lost a race."""
    reinstalls: int = 0
    rogue: int = 0
    """Pushes of a client that keeps to no rules."""
    together: bool = False
    """Clients edit at the same moments, so that their pushes meet."""
    coarse_ms: int = 1
    """Clients' clocks tell no more than this, so that their stamps are often equal."""
    trim_every_s: int = 0
    """How often the log is trimmed; 0 is never."""
    retain_every_s: int = 0
    """How often retention runs: a checkpoint is built, the log is trimmed behind it, and old ones
    are cleaned up; 0 is never, and pulls know of no checkpoints."""
    keep_ms: int = 60_000
    """How old what is trimmed is at the least."""
    forget_ms: int = 0
    """How old deletions are that retention forgets; 0 if it forgets none."""
    restores: int = 0
    """How often the buffer is restored to an earlier moment."""
    anew: bool = False
    """The gateway is set up anew under the same name, in the middle, before anything is flushed."""
    rulings: int = 0
    """How often sync rules are saved; 0 means that there are none."""
    shared: bool = False
    """The rules show everybody the rows that have a size, and no others."""
    omissions: bool = False
    """The rules leave columns out."""
    reclaims: int = 0
    """How often a client's token gets other claims."""
    widenings: int = 0
    """How often a table gets another column."""
    firewall: float = 0.0
    """The share of edits that something before the gateway refuses for good, with the whole push
    that they come in."""
    offline: bool = False
    """Clients may begin with a long time without a network."""
    hostile: bool = False
    """Values are as an enemy would choose them, and rules compare with such."""
    by_sql: bool = False
    """Apps edit by SQL too, values look like others, and columns are declared anew."""
    triggers: bool = False
    """Apps make triggers from one table to another, and drop them."""
    made_up: int = 0
    """Tables that apps make up, in several spellings, and schemas come to name."""
    table_flushes: float = 0.0
    """The share of flushes that are of one table."""
    formats: int = 0
    """How often the administrator has objects of batches written in another form."""
    deleted: bool = False
    """The gateway is deleted in the middle."""
    sockets: bool = False
    """Clients keep WebSockets."""
    token_s: int = 0
    """How long their tokens are good for; 0 is for ever."""
    storms: int = 0
    """How often all WebSockets end at once."""
    ghosts: bool = False
    """Somebody listens who is revoked and restored."""
    destinations: int = 0
    """Databases that may be declared beside the lake."""
    destination_changes: int = 0
    """How often one is paused, resumed, filled, replayed, or removed and declared anew."""
    destinations_away: float = 0.0
    """How often, for each database and tenth of the time, it is away."""
    flows: int = 0
    """Polled flows beside the gateway: the second follows the first, the third is of events."""
    flow_writes: int = 30
    """How often their source is written to."""
    flow_forgets: int = 2
    """How often that forgets its history, at the most."""
    flow_changes: int = 0
    """How often one is paused, resumed, run, or has all brought again."""
    flows_away: float = 0.0
    """How often, for each of their databases and tenth of the time, it is away."""
    flow_fillings: int = 0
    """How often a source is filled anew, beside what is drawn."""
    flow_refused: float = 0.08
    """Which share of a source's rows has no number, and is refused."""
    flow_large_rows: int = 0
    """From how many rows ahead on a table is read by a job; 0 for never."""
    javascript: bool = False
    """Every second client is the JavaScript one."""
    eager: bool = False
    """Users edit as soon as the app is installed, before it has synced."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


ALONE = frozenset({"flush_every_s", "rulings", "restores"})
"""What no gateway may have that is set up anew, but as its own theme says."""
SPANS_MS = [60_000, 600_000, 3_600_000, 86_400_000, 7 * 86_400_000]
LARGE_SPAN_MS_MAX = 3_600_000
DESTINATIONS_SHARE = 0.25
"""Of the seeds, those whose gateway may have destinations."""

SOCKETS = 0.2
"""The share of seeds in which clients keep WebSockets."""
SOCKETS_SPAN_MS_MAX = 3_600_000
"""Whoever is connected asks every four minutes, which is most of what happens in a week."""

RARE_THEMES = {
    "hotel": (HOTEL, 0.05),
    "flushes": (FLUSHES, 0.1),
    "flushes of tables": (TABLE_FLUSHES, 0.05),
    "forgetting": (FORGOTTEN, 0.05),
    "events": (RETURNING, 0.05),
    "hostile values": (HOSTILE, 0.08),
    "limits": (LIMITS, 0.08),
    "names of functions": (FUNCTIONS, 0.04),
    "layout": (LAYOUT, 0.08),
    "lanes": (LANES, 0.15),
    "many tables": (MANY_TABLES, 0.04),
    "deletion": (DELETED, 0.06),
    "deletion and restore": (DELETED_AND_RESTORED, 0.04),
    "a new gateway": (SET_UP_ANEW, 0.04),
    "readers": (READERS, 0.04),
    "final deletes": (FINAL, 0.04),
    "final deletes without rules": (FINAL_UNRULED, 0.04),
    "omitted columns": (OMITTED, 0.06),
    "omitted columns of events": (OMITTED_EVENTS, 0.04),
    "unknowing writers": (UNKNOWING, 0.04),
    "unknowing writers under rules": (UNKNOWING_RULED, 0.04),
    "flows": (FLOWS, 0.06),
    "large flows": (LARGE_FLOWS, 0.03),
    "slow flows": (SLOW_FLOWS, 0.03),
    "values by SQL": (VALUES, 0.05),
    "made up tables": (DECLARATIONS, 0.05),
    "triggers": (TRIGGERS, 0.04),
}
"""Themes of seeds that have no other, each with its share of those."""

CONFLICTS = 0.25
"""The share of seeds in which writes meet at items that nobody is seen to write."""
CONFLICTS_MAX = 0.15
MANY_SHARDS = 0.2
"""The share of seeds in which heads have less room for entries."""

POLL_S_MAX = 10_000.0
"""Less than all may take to become quiet."""


def scenario_of(seed: int) -> Scenario:
    random = Random(f"{seed}/scenario")
    tables = _tables(random)
    # Most seeds are small, so that there can be many; one in 32 is large.
    large = random.random() < 1 / 32
    theme = random.choice(THEMES)
    span_ms = random.choices(SPANS_MS, [20, 50, 20, 3, 1])[0]
    if large:  # many clients that wait for days do nothing else but ask again
        span_ms = min(span_ms, LARGE_SPAN_MS_MAX)
    drawn = Scenario(
        seed=seed,
        clients=random.randint(4, 8) if large else random.choice([2, 2, 2, 2, 3, 3]),
        bursts=random.randint(10, 30) if large else random.choice([1, 1, 2, 2, 2, 3]),
        burst_edits_max=random.choice([1, 2, 2, 4]),
        span_ms=span_ms,
        tables=tables,
        rows=random.choice([1, 2, 3, 8, 20]),
        faults=replace(_faults(random), conflict=_conflicts(seed)),
        switch=random.choice([0.05, 0.2, 0.5]),
        page_deltas=random.choice([1, 3, 10, 50, 1000]),
        poll_s=max(random.choice([20.0, 60.0, 600.0]), min(span_ms / 6_000, POLL_S_MAX)),
        client_skew_ms=random.choice([0, 500, 4_000, 30_000, 86_400_000]),
        function_skew_ms=random.choice([0, 50, 50, 2_000, 4_000, 20_000]),
        functions=random.choice([1, 2, 3, 4]),
        commit_items_max=random.choice([100, 100, 14, 8]),
        row_state_bytes_max=random.choice([380_000, 380_000, 600]),
        backpressure_bytes_max=random.choice([268_435_456, 268_435_456, 6_000]),
        flush_threshold_bytes=random.choice([8_388_608, 500, 3_000]),
        flush_every_s=max(random.choice([20, 60, 300]), span_ms // 8_000),
        lease_s=random.choice([20, 120]),
        relanings=random.choice([0, 0, 1, 2, 4]),
        lane_moves=random.choice([0.0, 0.0, 0.1, 0.5]),
        reinstalls=random.choice([0, 0, 0, 1, 2]),
        rogue=random.choice([0, 0, 1, 4]),
        offline=random.random() < 0.3,
        together=random.random() < 0.5,
        coarse_ms=random.choice([1, 1, 1, 30_000]),
        page_bytes_max=random.choice([PAGE_BYTES_MAX, PAGE_BYTES_MAX, 400]),
    )
    for name, (rare, share) in RARE_THEMES.items():
        if theme is PLAIN and Random(f"{seed}/theme of {name}").random() < share:
            theme = rare
    scenario = changed(
        replace(
            drawn, **_upkeep(seed, span_ms), **_rules(seed), firewall=_firewall(seed),
            **_destinations(seed), shards_besides=_shards_besides(seed),
        ),
        theme,
    )  # fmt: skip
    if scenario.deleted:
        scenario = replace(scenario, destinations=0)
    elif scenario.span_ms <= SOCKETS_SPAN_MS_MAX:
        scenario = changed(scenario, _sockets(seed))
    # However long it takes, the schedule alone is not to be most of what happens.
    return replace(
        scenario, flush_every_s=max(scenario.flush_every_s, scenario.span_ms // 2_000_000)
    )


def _upkeep(seed: int, span_ms: int) -> dict[str, Any]:
    random = Random(f"{seed}/scenario of upkeep")
    trimmed = random.random() < 0.5
    settings = {
        "trim_every_s": max(random.choice([20, 60, 120]), span_ms // 8_000) if trimmed else 0,
        "keep_ms": random.choice([60_000, 60_000, 120_000, 600_000]),
        "restores": random.choice([0, 0, 0, 1]),
        "retain_every_s": random.choice([0, 0, max(60, span_ms // 8_000)]),
    }
    forgotten_ms = random.choice([0, FORGET_MS_MIN, 600_000])
    return {**settings, "forget_ms": forgotten_ms if settings["retain_every_s"] else 0}


def _rules(seed: int) -> dict[str, Any]:
    random = Random(f"{seed}/scenario of rules")
    ruled = random.random() < 0.35
    return {
        "rulings": random.choice([1, 2, 4]) if ruled else 0,
        "reclaims": random.choice([0, 2, 5]) if ruled else 0,
        "widenings": random.choice([0, 0, 1, 3]),
    }


def _sockets(seed: int) -> dict[str, Any]:
    random = Random(f"{seed}/scenario of sockets")
    if random.random() >= SOCKETS:
        return {}
    drawn: dict[str, Any] = {
        "sockets": True,
        "token_s": random.choice([0, 0, 60, 600]),
        "storms": random.choice([0, 0, 1, 3]),
        "ghosts": random.random() < 0.3,
        "poll_s": random.choice([20.0, 600.0]),
    }
    for name, most in SOCKET_RATES.items():
        rate = random.random()
        drawn[f"faults.{name}"] = round(most * rate, 4) if random.random() < 0.5 else 0.0
    return drawn


def _destinations(seed: int) -> dict[str, Any]:
    random = Random(f"{seed}/scenario of destinations")
    return {
        "destinations": random.choice([1, 2]) if random.random() < DESTINATIONS_SHARE else 0,
        "destination_changes": random.choice([0, 0, 1, 3, 6]),
        "destinations_away": random.choice([0.0, 0.0, 0.3]),
    }


def _firewall(seed: int) -> float:
    random = Random(f"{seed}/scenario of a firewall")
    return random.choice([0.05, 0.3]) if random.random() < 0.1 else 0.0


def _shards_besides(seed: int) -> int:
    random = Random(f"{seed}/scenario of shards")
    return random.choice([4, 8, 24]) if random.random() < MANY_SHARDS else 0


def _tables(random: Random) -> tuple[Table, ...]:
    actions = []
    for place in range(random.choice([1, 2, 2, 3, 4])):
        append = random.random() < 0.3
        actions.append(
            Table(
                f"table{place}",
                append=append,
                typed=append or random.random() < 0.5,
                shard=random.choice(["main", "main", "hot", f"s{place}"]),
            )
        )
    return tuple(actions)


RATES = {
    "lose_request": 0.15,
    "lose_answer": 0.2,
    "duplicate_request": 0.2,
    "slow_request": 0.15,
    "throttle": 0.1,
    "lose_port_answer": 0.1,
    "late_write": 0.1,
    "slow_port": 0.03,
    "slow_run": 0.5,
    "torn_commit": 1.0,
    "crash_function": 0.04,
    "crash_client": 0.1,
    "crash_statement": 0.01,
    "duplicate_message": 0.3,
    "partitions": 0.3,
    "clock_steps": 0.3,
    "flush_broken": 0.5,
}
"""The greatest chance of each fault."""
SOCKET_RATES = {
    "lose_frame": 0.3,
    "late_frame": 0.4,
    "double_frame": 0.3,
    "slow_reader": 0.2,
    "short_of_time": 0.3,
    "broken_socket": 0.15,
}
"""The same, of what happens to frames."""


def _faults(random: Random) -> Faults:
    quiet = random.random() < 0.1
    rates = {}
    for name, most in RATES.items():
        drawn, rate = random.random(), random.random()
        if not quiet and drawn < 0.45:
            rates[name] = round(most * rate, 4)
    return Faults(**rates)


def _conflicts(seed: int) -> float:
    random = Random(f"{seed}/scenario of conflicts")
    return round(CONFLICTS_MAX * random.random(), 4) if random.random() < CONFLICTS else 0.0


def changed(scenario: Scenario, changes: Mapping[str, Any]) -> Scenario:
    """Return a scenario with some of its fields changed; ``faults.x`` names a fault."""
    faults = {name[7:]: value for name, value in changes.items() if name.startswith("faults.")}
    own = {name: value for name, value in changes.items() if not name.startswith("faults.")}
    if own.keys() & ALONE:
        own = {"anew": False, **own}
    if "tables" in own:
        own["tables"] = tuple(Table(**item) for item in own["tables"])
    return replace(scenario, faults=replace(scenario.faults, **faults), **own)


def fault_names() -> list[str]:
    return [item.name for item in fields(Faults)]


def scenario_from_json(body: Mapping[str, Any]) -> Scenario:
    """Read what `Scenario.to_json` gave."""
    tables = tuple(Table(**item) for item in body["tables"])
    return Scenario(**{**body, "tables": tables, "faults": Faults(**body["faults"])})
