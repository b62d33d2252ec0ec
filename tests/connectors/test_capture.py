"""Change capture: whatever happens at the source, to the polls, to the slot, all comes, once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakesync.connectors.sql.capture import source as capture_source
from tests.support.capturing import CaptureWorld, SteppedSlot

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tools.local_stack.databases import Database

pytestmark = pytest.mark.emulator
TABLES = {
    "items": "id int PRIMARY KEY, value text, big text, flag boolean DEFAULT true",
    "pairs": "a text, b int, value numeric(10,2), big text, PRIMARY KEY (b, a)",
}


@pytest.fixture(autouse=True)
def _stepped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture_source, "Slot", SteppedSlot)


def made(database: Database, ahead_ms: int = 0) -> CaptureWorld:
    """Give a world with the two tables; one tells whole old rows, both keep long texts apart."""
    world = CaptureWorld(database, TABLES, ahead_ms)
    world.run(
        *(f"ALTER TABLE {each} ALTER big SET STORAGE EXTERNAL" for each in world.tables.values()),
        f"ALTER TABLE {world.tables['pairs']} REPLICA IDENTITY FULL",
    )
    return world


@pytest.fixture
def world(postgres: Database) -> Iterator[CaptureWorld]:
    """A world with the two tables."""
    made_world = made(postgres)
    yield made_world
    made_world.close()


def assert_same(world: CaptureWorld) -> None:
    """The gateway has the rows of the source, and nothing stopped."""
    for _ in range(2):  # one that was under way began before the last changes
        while world.poll() == "more":
            pass
    assert world.state.fault is None
    for name in TABLES:
        rows = world.rows(name)
        expected = world.expected(name)
        # What a dropped column held stays in the gateway.
        kept = {
            row_id: {column: value for column, value in row.items() if column in expected[row_id]}
            for row_id, row in rows.items()
            if row_id in expected
        }
        assert rows.keys() == expected.keys()
        assert kept == expected


STATEMENTS = {
    "put": (
        (
            "INSERT INTO {items} (id, value) VALUES ({key}, '{other}') "
            "ON CONFLICT (id) DO UPDATE SET value = '{other}'"
        ),
        (
            "INSERT INTO {pairs} VALUES ('k', {key}, {other}.5, repeat('{digit}', 3000)) "
            "ON CONFLICT (a, b) DO UPDATE SET value = {other}"
        ),
    ),
    "big": (
        "UPDATE {items} SET big = repeat('{digit}', 3000)",
        "UPDATE {pairs} SET big = repeat('{digit}', 3000)",
    ),
    "touch": (
        "UPDATE {items} SET flag = NOT flag::boolean WHERE id >= {key}",
        "UPDATE {pairs} SET value = {other} WHERE b >= {key}",
    ),
    "move": (
        (
            "UPDATE {items} SET id = {other} WHERE id = {key} "
            "AND NOT EXISTS (SELECT FROM {items} WHERE id = {other})"
        ),
        (
            "UPDATE {pairs} SET b = {other} WHERE b = {key} "
            "AND NOT EXISTS (SELECT FROM {pairs} WHERE b = {other})"
        ),
    ),
    "delete": ("DELETE FROM {items} WHERE id = {key}", "DELETE FROM {pairs} WHERE b = {key}"),
    "many": (
        (
            "INSERT INTO {items} (id, value, big) SELECT n, 'many', repeat('{digit}', 3000) "
            "FROM generate_series(7, 6 + {other}) n ON CONFLICT (id) DO UPDATE SET value = 'again'"
        ),
    ),
    "truncate": ("TRUNCATE {items}",),
    "add": ("ALTER TABLE {items} ADD COLUMN IF NOT EXISTS extra{odd} int DEFAULT {other}",),
    "drop": ("ALTER TABLE {items} DROP COLUMN IF EXISTS extra{odd}",),
    "retype": ("ALTER TABLE {items} ALTER flag TYPE text",),
}
KEYS = st.integers(1, 6)
CHANGES = st.one_of(
    st.tuples(st.just("put"), KEYS, st.integers(0, 99)),
    st.tuples(st.just("big"), KEYS, st.integers(0, 9)),
    st.tuples(st.just("touch"), KEYS, st.integers(0, 99)),
    st.tuples(st.just("move"), KEYS, KEYS),
    st.tuples(st.just("delete"), KEYS, st.just(0)),
    st.tuples(st.just("many"), KEYS, st.integers(5, 30)),
    st.tuples(st.sampled_from(["truncate", "add", "drop", "retype"]), KEYS, KEYS),
)
TRANSACTIONS = st.tuples(
    st.lists(CHANGES, min_size=1, max_size=5), st.sampled_from([True, True, True, False])
)
STEPS = st.one_of(
    TRANSACTIONS, TRANSACTIONS, st.tuples(st.integers(1, 14), st.sampled_from([1, 2, 99]))
)


def statements(world: CaptureWorld, kind: str, key: int, other: int) -> list[str]:
    """Give what an application says to its database."""
    templates = STATEMENTS[kind]
    names = {"items": world.tables["items"], "pairs": world.tables["pairs"]}
    values = {"key": key, "other": other, "digit": other % 10, "odd": key % 2}
    return [template.format(**names, **values) for template in templates]


@pytest.mark.law("N1", "N12", "N13")
@settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.lists(STEPS, max_size=12), st.sampled_from([0, 3_600_000, -3_600_000]))
def test_whatever_happens_the_gateway_has_the_sources_rows(
    monkeypatch: pytest.MonkeyPatch,
    postgres: Database,
    steps: list[tuple[Any, Any]],
    ahead_ms: int,
) -> None:
    monkeypatch.setattr("lakesync.connectors.poll.PAGE_ROWS_MAX", 7)
    world = made(postgres, ahead_ms)
    try:
        for first, second in steps:
            if isinstance(first, int):
                world.poll(kill=first, pages=second)
            else:
                said = [text for change in first for text in statements(world, *change)]
                world.run(*said, commits=second)
        assert_same(world)
        deltas = [delta.delta_id for delta in world.deltas()]
        assert len(deltas) == len(set(deltas))
    finally:
        world.close()
