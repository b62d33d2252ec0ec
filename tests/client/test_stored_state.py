"""Row states as a file keeps them: nothing of a row is lost, and equal rows are equal bytes."""

from __future__ import annotations

import sqlite3
import struct
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lakesync.client.download import Arrived
from lakesync.client.storage.app_table import AppTable
from lakesync.client.storage.file_layout import CLIENTS, FROM_LAYOUTS, WITH_NAMES
from lakesync.client.storage.stored_rows import cells_by_column
from lakesync.client.storage.stored_state import Places, States, decode, states_in
from lakesync.core.delta import Op, make_delta
from lakesync.core.merge import EMPTY, RowState, fold
from lakesync.wire.records import encode_row_state
from tests.client.support.pages import page
from tests.client.support.world import check_sound, rows_of, states_of
from tests.support import strategies
from tests.support.builders import insert

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lakesync.core.delta import Delta
    from tests.client.support.world import World


@pytest.fixture
def states() -> Iterator[States]:
    """A file's row states."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute(CLIENTS)
        yield States(connection)


def _states() -> States:
    connection = sqlite3.connect(":memory:")
    connection.execute(CLIENTS)
    return States(connection)


def _places(state: RowState, others: int = 0) -> Places:
    return Places([*(f"other_{number}" for number in range(others)), *state.columns])


@given(st.lists(strategies.deltas(), max_size=8), st.sampled_from([0, 7, 300, 2_500]))
def test_an_encoded_row_state_decodes_unchanged(deltas: list[Delta], others: int) -> None:
    states, state = _states(), fold(deltas)
    places = _places(state, others)

    stored = states.encode(places, state)

    assert states.decode(places, stored) == state
    assert (stored == b"") == (state == EMPTY)
    again = RowState(state.alive, state.deleted, dict(reversed(list(state.columns.items()))))
    assert states.encode(places, again) == stored


@given(strategies.deltas(), st.randoms(), st.sampled_from([0, 7, 2_500]))
def test_an_inserted_row_is_encoded_as_its_row_state(
    delta: Delta, random: object, others: int
) -> None:
    states, columns = _states(), () if delta.op is Op.DELETE else delta.columns
    state = fold([delta._replace(op=Op.INSERT, columns=columns)])
    names = [name for name, _ in columns]
    random.shuffle(names)  # type: ignore[attr-defined]
    assume(columns)
    places, count = Places([*(f"other_{number}" for number in range(others)), *names]), 3
    values = [[value] * count for _, value in columns]
    rows = [delta.hlc] * count, [delta.client_id] * count, values

    encoded = states.encode_inserts(places, tuple(name for name, _ in columns), *rows)

    assert encoded == [states.encode(places, state)] * count


def _columns(name: str, size: int) -> dict[str, Any]:
    return {name: "x" * size, "d": 1}


@pytest.mark.parametrize("size", [0, 252, 253, 254, 255, 65_000])
@pytest.mark.parametrize("clients", [1, 3, 300])
def test_a_row_state_with_long_values_or_many_clients_decodes_unchanged(
    states: States, size: int, clients: int
) -> None:
    deltas = [
        insert(at=at, client=f"client {at % clients}", **_columns(f"c{at}", size))
        for at in range(1, 400)
    ]
    state = fold(deltas)
    places = _places(state)

    assert states.decode(places, states.encode(places, state)) == state
    last = deltas[-1]
    row = [last.hlc], [last.client_id], [[value] for _, value in last.columns]
    names = tuple(name for name, _ in last.columns)
    (encoded,) = states.encode_inserts(places, names, *row)
    assert states.decode(places, encoded) == fold([last])


@given(st.lists(strategies.deltas(), min_size=1, max_size=4), st.data())
def test_a_truncated_row_state_is_refused(deltas: list[Delta], data: st.DataObject) -> None:
    states, state = _states(), fold(deltas)
    places = _places(state)
    stored = states.encode(places, state)
    assume(len(stored) > 1)
    size = data.draw(st.integers(1, len(stored) - 1))

    with pytest.raises((ValueError, IndexError, struct.error)):
        decode(stored[:size], places, states.clients.client)


def test_a_row_state_with_an_unknown_column_or_client_is_refused(states: States) -> None:
    state = fold([insert(a=1, b=2)])
    stored = states.encode(Places(["a", "b"]), state)

    with pytest.raises(ValueError, match="column"):
        states.decode(Places(["a"]), stored)
    with pytest.raises(ValueError, match="client 1"):
        _states().decode(Places(["a", "b"]), stored)


def _to_layout(layout: int, world: World, name: str) -> None:
    """Make of a file, in which every row has its state, what an earlier release would have written.

    Args:
        layout: 2, 3 or 4.
        world: where it is.
        name: whose it is.
    """
    with closing(sqlite3.connect(world.folder / f"{name}.db")) as connection, connection:
        connection.execute("ALTER TABLE _lakesync_columns RENAME COLUMN forms TO is_boolean")
        connection.execute("UPDATE _lakesync_sync SET layout = ?", (layout,))
        if layout == 4:
            return
        connection.execute("ALTER TABLE _lakesync_sync DROP COLUMN folded")
        if layout > WITH_NAMES:
            return
        state_of = states_in(connection)
        for table_id, row_id, state, base in connection.execute(
            "SELECT table_id, row_id, state, base FROM _lakesync_rows"
        ).fetchall():
            old = [
                None if stored is None else encode_row_state(state_of(table_id, stored))
                for stored in (state, base)
            ]
            connection.execute(
                "UPDATE _lakesync_rows SET state = ?, base = ? WHERE table_id = ? AND row_id = ?",
                (*old, table_id, row_id),
            )
        connection.execute("DROP TABLE _lakesync_clients")


@pytest.mark.parametrize("layout", FROM_LAYOUTS)
def test_a_file_of_an_earlier_layout_keeps_its_rows_states_and_outbox(
    world: World, layout: int
) -> None:
    other, client = world.client("other"), world.client("a")
    for number in range(2_100):
        other.insert("todos", f"t{number}", {"title": f"{number}", "n": number}).unwrap()
    other.delete("todos", "t7").unwrap()
    other.sync().unwrap()
    client.sync().unwrap()
    client.update("todos", "t1", {"n": -1}).unwrap()
    client.insert("notes", "n1", {"text": "waits"}).unwrap()
    client.delete("notes", "n2").unwrap()
    rows, states, waiting = rows_of(client), states_of(client), client.pending().unwrap()
    client.close()
    _to_layout(layout, world, "a")

    client = world.client("a")

    assert (rows_of(client), states_of(client)) == (rows, states)
    assert client.pending().unwrap() == waiting
    check_sound(client)
    client.insert("notes", "n3", {"text": "new"}).unwrap()
    check_sound(client)
    client.sync().unwrap()
    assert rows_of(client) == world.rows()


def test_a_file_of_an_earlier_layout_of_another_client_is_refused_and_not_migrated(
    world: World,
) -> None:
    world.client("a").close()
    _to_layout(2, world, "a")
    (world.folder / "a.db").rename(world.folder / "b.db")

    with pytest.raises(Exception, match=r"another release|belongs to the client"):
        world.client("b")

    with closing(sqlite3.connect(world.folder / "b.db")) as connection:
        assert connection.execute("SELECT layout FROM _lakesync_sync").fetchone() == (2,)


values = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**53) + 1, 2**53 - 1),
    st.sampled_from([1e20, -1e20, 1e308, 5e-324, 0.5, 2.0**63, -(2.0**63)]),
    st.text(max_size=4), st.just("[1]"), st.lists(st.integers(0, 3), max_size=2),
    st.dictionaries(st.text(max_size=2), st.booleans(), max_size=2),
)  # fmt: skip


@given(st.lists(st.dictionaries(st.sampled_from("abc"), values), min_size=1, max_size=5))
def test_cells_of_a_row_do_not_depend_on_whether_it_is_new(rows: list[dict[str, Any]]) -> None:
    """Whatever the values are, a row's cells do not depend on the way by which it came."""
    deltas = [
        make_delta(Op.INSERT, "t", f"r{number}", columns, client_id="other", hlc=1)
        for number, columns in enumerate(rows)
    ]
    table, one = (AppTable(1, "t", "t", dict.fromkeys("abcd", "x")) for _ in range(2))
    for made in (table, one):
        made.prepare()
    arrived = Arrived(page(*deltas, cursor=1), "me").tables["t"]
    known: dict[Any, list[Any]] = {}
    for _ in range(2):  # the first time they learn what the columns hold
        known = {
            cells[0]: list(cells)
            for alike in arrived.inserts
            for cells in cells_by_column(table, alike.names, alike.row_ids, alike.values)
        }
        for delta in deltas:
            one.cells(delta.row_id, dict(delta.columns))
    assert table.forms == one.forms

    bare = {delta.row_id for delta in deltas if not delta.columns}
    assert arrived.several.keys() == bare
    assert arrived.columns == {name for row in rows for name in row}
    for delta in deltas:
        if delta.columns:
            cells = known[delta.row_id]
            assert cells == one.cells(delta.row_id, dict(delta.columns))
            assert list(map(type, cells)) == list(map(type, one.cells("", dict(delta.columns))))


def test_booleans_of_new_pulled_rows_read_as_booleans(world: World) -> None:
    other, client = world.client("other"), world.client("a")
    mixed: tuple[dict[str, Any], ...] = (
        {"b": True, "m": "x"},
        {"b": None, "m": True},
        {"b": False, "m": True, "n": 1},
    )
    for number, columns in enumerate(mixed):
        other.insert("todos", f"t{number}", columns).unwrap()
    other.sync().unwrap()
    client.sync().unwrap()

    rows = client.query("SELECT b, m FROM todos ORDER BY _row_id").unwrap()
    assert [(row["b"], row["m"]) for row in rows] == [(True, "x"), (None, 1), (False, 1)]
    assert [type(row["m"]) for row in rows] == [str, bool, bool]
