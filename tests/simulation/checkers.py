"""What must hold while the flush goes on, when all is quiet, and at the end.

Verified here: the order of a flush's steps, quiet within bounds, that all clients, the gateway and
the lake hold the same rows, that the changes tables hold each effective delta once and in order,
and that no edit was lost. Verified elsewhere: each commit, receipt and page when it happens
(`tests.simulation.history`), each client's own rows (`tests.simulation.session`), and what it may
hold of others' (`tests.simulation.sights`).

Not verified: the bytes of Parquet, Iceberg and DynamoDB (tests of those drive the real parts), and
a client whose device's clock never stops stepping.
"""

from __future__ import annotations

from collections import Counter
from operator import eq
from typing import TYPE_CHECKING, Any

from lakesync.core.config import FORMATS
from lakesync.core.deliveries import CLAIMS, STAGING, claims_of_message
from lakesync.core.delta import Op, parse
from lakesync.errors import OutOfOrder
from lakesync.result import Ok
from lakesync.wire.records import decode_row_state
from tests.simulation.history import MADE_AGAIN_WITHIN, Violation
from tests.simulation.javascript import NodeClient, NodeDevice, is_shown
from tests.simulation.lake import PREFIX, LakeRow
from tests.simulation.losses import check_losses
from tests.simulation.model import (
    NOTHING,
    Key,
    Row,
    at_least,
    deletes_win,
    edit_of,
    row_of,
    seen,
    stored_row,
)
from tests.simulation.session import states
from tests.simulation.sights import check_sight, has_read_everything, is_in_lake_only
from tests.simulation.stored import stored_of
from tests.simulation.values import KINDS, check_values

if TYPE_CHECKING:
    from lakesync.core.delta import Delta
    from lakesync.ports import FlushState
    from tests.simulation.clients import Device
    from tests.simulation.history import History
    from tests.simulation.world import World

REQUESTS_MAX = 400
"""Requests of one client from the last fault until all is quiet, beside its polls."""


class Watch:
    """Watches the flush: nothing is said before it is true."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._announced: dict[str, dict[int, int]] = {}
        """Of each table: where the ranges that were announced begin, and end."""

    def sent(self, queue: str, body: str) -> None:
        """Hold an announcement against the lake: all it names is there, and was in no other."""
        if queue != "announcements":
            return
        keys = claims_of_message(body)
        if not keys:
            raise Violation("an announcement names claims", body)
        for key in keys:
            self._check_claim(key)

    def _check_claim(self, claim: str) -> None:
        staged = STAGING + claim.removeprefix(CLAIMS).removesuffix("json")
        if not any(staged + form in self._world.objects for form in FORMATS):
            raise Violation("announced after written", claim)
        _, _, table, span = claim.split("/")
        after, last = map(int, span.partition(".")[0].split("-"))
        ranges = self._announced.setdefault(table, {})
        # A buffer that was restored announces again what it had announced before; a flush that a
        # deletion overtook may find no flush state any more, and begins at the first commit (E3).
        known = ranges.setdefault(after, last)
        begins_again = self._world.counts["restored"] or self._world.store.is_deleted
        if not begins_again and known != last:
            raise Violation("a range is one batch", f"{table} after {after}: {known}, now {last}")
        ranges[after] = max(known, last)

    def flushed(self, before: int, state: FlushState) -> None:
        """Hold a moved watermark against what was announced."""
        history = self._world.history
        for item in history.between(before, state.watermark):
            for table in {delta.table for delta in history.decoded(item)}:
                ranges = self._announced.get(table, {})
                if not any(after < item.stamp <= last for after, last in ranges.items()):
                    message = f"{table} at {item.stamp}, below {state.watermark}"
                    raise Violation("announced before the watermark", message)


class Quiet:
    """Tells whether nothing is left to do."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._asked = 0

    def __call__(self) -> bool:
        """Return whether nothing is left to do; looks closely only now and then."""
        self._asked += 1
        return self._asked % 16 == 0 and not self.why()

    def why(self) -> str:
        """Return what is left to do; nothing if all is quiet."""
        world = self._world
        for device in world.devices:
            calm_s = (world.scheduler.now_ms - world.calm_ms) / 1_000
            if device.link.requests > REQUESTS_MAX + calm_s / world.scenario.poll_s:
                raise Violation("liveness", f"{device.client_id} sent {device.link.requests}")
            if device.client is None:
                return f"{device.client_id} is not up"
        for device in world.devices:
            if why := _left_to(device, world):
                return f"{device.client_id} has {why}"
        last = world.history.log[-1].stamp if world.history.log else 0
        if world.store.flush_state("g1").watermark < last:
            return "the log has commits to flush"
        if any(key.startswith(PREFIX) for key in world.objects):
            return "claims wait"
        if why := world.destinations.left_to_do() or world.flows.left_to_do():
            return why
        return _under_way(world)


