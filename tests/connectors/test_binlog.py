"""Change capture of MariaDB: whatever happens at the source and to the polls, all comes, once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.capturing import BinlogWorld

if TYPE_CHECKING:
    from tools.local_stack.databases import Database

pytestmark = pytest.mark.emulator
TABLES = {
    "items": "id int PRIMARY KEY, value text, big text, flag tinyint(1) DEFAULT 1",
    "pairs": "a varchar(20), b int, value numeric(10,2), big text, PRIMARY KEY (b, a)",
}
STATEMENTS = {
    "put": (
        (
            "INSERT INTO {items} (id, value) VALUES ({key}, '{other}') "
            "ON DUPLICATE KEY UPDATE value = '{other}'"
        ),
        (
            "INSERT INTO {pairs} VALUES ('k', {key}, {other}.5, repeat('{digit}', 3000)) "
            "ON DUPLICATE KEY UPDATE value = {other}"
        ),
    ),
    "big": (
        "UPDATE {items} SET big = repeat('{digit}', 3000)",
        "UPDATE {pairs} SET big = repeat('{digit}', 3000)",
    ),
    "touch": (
        "UPDATE {items} SET flag = 1 - flag WHERE id >= {key}",
        "UPDATE {pairs} SET value = {other} WHERE b >= {key}",
    ),
    "move": (
        "UPDATE IGNORE {items} SET id = {other} WHERE id = {key}",
        "UPDATE IGNORE {pairs} SET b = {other} WHERE b = {key}",
    ),
    "delete": ("DELETE FROM {items} WHERE id = {key}", "DELETE FROM {pairs} WHERE b = {key}"),
    "many": (
        (
            "INSERT INTO {items} (id, value, big) SELECT seq, 'many', repeat('{digit}', 3000) "
            "FROM seq_7_to_{last} ON DUPLICATE KEY UPDATE value = 'again'"
        ),
    ),
    "truncate": ("TRUNCATE {items}",),
    "add": ("ALTER TABLE {items} ADD COLUMN IF NOT EXISTS extra{odd} int DEFAULT {other}",),
    "drop": ("ALTER TABLE {items} DROP COLUMN IF EXISTS extra{odd}",),
    "retype": ("ALTER TABLE {items} MODIFY flag bigint",),
    "rename": ("RENAME TABLE {pairs} TO {pairs}_old", "RENAME TABLE {pairs}_old TO {pairs}"),
    "replace": (
        "CREATE TABLE {pairs}_new LIKE {pairs}",
        "INSERT INTO {pairs}_new VALUES ('new', {key}, {other}, NULL)",
        "RENAME TABLE {pairs} TO {pairs}_old, {pairs}_new TO {pairs}",
        "DROP TABLE {pairs}_old",
    ),
    "minimal": ("SET SESSION binlog_row_image = MINIMAL",),
    "full": ("SET SESSION binlog_row_image = FULL",),
}
KEYS = st.integers(1, 6)
CHANGES = st.one_of(
    st.tuples(st.just("put"), KEYS, st.integers(0, 99)),
    st.tuples(st.just("big"), KEYS, st.integers(0, 9)),
    st.tuples(st.just("touch"), KEYS, st.integers(0, 99)),
    st.tuples(st.just("move"), KEYS, KEYS),
    st.tuples(st.just("delete"), KEYS, st.just(0)),
    st.tuples(st.just("many"), KEYS, st.integers(5, 30)),
    st.tuples(
        st.sampled_from(
            ["truncate", "add", "drop", "retype", "rename", "replace", "minimal", "full"]
        ),
        KEYS,
        KEYS,
    ),
)
TRANSACTIONS = st.tuples(
    st.lists(CHANGES, min_size=1, max_size=5), st.sampled_from([True, True, True, False])
)
STEPS = st.one_of(
    TRANSACTIONS, TRANSACTIONS, st.tuples(st.integers(1, 14), st.sampled_from([1, 2, 99]))
)


def statements(world: BinlogWorld, kind: str, key: int, other: int) -> list[str]:
    """Give what an application says to its database."""
    names = {"items": world.tables["items"], "pairs": world.tables["pairs"]}
    values = {"key": key, "other": other, "digit": other % 10, "odd": key % 2, "last": 6 + other}
    return [template.format(**names, **values) for template in STATEMENTS[kind]]


def assert_same(world: BinlogWorld) -> None:
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


@pytest.mark.law("N1", "N12", "N13")
@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.lists(STEPS, max_size=12), st.sampled_from([0, 3_600_000, -3_600_000]))
def test_whatever_happens_the_gateway_has_the_sources_rows(
    monkeypatch: pytest.MonkeyPatch,
    mariadb: Database,
    steps: list[tuple[Any, Any]],
    ahead_ms: int,
) -> None:
    monkeypatch.setattr("lakesync.connectors.poll.PAGE_ROWS_MAX", 7)
    world = BinlogWorld(mariadb, TABLES, ahead_ms)
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
