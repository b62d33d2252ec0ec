"""What every database promises, as tests, and the batches that the suites of databases put.

Inherit `DatabaseContract`, and give it databases::

    class TestMine(DatabaseContract):
        @pytest.fixture
        def make(self) -> Callable[[], DatabaseAdapter]: ...

pytest collects the inherited tests. Each call of ``make`` gives an adapter that has applied
nothing; the fixture closes it. A database that also keeps tables to query inherits
`MaterialisableContract` of `lakesync.testing.materialisable_contract` too. Laws P1-P3, P8, P9, P12:
``docs/spec/databases.md``.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from lakesync.adapters.copying import compare_table, copy_table
from lakesync.adapters.database import ORDINAL_END, PlacedDelta, Position, TableBatch
from lakesync.adapters.memory import MemoryDatabase
from lakesync.core.clock import stamp
from lakesync.core.delta import Op, make_delta, parse
from lakesync.core.merge import as_read, fold, state_of, view
from lakesync.core.schema import Column, TableSchema
from lakesync.errors import Conflict, CursorExpired, SchemaMismatch
from lakesync.result import Err, Ok

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from lakesync.adapters.database import DatabaseAdapter
    from lakesync.core.delta import Delta

    Make = Callable[[], DatabaseAdapter]

# --- batches made of deltas, and the rows they merge to -------------------------------------------


_ROWS: Final = ("r1", "r 2", "é", "\U0001f600")
_CLIENTS: Final = ("c1", "é")
_COLUMNS: Final = ("a", "B", "order")
_PAGES_MAX: Final = 1_000
_VALUES: Final = (None, True, 0, -1.5, "", "O'Brien \\ % \U0001f600", [1, [None]], {"k": {"": 2}})


def new_table() -> str:
    """Return the name of a table that nobody else uses."""
    return f"t{uuid4().hex[:12]}"


def schema(table: str, columns: dict[str, str], **more: Any) -> TableSchema:
    """Make a schema of nullable columns."""
    return TableSchema(table, tuple(Column(name, kind) for name, kind in columns.items()), **more)


def batch(
    table: str,
    deltas: Sequence[Delta],
    *,
    after: int = 0,
    schema: TableSchema | None = None,
    commit_deltas: int = 2,
) -> TableBatch:
    """Make a batch: commits of a few deltas each, behind a stamp."""
    placed = [
        PlacedDelta(Position(after + 1 + number // commit_deltas, number % commit_deltas), delta)
        for number, delta in enumerate(deltas)
    ]
    last = placed[-1].position.commit if placed else after + 1
    return TableBatch(table, after, last, placed, schema)


def numbered(table: str, count: int) -> list[Delta]:
    """Return inserts of rows ``r0``, ``r1`` and so on, one after another."""
    return [
        make_delta(Op.INSERT, table, f"r{n}", {"n": n}, client_id="c", hlc=n + 1)
        for n in range(count)
    ]


def mixed(table: str, seed: int, count: int = 12) -> list[Delta]:
    """Return deltas of few rows, stamps and clients, so that they collide; ties and repeats too."""
    chance = random.Random(seed)  # noqa: S311 - the same deltas each time
    made: list[Delta] = []
    for _ in range(count):
        if made and chance.random() < 0.1:
            made.append(chance.choice(made))
            continue
        op = chance.choice([Op.INSERT, Op.UPDATE, Op.UPDATE, Op.DELETE])
        named = [] if op is Op.DELETE else chance.sample(_COLUMNS, chance.randint(0, 2))
        columns = {name: chance.choice(_VALUES) for name in named}
        row, client, hlc = chance.choice(_ROWS), chance.choice(_CLIENTS), chance.randint(1, 6)
        made.append(make_delta(op, table, row, columns, client_id=client, hlc=hlc))
    return made


def merged(deltas: Iterable[Delta], *, delete_wins: bool = False) -> dict[str, dict[str, Any]]:
    """Return the rows that deltas merge to, by row id, as their table reads them."""
    by_row: dict[str, list[Delta]] = {}
    for delta in deltas:
        by_row.setdefault(delta.row_id, []).append(delta)
    rows = {
        row_id: view(as_read(fold(changes), delete_wins=delete_wins))
        for row_id, changes in by_row.items()
    }
    return {
        row_id: {name: parse(raw) for name, raw in values.items()}
        for row_id, values in rows.items()
        if values is not None
    }


def history(adapter: DatabaseAdapter, table: str, deltas_max: int = 3) -> list[Delta]:
    """Read all of a table's history, page by page: in order, and no page too long."""
    position, pages = Position(), 0
    read: list[Delta] = []
    while True:
        page = adapter.query_deltas_since(table, position, deltas_max).unwrap()
        assert len(page.deltas) <= deltas_max
        places = [placed.position for placed in page.deltas]
        assert places == sorted(place for place in places if place > position)
        read += [delta for _, delta in page.deltas]
        position, pages = page.position, pages + 1
        if not page.has_more:
            return read
        assert pages < _PAGES_MAX, "the history has no end"


