"""What is large of a flow, and what a job's tasks make of it. Laws Y9, Y11."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.adapters.lake.memory import MemoryAdapter
from lakesync.connectors.large_polls import (
    PATIENCE_S_MAX,
    OneWriter,
    StretchRead,
    Work,
    read_stretch,
)
from lakesync.connectors.port import Storage, Stretch
from lakesync.connectors.registry import definition_from
from lakesync.core.destinations import Destination
from lakesync.core.flows import ConnectorSource, DatabaseSource, Flow
from lakesync.errors import AdapterRefused, AdapterUnreachable, Backpressure, Conflict
from lakesync.flows.routes import keeper, large_rows
from lakesync.systems.objects import ObjectsDatabase
from tests.flows.world import GATEWAY, SOURCE_TABLE, World
from tests.support.builders import at_ms, insert
from tests.support.gateways import administrator
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from lakesync.adapters.database import Inserted, TableBatch
    from lakesync.errors import LakeSyncError
    from lakesync.result import Result

LARGE = 6


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("poll", "large_polls"):
        monkeypatch.setattr(f"lakesync.connectors.{module}.PAGE_ROWS_MAX", 2)
    monkeypatch.setattr("lakesync.connectors.large_polls.STRETCH_ROWS", 4)


def to(kind: str) -> Destination:
    return Destination("", kind=kind, secret="there")


@pytest.mark.law("Y11")
@pytest.mark.parametrize(
    ("source", "kind", "expected"),
    [
        (ConnectorSource("postgres", {}), "mysql", 9),
        (ConnectorSource("postgres", {}), "postgres", 9),
        (DatabaseSource("postgres", "s", "g"), "", 9),
        (ConnectorSource("postgres", {}), "", 0),
        (ConnectorSource("postgres", {}), "bigquery", 9),
        (ConnectorSource("postgres", {}), "s3", 9),
        (ConnectorSource("postgres", {}), "iceberg", 9),
        (DatabaseSource("iceberg", "s", "g"), "", 9),
        (DatabaseSource("sqlite", "s", "acme"), "postgres", 0),
        (DatabaseSource("postgres", "s", "acme"), "sqlite", 0),
    ],
)
def test_job_reads_large_tables_only_for_supported_sources_and_destinations(
    source: Any, kind: str, expected: int
) -> None:
    assert large_rows(Flow("flow", source, to(kind)), 9) == expected
    assert large_rows(Flow("flow", source, to(kind)), 0) == 0


def declared(rows: int = 21) -> World:
    """Return a flow from a database into the gateway, with so many rows ahead."""
    world = World()
    world.by_hand.rows_min = LARGE
    world.by_hand.polls = world.by_hand.polls_at("")
    world.commit(*(insert(f"r{n:02}", table=SOURCE_TABLE, at=at_ms(n), n=n) for n in range(rows)))
    world.declare(destination="gateway")
    return world


def handed_over(world: World) -> int:
    """Poll until a job is asked for; returns its lease."""
    step = world.by_hand.polls.poll(GATEWAY, "flow", 0, lambda: True)
    assert step.status == "large"
    return step.lease


@pytest.mark.law("Y11", "Y5")
def test_large_stretches_are_read_by_a_job_and_the_rest_by_polls() -> None:
    world = declared()
    lease = handed_over(world)
    assert world.status()["jobMs"] == world.time.wall_clock()
    brought = world.by_hand.job(GATEWAY, "flow", lease, at_once=2)

    assert (brought.is_mine, brought.rows, brought.error) == (True, 18, None)
    assert (world.status()["rows"], world.status()["state"]) == (20, "filling")
    assert world.poll() == "done"
    assert world.in_gateway() == {f"r{n:02}": {"n": n} for n in range(21)}
    assert (world.status()["rows"], world.status()["state"]) == (21, "current")


@pytest.mark.law("Y11")
def test_job_without_a_valid_lease_reads_nothing() -> None:
    world = declared()
    lease = handed_over(world)
    assert not world.by_hand.job(GATEWAY, "flow", lease - 1).is_mine
    world.admin.set_paused(GATEWAY, "flow", paused=True)
    assert not world.by_hand.job(GATEWAY, "flow", lease).is_mine
    assert world.status()["rows"] == 2


@pytest.mark.law("Y11", "Y9")
def test_rows_refused_in_a_job_are_dead_letters_until_they_fit() -> None:
    world = declared()
    world.commit(insert("r10", table=SOURCE_TABLE, at=at_ms(90), n="no number"))
    columns = [{"name": "n", "type": "integer"}]
    administrator(world.buffer, time_=world.time).register_schema(
        GATEWAY, {"table": SOURCE_TABLE, "columns": columns}
    )
    world.by_hand.job(GATEWAY, "flow", handed_over(world))
    [letter] = world.by_hand.admin.one(GATEWAY, "flow")["deadLetters"]
    assert (letter["rowId"], world.status()["deadLetters"]) == ("r10", 1)
    world.poll()

    world.commit(insert("r10", table=SOURCE_TABLE, at=at_ms(95), n=10))
    world.time.now_ms += 100_000
    world.admin.backfill(GATEWAY, "flow")
    world.by_hand.job(GATEWAY, "flow", handed_over(world))
    assert world.status()["deadLetters"] == 0
    assert world.by_hand.admin.one(GATEWAY, "flow")["deadLetters"] == []


def read_with(faults: list[LakeSyncError]) -> tuple[StretchRead, list[float], World]:
    """Read all as one stretch, whose first pushes fail; returns also what was waited each time."""
    world = declared(7)
    stored = world.by_hand.store.connector(GATEWAY, "flow")
    definition = definition_from(stored.definition)
    route = world.by_hand.flow_routes("databases").route(
        GATEWAY, "flow", definition, Storage(world.by_hand.objects, GATEWAY, "flow")
    )

    def push(given: Any) -> Any:
        if faults:
            raise faults.pop(0)
        return world.by_hand.push(GATEWAY, given)

    mark = world.source.mark(SOURCE_TABLE).unwrap()
    stretch = Stretch(f'["rows",{mark},"",false]', f'["rows",{mark},"r05",false]')
    work = Work(GATEWAY, "flow", stored.definition, SOURCE_TABLE, 1, frozenset())
    waited: list[float] = []
    route = route._replace(push=push)
    return read_stretch(route, work, stretch, world.time.wall_clock, waited.append), waited, world


@pytest.mark.law("Y11", "Y9")
def test_task_waits_for_a_full_gateway_and_pushes_every_row_once() -> None:
    faults = [Backpressure("full", retry_after_s=20), AdapterUnreachable("away")]
    read, waited, world = read_with([*faults])

    assert (read.rows, read.error, waited) == (6, None, [20, 2])
    assert len(world.in_gateway()) == 6


@pytest.mark.law("Y11", "Y9")
def test_task_wait_is_bounded_and_final_errors_are_not_waited_for() -> None:
    read, waited, _ = read_with([AdapterUnreachable("away")] * 99)
    assert isinstance(read.error, AdapterUnreachable)
    assert PATIENCE_S_MAX - 60 < sum(waited) <= PATIENCE_S_MAX

    read, waited, _ = read_with([AdapterRefused("no")])
    assert isinstance(read.error, AdapterRefused)
    assert waited == []


@pytest.mark.law("Y11")
def test_failed_stretch_is_not_skipped_and_earlier_ones_are_kept() -> None:
    world = declared()
    lease, writes = handed_over(world), []

    def push(gateway: str, given: Any) -> Any:
        writes.append(given)
        if len(writes) == 7:
            raise AdapterRefused("the token has expired")
        return service(gateway, given)

    service, world.by_hand.push = world.by_hand.push, push
    brought = world.by_hand.job(GATEWAY, "flow", lease)
    assert isinstance(brought.error, AdapterRefused)
    assert world.status()["lastError"]["error"] == "the token has expired"
    # The page, and the two stretches before the one that failed.
    assert (brought.rows, world.status()["rows"]) == (2 + 8, 12)
    world.by_hand.job(GATEWAY, "flow", handed_over(world))
    assert world.poll() == "done"
    assert world.in_gateway() == {f"r{n:02}": {"n": n} for n in range(21)}


@pytest.mark.law("Y11")
@pytest.mark.parametrize("how", ["paused", "removed"])
def test_flow_paused_or_removed_during_a_job_is_read_no_further(how: str) -> None:
    world = declared()
    lease = handed_over(world)
    service = world.by_hand.push

    def push(gateway: str, given: Any) -> Any:
        if how == "paused":
            world.admin.set_paused(GATEWAY, "flow", paused=True)
        else:
            world.admin.remove(GATEWAY, "flow")
        world.by_hand.push = service
        return service(gateway, given)

    world.by_hand.push = push
    brought = world.by_hand.job(GATEWAY, "flow", lease, at_once=1)
    # What was under way: the page, and no stretch behind it.
    assert (brought.is_mine, brought.rows) == (how == "paused", 2 if how == "paused" else 0)
    assert len(world.in_gateway()) == 4


class Writes(ObjectsDatabase):
    """A folder of a bucket that knows how many rows each write had."""

    def __init__(self) -> None:
        super().__init__(MemoryAdapter(), "", "flows")
        self.sizes: list[int] = []

    def insert_deltas(self, batch: TableBatch) -> Result[Inserted, LakeSyncError]:
        self.sizes.append(len(batch.deltas))
        return super().insert_deltas(batch)


def to_a_folder(rows: int = 61) -> tuple[World, Writes]:
    """Return a flow from a database to a folder on S3, with so many rows ahead."""
    world, folder = declared(0), Writes()
    world.admin.remove(GATEWAY, "flow")
    world.by_hand.databases["folder", keeper(GATEWAY, "flow")] = folder
    world.declare(destination={"database": "s3", "secret": "folder"})
    world.commit(*(insert(f"r{n:02}", table=SOURCE_TABLE, at=at_ms(n), n=n) for n in range(rows)))
    return world, folder


@pytest.mark.law("Y11", "Y9")
def test_job_combines_reads_into_few_writes_for_a_folder_destination() -> None:
    world, folder = to_a_folder()
    brought = world.by_hand.job(GATEWAY, "flow", handed_over(world))

    assert (brought.is_mine, brought.error) == (True, None)
    # A new table's mark, the function's page, the job's fence and page, and four stretches at a
    # time behind them.
    assert folder.sizes == [0, 20, 0, 20, 16, 4]
    assert world.poll() == "done"
    assert folder.sizes == [0, 20, 0, 20, 16, 4, 0, 1]
    assert world.rows(folder) == {f"r{n:02}": {"n": n} for n in range(61)}  # type: ignore[arg-type]
    assert (world.status()["rows"], world.status()["state"]) == (61, "current")


@pytest.mark.law("Y11")
def test_combined_write_of_a_job_is_bounded_by_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakesync.connectors.large_polls.JOB_BYTES_MAX", 10)
    monkeypatch.setattr("lakesync.flows.routes.PAGE_ROWS_MAX", 10_000)  # pages of two rows
    world, folder = to_a_folder(31)
    world.by_hand.job(GATEWAY, "flow", handed_over(world))

    # As many rows of a byte as may be, and a page more; there are four stretches of four rows.
    assert max(folder.sizes) <= 10 + 2
    assert folder.sizes[:4] == [0, 2, 0, 2]
    world.poll()
    assert world.rows(folder) == {f"r{n:02}": {"n": n} for n in range(31)}  # type: ignore[arg-type]


@pytest.mark.law("Y11", "Y9")
def test_combined_write_waits_for_its_destination_and_keeps_its_lease() -> None:
    world, _ = to_a_folder()
    handed_over(world)
    stored = world.by_hand.store.connector(GATEWAY, "flow")
    route = world.by_hand.flow_routes("databases").route(
        GATEWAY, "flow", definition_from(stored.definition),
        Storage(world.by_hand.objects, GATEWAY, "flow"),
    )  # fmt: skip
    kept = threading.Event()
    faults = [AdapterUnreachable("away")]

    def push(given: Any) -> Any:
        assert kept.wait(PATIENCE_S)
        if faults:
            raise faults.pop()
        return service(given)

    service, mark = route.push, world.source.mark(SOURCE_TABLE).unwrap()
    work = Work(GATEWAY, "flow", stored.definition, SOURCE_TABLE, 1, frozenset())
    stretch = Stretch(f'["rows",{mark},"r19",false]', f'["rows",{mark},"r59",false]')
    writer = OneWriter(route._replace(push=push), world.time.wall_clock, keep_s=0.01)
    assert writer(work, [stretch], kept.set) == [StretchRead(40)]
    assert faults == []


@pytest.mark.law("Y11")
def test_writer_that_lost_its_lease_stops_waiting_for_the_destination() -> None:
    world, _ = to_a_folder()
    handed_over(world)
    stored = world.by_hand.store.connector(GATEWAY, "flow")
    route = world.by_hand.flow_routes("databases").route(
        GATEWAY, "flow", definition_from(stored.definition),
        Storage(world.by_hand.objects, GATEWAY, "flow"),
    )  # fmt: skip
    asked: list[int] = []

    def push(_: Any) -> Any:
        asked.append(1)
        raise AdapterUnreachable("away", retry_after_s=60)

    def keep() -> None:
        if asked:
            raise Conflict("somebody else polls")

    mark = world.source.mark(SOURCE_TABLE).unwrap()
    work = Work(GATEWAY, "flow", stored.definition, SOURCE_TABLE, 1, frozenset())
    stretch = Stretch(f'["rows",{mark},"r19",false]', f'["rows",{mark},"r59",false]')
    with pytest.raises(Conflict):
        OneWriter(route._replace(push=push), world.time.wall_clock, keep_s=0.01)(
            work, [stretch], keep
        )
    assert asked == [1]
