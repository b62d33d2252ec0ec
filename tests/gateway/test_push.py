"""A push: each delta by itself, or all together; nothing half done; bounds that hold."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.buffer import item_format
from lakesync.buffer.memory_buffer import MemoryBuffer
from lakesync.core.delta import Op, make_delta
from lakesync.core.messages import OutcomeKind
from lakesync.errors import AtomicPushTooLarge, Contention, LakeSyncError
from lakesync.log import declare
from lakesync.log.lanes import Limits
from lakesync.log.push_parts import delta_bytes
from lakesync.wire.records import encode_records
from tests.support.builders import WALL_MS, at_ms, delete, insert, push, update
from tests.support.commits import logged
from tests.support.gateways import (
    GATEWAY,
    GatewayWorld,
    GivenTime,
    administrator,
    pages,
    pusher,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from lakesync.core.delta import Delta
    from lakesync.core.messages import PushReceipt
    from lakesync.ports import Commit, Head, MarkKey, RowKey, StoredMark, StoredRow

NOISE = random.Random(1)


def noise(size: int) -> str:
    """Return text that does not compress to much less."""
    return "".join(chr(NOISE.randrange(0x4E00, 0x9FFF)) for _ in range(size // 3))


@pytest.fixture
def world() -> GatewayWorld:
    return GatewayWorld(time=GivenTime(WALL_MS + 1_000))


def codes(receipt: PushReceipt) -> dict[int, str]:
    """Return the code of each refused delta by its place."""
    return {
        outcome.index: outcome.error.code if outcome.error else "DUPLICATE"
        for outcome in receipt.outcomes
    }


def commits(world: GatewayWorld) -> int:
    return len(
        {entry.stamp for entries in logged(world.buffer, GATEWAY).values() for entry in entries}
    )


# --- outcomes


def test_each_delta_of_a_push_is_refused_by_itself_with_its_reason(world: GatewayWorld) -> None:
    schema = {"table": "todos", "columns": [{"name": "n", "type": "integer"}]}
    world.admin.register_schema(GATEWAY, schema)
    good = insert("good", at=at_ms(1), n=1)
    deltas = [
        insert(at=at_ms(2), n="text"),
        good,
        insert(at=at_ms(3), client="somebody", n=1),
        insert(at=at_ms(1_000 + 5_001), n=1),
        good,
        update(at=at_ms(4), unknown=1),
    ]

    receipt = world.send(*deltas)

    assert receipt.accepted == 2
    assert codes(receipt) == {
        0: "SCHEMA_ERROR",
        2: "FORBIDDEN",
        3: "CLOCK_DRIFT",
        4: "DUPLICATE",
        5: "SCHEMA_ERROR",
    }
    assert world.pulled() == [good]


@pytest.mark.law("B9")
def test_an_atomic_push_with_one_bad_delta_is_refused_whole(world: GatewayWorld) -> None:
    bad = insert(at=at_ms(1_000 + 5_001), n=1)
    deltas = [insert("r1", at=at_ms(1), n=1), bad, insert("r2", at=at_ms(2), n=1)]

    receipt = world.send(*deltas, atomic=True)

    assert receipt.accepted == 0
    assert codes(receipt) == {
        0: "ATOMIC_PUSH_REFUSED",
        1: "CLOCK_DRIFT",
        2: "ATOMIC_PUSH_REFUSED",
    }
    assert world.pulled() == []


@pytest.mark.law("M9")
def test_delta_that_gives_a_row_too_many_columns_is_refused(world: GatewayWorld) -> None:
    """Each may be told with a stamp of its own, and a row must fit one answer."""
    columns: dict[str, Any] = {f"c{number}": number for number in range(500)}
    world.send(insert("r1", at=at_ms(1), **columns))

    others = push(update("r1", at=at_ms(2), other=1), update("r1", at=at_ms(3), c1=0))
    receipt = world.pushes.push(GATEWAY, replace(others, claims={"sub": "ann"}))

    assert codes(receipt) == {0: "ROW_TOO_LARGE"}
    assert receipt.accepted == 1


@pytest.mark.law("B9")
def test_atomic_push_is_refused_whole_when_merging_exceeds_the_row_limit(
    world: GatewayWorld,
) -> None:
    service = world.pusher(limits=Limits(row_state_bytes_max=500))
    service.push(GATEWAY, push(insert("r1", at=at_ms(1), a="x" * 300)))
    deltas = [insert("r2", at=at_ms(2), n=1), update("r1", at=at_ms(3), b="x" * 300)]

    receipt = service.push(GATEWAY, push(*deltas, atomic=True))

    assert receipt.accepted == 0
    assert codes(receipt) == {0: "ATOMIC_PUSH_REFUSED", 1: "ROW_TOO_LARGE"}
    assert commits(world) == 1


@pytest.mark.law("B9")
def test_an_atomic_push_over_several_shards_is_one_commit(world: GatewayWorld) -> None:
    world.admin.place_table(GATEWAY, "todos", "hot")
    deltas = [insert(f"r{number}", at=at_ms(number), n=1) for number in range(40)]
    deltas += [insert(table="notes", at=at_ms(50), n=1)]

    world.send(*deltas, atomic=True)

    assert commits(world) == 1
    (page,) = pages(world.buffer, GATEWAY, deltas_max=1)
    assert page.count == 41


@pytest.mark.law("B9")
def test_atomic_push_that_does_not_fit_one_commit_is_refused(world: GatewayWorld) -> None:
    fits = [insert(f"r{number}", at=at_ms(number), n=1) for number in range(98)]
    one_more = [*fits, insert("one-more", at=at_ms(99), n=1)]

    with pytest.raises(AtomicPushTooLarge):
        world.send(*one_more, atomic=True)

    assert world.pulled() == []
    assert world.send(*fits, atomic=True).accepted == 98


def test_atomic_push_onto_rows_too_large_for_one_commit_is_refused(world: GatewayWorld) -> None:
    rows = [insert(f"r{number}", at=at_ms(number), a=noise(200_000)) for number in range(20)]
    assert world.send(*rows).accepted == 20
    before = world.pulled()
    edits = [update(f"r{number}", at=at_ms(100 + number), b=1) for number in range(20)]

    with pytest.raises(AtomicPushTooLarge):
        world.send(*edits, atomic=True)

    assert world.pulled() == before
    # The same, not atomic, is cut into commits that fit; the memory buffer refuses any other.
    assert world.send(*edits).accepted == 20
    assert world.pulled() == before + edits


def test_receipt_of_a_push_and_of_its_repetition_names_the_same_commit(world: GatewayWorld) -> None:
    delta = insert(at=at_ms(1), n=1)
    first = world.send(delta)
    again = world.send(delta)

    assert first.server_hlc == again.server_hlc > 0
    assert first.server_time_ms == WALL_MS + 1_000
    assert world.send().accepted == 0


class SlowReads(MemoryBuffer):
    """Another process commits between a push's reading of the heads and that of its rows."""

    between: Callable[[], object] | None = None

    def _slowly(self) -> None:
        between, self.between = self.between, None
        if between:
            between()

    def rows_within(
        self, gateway: str, wanted: Iterable[RowKey], bytes_max: int
    ) -> tuple[dict[RowKey, StoredRow], list[RowKey]]:
        self._slowly()
        return super().rows_within(gateway, wanted, bytes_max)

    def marks(self, gateway: str, wanted: Iterable[MarkKey]) -> dict[MarkKey, StoredMark]:
        self._slowly()
        return super().marks(gateway, wanted)