# --- the suite ------------------------------------------------------------------------------------


SEEDS: Final = 6
"""Sets of deltas that rows and history are tried with."""
_YEAR_MS: Final = 366 * 86_400_000


class DatabaseContract:
    """The promises. A subclass has the fixture ``make``."""

    def caught_up(self, adapter: DatabaseAdapter) -> None:
        """Do what lets history be forgotten, where others still have to read it."""

    def test_rows_are_those_of_the_merge_and_history_is_what_was_inserted(self, make: Make) -> None:
        """However deltas are cut into batches, and whichever come again."""
        adapter = make()
        for seed in range(SEEDS):
            table = new_table()
            deltas = mixed(table, seed)
            after, cut = 0, seed % len(deltas)
            for part in (deltas[:cut], deltas[cut:]):
                taken = batch(table, part, after=after)
                adapter.insert_deltas(taken).unwrap()
                again = adapter.insert_deltas(taken).unwrap()
                assert (again.deltas, again.rows) == (0, 0)
                after = taken.last

            expected = merged(deltas)
            for row_id in {delta.row_id for delta in deltas}:
                assert adapter.latest_state(table, row_id).unwrap() == expected.get(row_id)
            assert history(adapter, table) == deltas

    def test_where_deletes_win_an_update_behind_a_delete_is_no_row(self, make: Make) -> None:
        """The schema says so; the row is there again once it is inserted."""
        adapter, table = make(), new_table()
        wanted = schema(table, {"n": "number"}, delete_wins=True)
        deltas = [
            make_delta(Op.INSERT, table, "r1", {"n": 1}, client_id="c1", hlc=1),
            make_delta(Op.DELETE, table, "r1", {}, client_id="c1", hlc=2),
            make_delta(Op.UPDATE, table, "r1", {"n": 3}, client_id="c1", hlc=3),
        ]
        adapter.insert_deltas(batch(table, deltas, schema=wanted)).unwrap()
        assert adapter.latest_state(table, "r1").unwrap() is None

        again = [make_delta(Op.INSERT, table, "r1", {}, client_id="c1", hlc=4)]
        adapter.insert_deltas(batch(table, again, after=adapter.mark(table).unwrap())).unwrap()
        assert adapter.latest_state(table, "r1").unwrap() == {"n": 3}

    def test_a_table_without_batches_is_empty(self, make: Make) -> None:
        """It is asked for, and nothing is there: no error, and no table is made."""
        adapter, table = make(), new_table()

        assert adapter.mark(table).unwrap() == 0
        assert adapter.latest_state(table, "r1").unwrap() is None
        assert adapter.query_deltas_since(table, Position(), 10).unwrap().deltas == ()
        assert adapter.rows_after(table, "", 10).unwrap().rows == {}
        assert table not in adapter.tables().unwrap()

    def test_batches_may_come_again_overlap_or_be_empty(self, make: Make) -> None:
        """What is marked is skipped."""
        adapter, table = make(), new_table()
        deltas = numbered(table, 6)
        first, overlapping = batch(table, deltas[:4]), batch(table, deltas)
        assert adapter.insert_deltas(first).unwrap().deltas == 4
        assert adapter.insert_deltas(overlapping).unwrap().deltas == 2
        assert adapter.insert_deltas(first).unwrap().deltas == 0
        empty = batch(table, [], after=3)
        assert adapter.insert_deltas(empty).unwrap().deltas == 0

        assert adapter.mark(table).unwrap() == empty.last
        assert history(adapter, table) == deltas

    def test_a_delta_that_says_nothing_makes_no_row(self, make: Make) -> None:
        """It is history all the same."""
        adapter, table = make(), new_table()
        nothing = make_delta(Op.UPDATE, table, "r1", {}, client_id="c", hlc=6)
        inserted = adapter.insert_deltas(batch(table, [nothing])).unwrap()

        assert (inserted.deltas, inserted.rows) == (1, 0)
        assert adapter.rows_after(table, "", 10).unwrap().rows == {}
        assert history(adapter, table) == [nothing]

    def test_a_batch_waits_for_the_one_before_it(self, make: Make) -> None:
        """It is an `Err`, and nothing is changed."""
        adapter, table = make(), new_table()
        result = adapter.insert_deltas(batch(table, numbered(table, 1), after=5))

        assert isinstance(result, Err)
        assert isinstance(result.error, Conflict)
        assert adapter.mark(table).unwrap() == 0

    def test_the_newest_schema_is_kept_and_a_refused_one_changes_nothing(self, make: Make) -> None:
        """Schemas come with batches, which may be late; a type may be refused."""
        adapter, table = make(), new_table()
        first = schema(table, {"n": "number"})
        second = schema(table, {"n": "number", "s": "string"}, version=2)
        for each in (first, second, first):
            adapter.ensure_schema(each).unwrap()
        adapter.insert_deltas(batch(table, numbered(table, 2), schema=first)).unwrap()
        assert adapter.tables().unwrap()[table] == second

        answer = adapter.ensure_schema(schema(table, {"n": "boolean"}, version=3))
        if isinstance(answer, Err):
            assert isinstance(answer.error, SchemaMismatch)
            assert adapter.tables().unwrap()[table] == second
        assert adapter.latest_state(table, "r1").unwrap() == {"n": 1}

    def test_rows_are_read_in_pages_in_the_order_of_their_bytes(self, make: Make) -> None:
        """Whatever the database's own order of text is."""
        adapter, table = make(), new_table()
        ids = ["b", "a", "é", "\uffee", "\U0001f600", "B", "a ", "a\x00"]
        deltas = [make_delta(Op.INSERT, table, row, {}, client_id="c", hlc=1) for row in ids]
        adapter.insert_deltas(batch(table, deltas)).unwrap()
        read, after = list[str](), ""
        while True:
            page = adapter.rows_after(table, after, 3).unwrap()
            read += page.rows
            after = read[-1]
            if not page.has_more:
                break

        assert read == sorted(ids, key=str.encode)
        wanted = {delta.row_id: state_of(delta) for delta in deltas if delta.row_id in {"B", "é"}}
        assert adapter.rows_of(table, ["B", "é", "none"]).unwrap() == wanted
        assert adapter.rows_of(table, []).unwrap() == {}

    def test_what_is_forgotten_of_history_is_reported_and_rows_stay(self, make: Make) -> None:
        """A reader that requests it, or has read part of a commit, gets an error, not gaps."""
        adapter, table = make(), new_table()
        deltas = numbered(table, 6)
        adapter.insert_deltas(batch(table, deltas)).unwrap()
        self.caught_up(adapter)
        part = adapter.query_deltas_since(table, Position(), 3).unwrap().position
        adapter.forget_history(table, 2).unwrap()
        for since in (Position(), part):
            expired = adapter.query_deltas_since(table, since, 10)
            assert isinstance(expired, Err)
            assert isinstance(expired.error, CursorExpired)

        behind = adapter.query_deltas_since(table, Position(2, ORDINAL_END), 10).unwrap().deltas
        assert [delta for _, delta in behind] == deltas[4:]
        assert adapter.latest_state(table, "r0").unwrap() == {"n": 0}
        assert adapter.mark(table).unwrap() == 3

    def test_what_is_years_old_may_be_forgotten_and_nothing_else_changes(self, make: Make) -> None:
        """A reader behind the remaining history gets an error; rows, marks and repeats stay."""
        adapter, table = make(), new_table()
        deltas = mixed(table, SEEDS)
        after = 0
        for year in range(4):
            part = deltas[year * 3 : year * 3 + 3]
            taken = replace(batch(table, part, after=stamp(year * _YEAR_MS)), after=after)
            assert adapter.insert_deltas(taken).unwrap().deltas == len(part)
            again = adapter.insert_deltas(taken).unwrap()
            assert (again.deltas, again.rows) == (0, 0)
            # What was brought last is never too old for who had all before it.
            behind = adapter.query_deltas_since(table, Position(after, ORDINAL_END), 10).unwrap()
            assert [delta for _, delta in behind.deltas] == part
            after = taken.last

        expected = merged(deltas)
        for row_id in {delta.row_id for delta in deltas}:
            assert adapter.latest_state(table, row_id).unwrap() == expected.get(row_id)
        assert adapter.mark(table).unwrap() == after
        match adapter.query_deltas_since(table, Position(), 100):
            case Err(error):
                assert isinstance(error, CursorExpired)
            case Ok(whole):
                assert [delta for _, delta in whole.deltas] == deltas
        target = MemoryDatabase()
        assert copy_table(adapter, target, table).unwrap().until == after
        assert compare_table(adapter, target, table).unwrap().is_equal

    def test_it_is_copied_from_and_to_and_a_copy_goes_on(self, make: Make) -> None:
        """By its history where that is there, by its rows where it is forgotten."""
        for is_source in (True, False):
            for is_forgotten in (True, False):
                self._copied(make(), is_source=is_source, is_forgotten=is_forgotten)

    def _copied(self, adapter: DatabaseAdapter, *, is_source: bool, is_forgotten: bool) -> None:
        table, other = new_table(), MemoryDatabase()
        source: DatabaseAdapter = adapter if is_source else other
        target: DatabaseAdapter = other if is_source else adapter
        wanted = schema(table, {"n": "number"})
        source.ensure_schema(wanted).unwrap()
        deltas = numbered(table, 9)
        deltas.append(make_delta(Op.DELETE, table, "r3", client_id="c", hlc=50))
        source.insert_deltas(batch(table, deltas[:6], schema=wanted)).unwrap()
        if not is_forgotten:
            assert copy_table(source, target, table, until=2).unwrap().until == 2
        source.insert_deltas(batch(table, deltas[6:], after=3, schema=wanted)).unwrap()
        if is_forgotten:
            self.caught_up(source)
            source.forget_history(table, 4).unwrap()

        assert not compare_table(source, target, table).unwrap().is_equal
        copied = copy_table(source, target, table).unwrap()
        assert copied.until == source.mark(table).unwrap() == target.mark(table).unwrap()
        compared = compare_table(source, target, table).unwrap()
        assert (compared.is_equal, compared.rows) == (True, 9)
        assert compared.checksum == compare_table(target, source, table).unwrap().checksum
        assert copy_table(source, target, table).unwrap().deltas == 0
        assert target.tables().unwrap()[table] == wanted
        if not is_forgotten:
            assert history(target, table) == deltas
