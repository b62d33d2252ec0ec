"""What capturing changes promises, of every database whose log is read."""

# ruff: noqa: S608 - statements of an application, on names of these tests

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakesync.errors import Conflict
from lakesync.systems.postgres import postgres_capture
from tests.support.captured_sources import CAPTURED, MYSQL, Captured
from tests.support.capturing import NEVER, CaptureWorld, SteppedSlot

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tools.local_stack.databases import Database

pytestmark = pytest.mark.emulator
MANY = 2_500
_KEYS = st.integers(1, 6)
_CHANGES = (
    st.tuples(st.just("put"), _KEYS, st.integers(0, 99)),
    st.tuples(st.just("big"), _KEYS, st.integers(0, 9)),
    st.tuples(st.just("touch"), _KEYS, st.integers(0, 99)),
    st.tuples(st.just("move"), _KEYS, _KEYS),
    st.tuples(st.just("delete"), _KEYS, st.just(0)),
    st.tuples(st.just("many"), _KEYS, st.integers(5, 30)),
)
_OFTEN = {"put", "big", "touch", "move", "delete", "many"}


@pytest.fixture(autouse=True)
def _stepped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_capture, "Slot", SteppedSlot)


@pytest.fixture(params=CAPTURED)
def kind(request: pytest.FixtureRequest) -> str:
    """The database."""
    return str(request.param)


@pytest.fixture
def captured(kind: str, database: Database) -> Captured:
    """What is said to it."""
    return MYSQL if database.is_mysql else CAPTURED[kind]


@pytest.fixture
def database(kind: str, request: pytest.FixtureRequest) -> Database:
    """A running one."""
    running: Database = request.getfixturevalue(kind)
    return running


@pytest.fixture
def world(captured: Captured, database: Database) -> Iterator[CaptureWorld]:
    """A world with the two tables."""
    made = captured.world(database)
    yield made
    made.close()


def steps(captured: Captured) -> st.SearchStrategy[list[tuple[Any, Any]]]:
    """Transactions, some undone, and polls, some killed."""
    rare = st.tuples(st.sampled_from(sorted(captured.statements.keys() - _OFTEN)), _KEYS, _KEYS)
    transactions = st.tuples(
        st.lists(st.one_of(*_CHANGES, rare), min_size=1, max_size=5),
        st.sampled_from([True, True, True, False]),
    )
    polls = st.tuples(st.integers(1, 14), st.sampled_from([1, 2, 99]))
    return st.lists(st.one_of(transactions, transactions, polls), max_size=12)


def assert_same(world: CaptureWorld) -> None:
    """The gateway has the rows of the source, and nothing stopped."""
    for _ in range(2):  # one that was under way began before the last changes
        to_the_end(world)
    assert world.state.fault is None
    for name in world.tables:
        rows = world.rows(name)
        expected = world.expected(name)
        # What a dropped column had stays in the gateway.
        kept = {
            row_id: {column: value for column, value in row.items() if column in expected[row_id]}
            for row_id, row in rows.items()
            if row_id in expected
        }
        assert rows.keys() == expected.keys()
        assert kept == expected


def to_the_end(world: CaptureWorld) -> None:
    """Poll until nothing is left."""
    while world.poll() == "more":
        pass


def insert(world: CaptureWorld, *ids: int) -> None:
    """Insert rows."""
    world.run(*(f"INSERT INTO {world.tables['items']} (id, value) VALUES ({n}, 'x')" for n in ids))


def values(world: CaptureWorld) -> dict[str, Any]:
    """Return one column of a table that the gateway has."""
    return {row_id: row["value"] for row_id, row in world.rows("items").items()}


@pytest.mark.law("N1", "N12", "N13")
@settings(
    max_examples=10,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.data(), st.sampled_from([0, 3_600_000, -3_600_000]))
def test_gateway_rows_equal_source_rows_after_any_changes_and_kills(
    monkeypatch: pytest.MonkeyPatch,
    captured: Captured,
    database: Database,
    data: st.DataObject,
    ahead_ms: int,
) -> None:
    monkeypatch.setattr("lakesync.connectors.poll.PAGE_ROWS_MAX", 7)
    world = captured.world(database, ahead_ms)
    try:
        for first, second in data.draw(steps(captured)):
            if isinstance(first, int):
                world.poll(kill=first, pages=second)
            else:
                said = [text for change in first for text in captured.said(world, *change)]
                world.run(*said, commits=second)
        assert_same(world)
        deltas = [delta.delta_id for delta in world.deltas()]
        assert len(deltas) == len(set(deltas))
    finally:
        world.close()


@pytest.mark.law("N12")
def test_concurrent_polls_deliver_each_change_once(world: CaptureWorld) -> None:
    insert(world, 1)
    world.poll()
    insert(world, 2, 3)

    def meanwhile() -> None:
        world.during_push = None
        assert world.poll() == "done"
        world.is_refused = True

    world.during_push = meanwhile
    with pytest.raises(Conflict):
        world.poll()
    world.is_refused = False
    insert(world, 4)

    assert world.poll() == "done"
    assert values(world) == dict.fromkeys("1234", "x")
    assert len(world.deltas()) == 4


@pytest.mark.law("N12")
def test_large_transaction_is_delivered_once_wherever_polls_are_killed(
    world: CaptureWorld, captured: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakesync.connectors.poll.PAGE_ROWS_MAX", 100)
    world.poll()
    world.run(*captured.said(world, "many", 1, MANY))
    for kill in (3, 5, 7, 9, 11, 13, NEVER):
        world.poll(kill=kill)
    to_the_end(world)

    assert len(world.rows("items")) == len(world.deltas()) == MANY


@pytest.mark.law("N13")
def test_changes_during_a_snapshot_survive_the_snapshot(
    world: CaptureWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakesync.connectors.poll.PAGE_ROWS_MAX", 2)
    insert(world, 1, 2, 3, 4, 5)
    assert world.poll(pages=4) == "more"
    assert {"1", "2"} <= world.rows("items").keys()
    world.run(
        f"DELETE FROM {world.tables['items']} WHERE id IN (1, 4)",
        f"UPDATE {world.tables['items']} SET value = 'y' WHERE id IN (2, 5)",
    )
    to_the_end(world)
    world.poll()

    assert values(world) == {"2": "y", "3": "x", "5": "y"}


@pytest.mark.law("N13")
def test_table_removed_and_added_again_misses_no_change(world: CaptureWorld) -> None:
    insert(world, 1, 2)
    world.poll()
    world.configure(only=("pairs",))
    world.poll()
    world.run(f"DELETE FROM {world.tables['items']} WHERE id = 1")
    insert(world, 3)
    world.poll()
    assert values(world) == {"1": "x", "2": "x"}
    world.configure()
    world.poll()

    assert values(world) == {"2": "x", "3": "x"}