def _under_way(world: World) -> str:
    """Return what is not done yet, whoever does it."""
    if world.upkeep.is_down:
        return "the buffer is being restored"
    if world.store.leaves_lanes_open():
        return "lanes are open in which nothing happens"
    return "requests are on their way" if world.front.serving else ""


def _left_to(device: Device, world: World) -> str:
    """Return what a client has left to do."""
    assert device.client is not None
    outbox = stored_of(device.client).outbox()
    if any(status not in {"quarantined", "held_back"} for _, status in outbox):
        return "edits to push"
    if world.rulings.were_there and device.knows != device.decides:
        return "rules to learn"
    if not has_read_everything(device.client, world):
        return "pages to pull"
    final = [table.name for table in world.scenario.tables if deletes_win(table.name)]
    declared = (
        {schema.table for schema in world.schemas_for(device.link.claims).tables} if final else ()
    )
    knows = [name for name in final if device.client.schema(name).unwrap() is not None]
    if knows != [name for name in final if name in declared]:
        return "schemas to learn"
    return world.declarations.left_to_do(device.client)


def check_end(world: World) -> None:
    """Hold everything against everything."""
    history = world.history
    expected = {key: history.row(key) for key in history.of_row if history.of_row[key]}
    for device in world.devices:
        _check_client(device, expected, world)
    if not world.rulings.were_there:  # what is hidden cannot be offered again
        _check_restored(world, expected)
    _check_gateway(world, expected)
    _check_lake(world, expected)
    world.destinations.check_end()
    world.flows.check_end()
    # An id does not name the operation: an insert may be offered again as an update.
    everywhere = [*history.deltas.values(), *(delta for _, delta in history.lost),
                  *history.accepted.values()]  # fmt: skip
    everything = {(delta.delta_id, delta.op): delta for delta in everywhere}
    for device in world.devices:
        device.session.settled(everything.values())
    _check_events(world)
    _check_order(world)
    check_losses(world)


_FUNCTIONS = (
    "SELECT value FROM json_each('[1]')",
    "SELECT 1 FROM pragma_table_info('sqlite_master') LIMIT 1",
)
"""Queries that an app may make whatever its tables are called."""


def _check_client(device: Device, expected: dict[Key, Row], world: World) -> None:
    client = device.client
    assert client is not None
    shown = states(client)
    if world.rulings.were_there:
        check_sight(device, world)
        expected = shown
    for sql in () if isinstance(device, NodeDevice) else _FUNCTIONS:
        if client.query(sql, as_=tuple) != Ok([(1,)]):
            raise Violation("no name breaks a client", f"{device.client_id}: {client.query(sql)}")
    for key in {*shown, *expected}:
        row = expected.get(key) or row_of(())
        if is_in_lake_only(world.history, device.client_id, key, shown.get(key, row_of(()))):
            continue
        if key not in expected and _is_refused_as_late(world.history, key):
            continue
        remembered = world.history.remembered
        if remembered(key[0], shown.get(key, row_of(()))) != remembered(key[0], row):
            raise Violation(
                "clients converge", f"{device.client_id} {key}: {shown.get(key)}, {row}"
            )
        _check_seen(client, key, row)
    if device.workload.values.kinds:
        check_values(client, device.workload.values.kinds)