EVENT = insert("e1", at=at_ms(2), table="events", n=2)


@pytest.mark.law("K27")
@pytest.mark.parametrize(
    ("meanwhile", "repeated"),
    [
        (update(at=at_ms(3), n=3), update(at=at_ms(2), n=2)),
        (delete(at=at_ms(3)), delete(at=at_ms(2))),
        (EVENT, EVENT),
    ],
    ids=["overwritten", "deleted", "event"],
)
def test_receipt_of_a_duplicate_is_not_older_than_the_commit_that_made_it_one(
    meanwhile: Delta, repeated: Delta
) -> None:
    buffer = SlowReads()
    world = GatewayWorld(buffer)
    columns = [{"name": "n", "type": "integer"}]
    schema = {"table": "events", "append": True, "columns": columns}
    world.admin.register_schema(GATEWAY, schema)
    service, other = (world.pusher(seed) for seed in range(2))
    other.push(GATEWAY, push(insert(at=at_ms(1), n=1)))
    first: list[PushReceipt] = []
    buffer.between = lambda: first.append(other.push(GATEWAY, push(meanwhile)))

    late = service.push(GATEWAY, push(repeated))

    assert codes(late) == {0: "DUPLICATE"}
    assert late.server_hlc >= first[0].server_hlc


# --- bounds


