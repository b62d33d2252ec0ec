"""Snapshots and epochs: what a cursor that the log does not reach back to is offered instead."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given

from lakesync.buffer.memory_buffer import MemoryBuffer
from lakesync.core.clock import stamp
from lakesync.core.gateway_identity import was_restored
from lakesync.core.merge import EMPTY, RowState, deltas_of, fold
from lakesync.core.messages import SNAPSHOT, Pull
from lakesync.errors import (
    Conflict,
    Contention,
    CursorExpired,
    GatewayDeleted,
    Unavailable,
    ValidationFailed,
)
from lakesync.gateway.filtered_reads import resume_token_of
from lakesync.log.declare import Declare
from lakesync.maintenance import horizons
from lakesync.maintenance.horizons import Trimmer, begin_epoch
from lakesync.ports import HeadMoved
from lakesync.wire.records import decode_records, decode_row_state
from tests.support.builders import WALL_MS, at_ms, delete, insert, push, update
from tests.support.gateways import (
    GATEWAY,
    GatewayWorld,
    GivenTime,
    SeededChance,
    administrator,
    puller,
    pusher,
    refusals,
)
from tests.support.strategies import row_deltas

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.core.config import GatewayConfig
    from lakesync.core.delta import Delta

COLUMNS = [{"name": "n", "type": "integer"}]


@pytest.mark.law("M8")
@given(deltas=row_deltas)
def test_the_deltas_of_a_row_state_merge_to_it(deltas: list[Delta]) -> None:
    state = fold(deltas)
    made = deltas_of("todos", "r1", state)

    assert fold(made) == fold(reversed(made)) == state
    assert [delta.hlc for delta in made] == sorted(delta.hlc for delta in made)
    assert len(made) <= len(deltas) + 2


class Trimmed(GatewayWorld):
    """A gateway whose log no longer holds its first commits: rows, a tombstone, events."""

    def __init__(self, *, trimmed: bool = True) -> None:
        super().__init__(time=GivenTime(WALL_MS))
        body = {"table": "events", "columns": COLUMNS, "append": True}
        self.admin.register_schema(GATEWAY, body)
        self.push(
            *[insert(f"r{number}", at=at_ms(number), n=number) for number in range(6)],
            update("r1", at=at_ms(20), client="other", n=5),
            delete("r2", at=at_ms(21)),
            insert("n1", at=at_ms(22), table="notes", n=1),
            insert("e1", at=at_ms(23), table="events", n=1),
        )
        self.time.now_ms += 600_000
        self.mark_flushed("todos", "notes", "events")
        if trimmed:
            Trimmer(self.buffer, wall_clock=self.time.wall_clock, keep_ms=0).trim(GATEWAY)

    def push(self, *deltas: Delta, **more: Any) -> list[str]:
        codes = []
        for client in sorted({delta.client_id for delta in deltas}):
            mine = [delta for delta in deltas if delta.client_id == client]
            codes += refusals(self.send(*mine, **more))
        return codes

    def rows(self) -> dict[tuple[str, str], RowState]:
        stored = self.buffer._gateways[GATEWAY].rows
        return {key: decode_row_state(row.state) for key, row in stored.items()}


def read_on(
    gateway: Trimmed, pull: Pull, between: Callable[[], None] = lambda: None
) -> dict[tuple[str, str], RowState]:
    rows: dict[tuple[str, str], RowState] = {}
    while True:
        page = gateway.pulls.pull(GATEWAY, pull)
        for run in page.records:
            for delta in decode_records(run):
                key = (delta.table, delta.row_id)
                rows[key] = fold([delta], rows.get(key, EMPTY))
        pull = Pull("r", page.cursor, pull.deltas_max, page.epoch, page.snapshot)
        between()
        if not page.has_more:
            return rows


@pytest.mark.law("B11")
@pytest.mark.parametrize("deltas_max", [1, 2, 100])
def test_snapshot_and_the_log_after_it_give_every_row(deltas_max: int) -> None:
    gateway = Trimmed()
    gateway.push(update("r3", at=at_ms(50), n=50), insert("r9", at=at_ms(51), n=9))

    rows = read_on(gateway, Pull("r", 0, deltas_max, snapshot=SNAPSHOT))

    assert rows == gateway.rows()


@pytest.mark.law("V4", "B11")
@pytest.mark.parametrize("words", [SNAPSHOT, f"{SNAPSHOT}:notes"])
@pytest.mark.parametrize("shown", ["todos", "none"])
def test_snapshot_does_not_name_tables_that_rules_hide(words: str, shown: str) -> None:
    gateway = Trimmed()
    bucket = {"name": "some", "tables": [shown], "filters": []}
    administrator(gateway.buffer, time_=gateway.time).save_rules(GATEWAY, {"buckets": [bucket]})
    told, tables, pull = "", set(), Pull("r", 0, 1, snapshot=words)
    while True:
        page = gateway.pulls.pull(GATEWAY, pull)
        told += page.snapshot.replace(words.partition(":")[2] or " ", "") + str(page.resync)
        tables |= {delta.table for run in page.records for delta in decode_records(run)}
        pull = Pull("r", page.cursor, 1, page.epoch, page.snapshot, scope=page.scope)
        if not page.has_more:
            break

    assert tables == {shown} - {"none"}
    assert ("todos" in told) is (shown == "todos")
    assert "notes" not in told
    assert "events" not in told


@pytest.mark.law("B11")
def test_rows_changed_during_a_snapshot_are_current_after_the_log_is_read() -> None:
    gateway = Trimmed()
    number = iter(range(100, 200))

    def edit() -> None:
        at = next(number)
        if at < 108:
            gateway.push(
                *[update(f"r{at % 6}", at=at_ms(at), n=at), insert(f"x{at}", at=at_ms(at, 1))]
            )

    rows = read_on(gateway, Pull("r", 0, 1, snapshot=SNAPSHOT), edit)

    assert rows == gateway.rows()


@pytest.mark.law("B11")
def test_snapshot_of_an_untrimmed_log_is_the_log() -> None:
    buffer, time = MemoryBuffer(), GivenTime(WALL_MS)
    pusher(buffer, time_=time).push(GATEWAY, push(insert("r1", at=at_ms(1), n=1)))

    page = puller(buffer, time_=time).pull(GATEWAY, Pull("r", 7, snapshot=SNAPSHOT))

    assert (page.count, page.snapshot, page.has_more) == (1, "", False)


@pytest.mark.law("B11")
def test_snapshot_expires_after_a_trim_or_restore() -> None:
    for late in ("trim", "restore"):
        gateway = Trimmed()
        page = gateway.pulls.pull(GATEWAY, Pull("r", 0, 1, snapshot=SNAPSHOT))
        if late == "trim":
            gateway.push(insert("r99", at=at_ms(99)))
            head = gateway.buffer.heads(GATEWAY)["main"]
            gateway.buffer.raise_horizon(GATEWAY, head.commit)
        else:
            begin_epoch(gateway.buffer, GATEWAY, wall_clock=gateway.time.wall_clock)

        with pytest.raises(CursorExpired):
            gateway.pulls.pull(GATEWAY, Pull("r", 0, 1, snapshot=page.snapshot))

        assert read_on(gateway, Pull("r", 0, 1, snapshot=SNAPSHOT)) == gateway.rows()


@pytest.mark.parametrize(
    "odd",
    ["x", "1|all", "g|all|||t|", "1|all|||a b|", "|all|||t|",
     "1|none|||t|", "1|all|../x||t|", "1|commit|x||||", "1|commit|1||t|", "1|changed|||t|"],
)  # fmt: skip
def test_invalid_resume_token_is_refused(odd: str) -> None:
    with pytest.raises(ValidationFailed) as result:
        Trimmed().pulls.pull(GATEWAY, Pull("r", snapshot=odd))

    assert result.value.field == "snapshot"


def test_resume_token_with_an_unknown_position_is_refused() -> None:
    gateway = Trimmed()
    page = gateway.pulls.pull(GATEWAY, Pull("r", 0, 1, snapshot=SNAPSHOT))
    token = resume_token_of(page.snapshot)._replace(position="z")

    with pytest.raises(ValidationFailed):
        gateway.pulls.pull(GATEWAY, Pull("r", snapshot=token.to_text()))


@pytest.mark.law("B11")
def test_snapshot_page_is_bounded_in_bytes() -> None:
    gateway = Trimmed()
    gateway.push(*[insert(f"big{n}", at=at_ms(50 + n), n="x" * 5_000) for n in range(20)])
    pull, sizes, rows = Pull("r", 0, 1_000, snapshot=SNAPSHOT, bytes_max=20_000), [], set()
    while pull.snapshot:
        page = gateway.pulls.pull(GATEWAY, pull)
        if page.snapshot:
            sizes.append(sum(map(len, page.records)))
            rows |= {delta.row_id for run in page.records for delta in decode_records(run)}
        pull = replace(pull, snapshot=page.snapshot)

    assert max(sizes) <= 20_000
    assert rows >= {f"big{n}" for n in range(20)} | {"r0", "r1", "r5", "n1"}


# --- epochs


@pytest.mark.law("B12")
def test_new_epoch_voids_cursors_and_begins_above_them() -> None:
    gateway = Trimmed()
    top = max(head.commit for head in gateway.buffer.heads(GATEWAY).values())

    first = begin_epoch(gateway.buffer, GATEWAY, wall_clock=gateway.time.wall_clock)
    second = begin_epoch(gateway.buffer, GATEWAY, wall_clock=gateway.time.wall_clock)

    assert first < second
    with pytest.raises(CursorExpired):
        gateway.pulls.pull(GATEWAY, Pull("r", top, 100, first))
    page = gateway.pulls.pull(GATEWAY, Pull("r", top))
    assert page.epoch == second  # one that names none is told
    before = gateway.buffer.heads(GATEWAY)["main"].commit
    gateway.push(insert("r99", at=at_ms(99)))
    assert gateway.buffer.heads(GATEWAY)["main"].commit > before > top


@pytest.mark.law("B12")
def test_client_of_another_epoch_must_pull_before_it_pushes() -> None:
    gateway = Trimmed()
    before = gateway.buffer.heads(GATEWAY)["main"].epoch
    epoch = begin_epoch(gateway.buffer, GATEWAY, wall_clock=gateway.time.wall_clock)
    wanted = push(insert("r99", at=at_ms(99)))

    with pytest.raises(CursorExpired):
        gateway.pushes.push(GATEWAY, replace(wanted, epoch=before))

    for right in (epoch, None):
        assert gateway.pushes.push(GATEWAY, replace(wanted, epoch=right)).accepted == 1


@pytest.mark.law("B12")
def test_moved_table_stays_in_the_gateways_epoch() -> None:
    gateway = Trimmed()
    epoch = begin_epoch(gateway.buffer, GATEWAY, wall_clock=gateway.time.wall_clock)
    admin = administrator(gateway.buffer, time_=gateway.time)
    admin.place_table(GATEWAY, "todos", "fresh")

    gateway.push(insert("r99", at=at_ms(99)))
    heads = gateway.buffer.heads(GATEWAY)

    assert heads.keys() == {"main", "fresh"}
    assert heads["main"].epoch == epoch


@pytest.mark.law("B12")
def test_epoch_begun_by_a_slow_clock_is_above_all_commits() -> None:
    gateway = Trimmed()
    gateway.push(insert("r99", at=at_ms(99)))
    heads = gateway.buffer.heads(GATEWAY)

    begin_epoch(gateway.buffer, GATEWAY, wall_clock=lambda: 0)

    after = gateway.buffer.heads(GATEWAY)["main"]
    assert after.commit >= heads["main"].commit + stamp(horizons.LEAD_MS)
    assert after.trimmed == heads["main"].trimmed


@pytest.mark.law("B12")
def test_backup_with_a_partial_commit_is_refused() -> None:
    gateway = Trimmed()
    for number in (98, 99):  # more than lies in a head
        gateway.push(insert(f"r{number}", at=at_ms(number), text="x" * 2_000))
    gateway.buffer._gateways[GATEWAY].logs["main"].pop()

    with pytest.raises(Conflict):
        begin_epoch(gateway.buffer, GATEWAY, wall_clock=gateway.time.wall_clock)

    assert not was_restored(gateway.buffer.heads(GATEWAY)["main"].epoch)


@pytest.mark.law("B12")
def test_backup_of_a_gateway_being_deleted_begins_no_epoch() -> None:
    """However much of it is gone by then: it is no backup that was made at a bad moment."""
    gateway = Trimmed()
    declare = Declare(
        gateway.buffer, wall_clock=gateway.time.wall_clock, sleep_ms=gateway.time.sleep_ms,
        chance=SeededChance(1),
    )  # fmt: skip
    declare(GATEWAY, lambda config: replace(config, deleted_ms=WALL_MS))
    gateway.buffer._gateways[GATEWAY].logs["main"].clear()

    with pytest.raises(GatewayDeleted):
        begin_epoch(gateway.buffer, GATEWAY, wall_clock=gateway.time.wall_clock)


def test_concurrent_writes_prevent_a_new_epoch() -> None:
    class Busy(MemoryBuffer):
        def begin_epoch(self, *_: object) -> None:
            raise HeadMoved({})

    with pytest.raises(Contention):
        begin_epoch(Busy(), GATEWAY, wall_clock=lambda: WALL_MS)


def test_epoch_is_not_begun_while_the_store_is_unavailable() -> None:
    class Away(MemoryBuffer):
        def config(self, *_: object) -> GatewayConfig:
            raise Unavailable("away")

    with pytest.raises(Unavailable):
        begin_epoch(Away(), GATEWAY, wall_clock=lambda: WALL_MS)


@pytest.mark.law("B11")
@pytest.mark.parametrize(
    "words", ["begin", "begin:todos", "begin:Todos,nowhere", "begin:notes,todos"]
)
def test_requested_tables_come_first_in_a_snapshot(words: str) -> None:
    gateway = Trimmed()
    named = words.lower().partition(":")[2].split(",")
    order = sorted(("notes", "todos"), key=lambda name: (name not in named, name))
    if named == ["notes", "todos"]:
        order = named
    pull, seen = Pull("r", 0, 1, snapshot=words), []
    while pull.snapshot:
        page = gateway.pulls.pull(GATEWAY, pull)
        if page.snapshot:
            seen += [delta.table for run in page.records for delta in decode_records(run)]
        pull = Pull("r", page.cursor, 1, page.epoch, page.snapshot)

    assert list(dict.fromkeys(seen)) == order
    assert seen == sorted(seen, key=order.index)
    assert read_on(gateway, Pull("r", 0, 2, snapshot=words)) == gateway.rows()


@pytest.mark.law("B11")
def test_untrimmed_log_without_events_is_read_by_table_when_some_are_requested_first() -> None:
    buffer, time_ = MemoryBuffer(), GivenTime(WALL_MS)
    made = [insert(f"r{n}", at=at_ms(n), table=("a", "b")[n % 2], n=n) for n in range(6)]
    pusher(buffer, time_=time_).push(GATEWAY, push(*made))
    top = max(head.commit for head in buffer.heads(GATEWAY).values())
    for table in ("a", "b"):
        buffer.save_flushed_table(GATEWAY, table, top)
    reader = puller(buffer, time_=time_)
    seen, pull = [], Pull("r", 0, 1, snapshot="begin:b")
    while True:
        page = reader.pull(GATEWAY, pull)
        seen += [delta.table for run in page.records for delta in decode_records(run)]
        if not page.has_more:
            break
        pull = Pull("r", page.cursor, 1, page.epoch, page.snapshot)

    assert seen[:6] == ["b"] * 3 + ["a"] * 3


@pytest.mark.law("B11")
@pytest.mark.parametrize("first", ["todos", "TODOS,events", "notes,todos", "events", "none", ""])
def test_untrimmed_log_with_events_sends_rows_of_requested_tables_first(first: str) -> None:
    gateway = Trimmed(trimmed=False)
    gateway.push(update("r3", at=at_ms(50), n=50), insert("e2", at=at_ms(51), table="events", n=2))
    named = [name for name in first.lower().split(",") if name in {"todos", "notes"}]
    pull = Pull("r", 0, 2, snapshot=f"begin:{first}".rstrip(":"))
    of_rows, of_log = list[str](), list[str]()
    page = gateway.pulls.pull(GATEWAY, pull)
    while page.has_more:
        seen = of_rows if page.snapshot else of_log
        seen += [delta.table for run in page.records for delta in decode_records(run)]
        page = gateway.pulls.pull(GATEWAY, Pull("r", page.cursor, 2, page.epoch, page.snapshot))

    order = [*named, *(name for name in ("notes", "todos") if named and name not in named)]
    assert list(dict.fromkeys(of_rows)) == order
    assert {"todos", "notes", "events"} <= set(of_log) | {
        delta.table for run in page.records for delta in decode_records(run)
    }
    read = read_on(gateway, replace(pull, deltas_max=2))
    assert {key: row for key, row in read.items() if key[0] != "events"} == gateway.rows()
    assert {row for table, row in read if table == "events"} == {"e1", "e2"}


@pytest.mark.parametrize("names", ["no-name", "a," * 40, ",", ",".join(f"t{n}" for n in range(33))])
@pytest.mark.parametrize("words", ["begin:{}", "1|all:{}|||todos|"])
def test_snapshot_with_invalid_or_too_many_requested_tables_is_refused(
    words: str, names: str
) -> None:
    with pytest.raises(ValidationFailed) as refused:
        Trimmed().pulls.pull(GATEWAY, Pull("r", 0, 10, snapshot=words.format(names)))

    assert refused.value.field == "snapshot"