def _is_refused_as_late(history: History, key: Key) -> bool:
    """Return whether an event was lost, and refused as late when it was offered again.

    ``docs/spec/client.md`` names what cannot be told from an event that is held.
    """
    return history.appends(key[0]) and any(
        (delta.table, delta.row_id) == key
        and history.refused.get(delta.delta_id) == OutOfOrder.code
        and (delta.client_id in history.blind or delta.delta_id in history.parted)
        for _, delta in history.lost
    )


def _shares_its_stamp(history: History, delta: Delta) -> bool:
    """Return whether another client stamped so too: of two such, one may stay lost."""
    every = [*history.deltas.values(), *(lost for _, lost in history.lost)]
    return any(one.hlc == delta.hlc and one.client_id != delta.client_id for one in every)


def _check_restored(world: World, expected: dict[Key, Row]) -> None:
    """Hold what restores lost against what is there: clients brought back what they had written."""
    history = world.history
    owners = {device.client_id: device for device in world.devices if device.is_original}
    lost: dict[Key, list[Delta]] = {}
    for _, delta in history.lost:
        lost.setdefault((delta.table, delta.row_id), []).append(delta)
    flushed = {delta_id for table in world.lake.tables.values() for *_, delta_id in table.changes}
    for key, deltas in lost.items():
        if _is_refused_as_late(history, key):
            continue
        if history.appends(key[0]) and all(delta.delta_id in flushed for delta in deltas):
            continue  # an event that was trimmed is in the lake, and no client need hold it
        whole, actual = row_of([*history.of_row.get(key, ()), *deltas]), expected.get(key, NOTHING)
        for delta in deltas:
            owner = owners.get(delta.client_id)
            if owner is None or key in owner.session.taken_back:
                continue
            writes = {name: (delta.hlc, delta.client_id.encode(), value)
                      for name, value in delta.columns}  # fmt: skip
            won = {name for name, write in writes.items() if whole.columns.get(name) == write}
            missing = {name for name in won if actual.columns.get(name) != whole.columns[name]}
            gone = whole.deleted == delta.hlc > actual.deleted
            gone = gone and not history.may_be_forgotten(delta.table, delta.hlc)
            if missing or (gone and not _shares_its_stamp(history, delta)):
                raise Violation("restores lose no own edit", f"{key}: {delta}, {missing}, {actual}")


def _check_seen(client: Any, key: Key, row: Row) -> None:
    """Hold what the app sees against the row, by both ways of reading."""
    shown = client.get(*key).unwrap()
    if client.schema(key[0]).unwrap() is not None:  # who may see no row of a table is told none
        row = seen(key[0], row)
    due = None if row.values is None else {name: parse(raw) for name, raw in row.values.items()}
    is_same = is_shown if isinstance(client, NodeClient) else eq
    if not is_same(_undeclared(shown), _undeclared(due)):
        raise Violation("the app sees the row", f"{key}: {shown}, not {due}")
    rows = stored_of(client).listed(key)
    if rows is None:
        return
    if bool(rows) != (due is not None):
        raise Violation("the app sees the row", f"{key}: {rows}, not {due}")
    if due is not None and rows[0].get("title") != due.get("title"):
        raise Violation("the app sees the row", f"{key}: {rows}, not {due}")


def _undeclared(values: dict[str, object] | None) -> dict[str, object] | None:
    """Return the columns that apps do not declare; `check_values` holds the others."""
    return values and {name: value for name, value in values.items() if name not in KINDS}