def test_delta_that_makes_a_row_too_large_is_refused_and_the_rest_accepted(
    world: GatewayWorld,
) -> None:
    value = noise(250_000)
    deltas = [
        insert("r1", at=at_ms(1), a=value),
        update("r1", at=at_ms(2), b=value),
        update("r1", at=at_ms(3), c=1),
        insert("r2", at=at_ms(4), n=1),
    ]

    receipt = world.send(*deltas)

    assert codes(receipt) == {1: "ROW_TOO_LARGE"}
    assert world.pulled() == [deltas[0], deltas[2], deltas[3]]


def test_warm_process_does_not_refuse_a_delta_by_a_stale_row_state(world: GatewayWorld) -> None:
    small = Limits(row_state_bytes_max=500)
    warm, other = (world.pusher(seed, limits=small) for seed in range(2))
    warm.push(GATEWAY, push(insert(at=at_ms(1), a="x" * 300)))
    other.push(GATEWAY, push(delete(at=at_ms(2))))

    receipt = warm.push(GATEWAY, push(update(at=at_ms(3), b="x" * 300)))

    assert (receipt.accepted, receipt.outcomes) == (1, ())


@pytest.mark.parametrize("count", [1, 98, 99, 2_500])
def test_large_push_is_split_into_commits_that_fit(world: GatewayWorld, count: int) -> None:
    deltas = [insert(f"r{number}", at=at_ms(0, number), n=number) for number in range(count)]

    receipt = world.send(*deltas)

    assert receipt.accepted == count
    assert commits(world) == -(-count // 98)
    assert world.pulled(deltas_max=10_000) == deltas


def test_push_of_incompressible_data_is_split_into_items_that_fit(world: GatewayWorld) -> None:
    deltas = [insert(f"r{number}", at=at_ms(number), a=noise(60_000)) for number in range(60)]

    assert world.send(*deltas).accepted == 60
    assert world.pulled(deltas_max=10_000) == deltas


@pytest.mark.parametrize("row_id", ["\U0001f600" * 128, "\x01" * 512, "r"])
def test_delta_bytes_is_an_upper_bound_of_the_encoded_size(row_id: str) -> None:
    widest = {f"c{'x' * 60}{number}": "\U0001f600" for number in range(200)}
    delta = make_delta(
        Op.UPDATE, "t" * 64, row_id, widest, client_id="\U0001f600" * 32, hlc=at_ms(1)
    )

    assert delta_bytes(delta) >= len(encode_records([delta]))


# --- races and deadlines


def test_push_under_a_constantly_changing_configuration_fails_at_the_deadline() -> None:
    class Changing(MemoryBuffer):
        def lane_heads(self, gateway: str, lanes: Sequence[str]) -> dict[str, Head]:
            heads = super().lane_heads(gateway, lanes)
            return {lane: replace(head, config_version=99) for lane, head in heads.items()}

    world = GatewayWorld(Changing())
    schema = {"table": "todos", "columns": [{"name": "n", "type": "json"}]}
    world.admin.register_schema(GATEWAY, schema)
    before = world.time.now_ms

    with pytest.raises(Contention):
        world.send(insert(at=at_ms(2), n=1))

    assert 8_000 <= world.time.now_ms - before < 9_000


def test_warm_process_applies_a_new_configuration(world: GatewayWorld) -> None:
    world.send(insert("r1", at=at_ms(1), n=1))
    schema = {"table": "todos", "columns": [{"name": "n", "type": "string"}]}
    world.admin.register_schema(GATEWAY, schema)

    receipt = world.send(insert("r2", at=at_ms(2), n=1))

    assert codes(receipt) == {0: "SCHEMA_ERROR"}


def test_full_row_cache_is_emptied_without_losing_deltas(
    world: GatewayWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakesync.log.row_cache.BYTES_REMEMBERED_MAX", 2_000)
    deltas: list[Delta] = []
    for number in range(50):
        mine = [
            update(f"r{number % 7}", at=at_ms(number), a=number),
            insert(f"n{number}", at=at_ms(number), b=1),
        ]
        assert world.send(*mine).accepted == 2
        deltas += mine

    assert world.pulled(deltas_max=1_000) == deltas


@pytest.mark.law("B4")
def test_accepted_delta_is_not_refused_after_the_clock_steps_back() -> None:
    time = GivenTime(WALL_MS)

    class Moving(MemoryBuffer):
        moved = False

        def commit(self, commit: Commit) -> None:
            super().commit(commit)
            if not self.moved:
                self.moved = True
                service = administrator(self, time_=GivenTime(WALL_MS))
                service.place_table(GATEWAY, "notes", "side")
                time.now_ms -= 10_000

    deltas = [insert(f"r{number}", at=at_ms(4_000), n=1) for number in range(2)]
    one_row = Limits(commit_items_max=3)
    receipt = pusher(Moving(), time_=time, limits=one_row).push(GATEWAY, push(*deltas))

    assert receipt.accepted == 2
    assert [(outcome.index, outcome.kind) for outcome in receipt.outcomes] == [
        (0, OutcomeKind.DUPLICATE)
    ]


class TestTables:
    @pytest.fixture(autouse=True)
    def _few_tables(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(declare, "TABLES_MAX", 3)

    @pytest.mark.law("B13")
    def test_deltas_of_tables_beyond_the_limit_are_refused_individually(
        self, world: GatewayWorld
    ) -> None:
        deltas = [insert("r1", table=f"t{number % 5}", at=at_ms(number)) for number in range(10)]

        receipt = world.send(*deltas)

        assert receipt.accepted == 6
        refused = {index: code for index, code in codes(receipt).items() if code != "DUPLICATE"}
        assert refused == dict.fromkeys([3, 4, 8, 9], "TOO_MANY_TABLES")
        assert {table for table, _ in world.buffer._gateways[GATEWAY].rows} == {"t0", "t1", "t2"}
        assert world.buffer.config(GATEWAY).tables.keys() == {"t0", "t1", "t2"}
        assert world.send(insert("r2", table="t1", at=at_ms(20))).accepted == 1

    @pytest.mark.law("B13")
    def test_atomic_push_with_one_table_too_many_declares_nothing(
        self, world: GatewayWorld
    ) -> None:
        deltas = [insert("r1", table=f"t{number}", at=at_ms(number)) for number in range(4)]

        receipt = world.send(*deltas, atomic=True)

        assert receipt.accepted == 0
        assert codes(receipt)[3] == "TOO_MANY_TABLES"
        assert world.buffer.config(GATEWAY).version == 0

    @pytest.mark.law("B13")
    def test_concurrent_pushes_do_not_exceed_the_table_limit(self, world: GatewayWorld) -> None:
        mine, theirs = (world.pusher(seed) for seed in (0, 1))
        mine.push(GATEWAY, push(insert("r1", table="t0", at=at_ms(1))))
        saving = world.buffer.save_config
        meanwhile = [push(insert("r1", table=f"x{number}", at=at_ms(2)))
                     for number in range(2)]  # fmt: skip

        def save_config(*asked: Any, **named: Any) -> None:
            if meanwhile:
                theirs.push(GATEWAY, meanwhile.pop())
            saving(*asked, **named)

        world.buffer.save_config = save_config  # type: ignore[method-assign]
        deltas = [insert("r1", table=f"t{number}", at=at_ms(number + 2)) for number in range(3)]
        receipt = mine.push(GATEWAY, push(*deltas))

        assert codes(receipt) == {1: "TOO_MANY_TABLES", 2: "TOO_MANY_TABLES"}
        assert world.buffer.config(GATEWAY).tables.keys() == {"t0", "x0", "x1"}
        # Whoever remembers the configuration of before looks again before it refuses.
        assert theirs.push(GATEWAY, push(insert("r2", table="x0", at=at_ms(9)))).accepted == 1

    @pytest.mark.law("B13")
    def test_table_with_a_schema_counts_towards_the_table_limit(self, world: GatewayWorld) -> None:
        columns = [{"name": "n", "type": "json"}]
        for table in ("s1", "s2"):
            world.admin.register_schema(GATEWAY, {"table": table, "columns": columns})

        deltas = [insert("r1", table=table, at=at_ms(1)) for table in ("s1", "t1", "t2")]
        receipt = world.send(*deltas)

        assert codes(receipt) == {2: "TOO_MANY_TABLES"}
        with pytest.raises(LakeSyncError) as refused:
            world.admin.register_schema(GATEWAY, {"table": "s3", "columns": columns})
        assert refused.value.code == "TOO_MANY_TABLES"
        world.admin.register_schema(GATEWAY, {"table": "t1", "columns": columns})

    @pytest.mark.law("B13")
    def test_full_configuration_refuses_only_new_tables(
        self, world: GatewayWorld, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        world.send(insert("r1", table="t1", at=at_ms(1)))
        monkeypatch.setattr(item_format, "CONFIG_BYTES_MAX", 1)

        deltas = [insert("r2", table=table, at=at_ms(2)) for table in ("t1", "t2")]
        assert codes(world.send(*deltas)) == {1: "TOO_MANY_TABLES"}