def _check_gateway(world: World, expected: dict[Key, Row]) -> None:
    rows = world.store.all_of("g1").rows
    merged = {key: row for key, row in expected.items() if not world.history.appends(key[0])}
    for key in {*rows, *merged}:
        stored = rows.get(key)
        actual = stored_row(*decode_row_state(stored.state if stored else None))
        remembered = world.history.remembered
        if remembered(key[0], actual) != remembered(key[0], merged.get(key, row_of(()))):
            raise Violation("the gateway converges", f"{key}: {actual}, not {merged.get(key)}")


def _check_lake(world: World, expected: dict[Key, Row]) -> None:
    _check_changes(world)
    history = world.history
    for (table, row_id), row in expected.items():
        if history.appends(table):
            continue
        deltas = history.of_row[table, row_id]
        stored = world.lake.table(table).rows.get(row_id)
        if stored is None and not deltas:
            continue
        lost = [
            delta for _, delta in history.lost if (delta.table, delta.row_id) == (table, row_id)
        ]
        actual, most = _normal(stored or LakeRow()), row_of([*deltas, *lost])
        if not (at_least(actual, row) and at_least(most, actual)):
            raise Violation("the lake converges", f"{table} {row_id}: {stored}, not {row}")


def _check_changes(world: World) -> None:
    history = world.history
    due: dict[str, list[tuple[int, str]]] = {}
    for item in history.log:
        for delta in history.decoded(item):
            due.setdefault(f"{delta.table}__changes", []).append((item.stamp, delta.delta_id))
    lost: dict[str, set[tuple[int, str]]] = {}
    for stamp, delta in history.lost:
        lost.setdefault(f"{delta.table}__changes", set()).add((stamp, delta.delta_id))
    for name in {*due, *(name for name in world.lake.tables if name.endswith("__changes"))}:
        everything = [(commit, delta_id) for commit, _, delta_id in world.lake.table(name).changes]
        # What was flushed stays in the lake, though a restored buffer lost it.
        kept = [item for item in everything if item not in lost.get(name, ())]
        if Counter(kept) != Counter(due.get(name, [])) or len(set(everything)) < len(everything):
            raise Violation("exactly once in the changes", f"{name}: {len(kept)}")
        if [commit for commit, _ in everything] != sorted(commit for commit, _ in everything):
            raise Violation("changes in commit order", name)


def _normal(row: LakeRow) -> Row:
    columns = {name: write for name, write in row.columns.items() if write[0] > row.deleted}
    return Row(row.alive if row.alive > row.deleted else 0, row.deleted, columns)


def _check_events(world: World) -> None:
    """Each event happened once, whatever became of its pushes."""
    logged = Counter(
        edit_of(delta) for delta in world.history.deltas.values()
        if world.history.appends(delta.table)
    )  # fmt: skip
    twice = [edit for edit, times in logged.items() if times > 1]
    if twice:
        raise Violation("an event happens once", f"{twice[0]}")


def _check_order(world: World) -> None:
    """Each client's edits of a row are stamped in the order in which it made them."""
    if world.scenario.reinstalls:
        return  # a new file on a device whose clock was set back begins below the old one
    for key, deltas in world.history.of_row.items():
        last: dict[str, tuple[int, int]] = {}
        deleted = [delta.hlc for delta in deltas if delta.op is Op.DELETE]
        for delta in sorted(deltas, key=lambda delta: delta.hlc):
            size = dict(delta.columns).get("size", b"")
            if delta.client_id == "rogue" or not size.isdigit():
                continue
            if (delta.client_id, size) in world.history.set_aside:
                continue
            # A row that was deleted while an edit waited is sent whole: these are older values.
            if delta.op is Op.INSERT and any(
                0 < delta.hlc - at <= MADE_AGAIN_WITHIN for at in deleted
            ):
                continue
            before = last.get(delta.client_id, (0, 0))
            if int(size) < before[1]:
                raise Violation("monotonic writes", f"{key}: {delta} is stamped after {before}")
            last[delta.client_id] = (delta.hlc, int(size))
