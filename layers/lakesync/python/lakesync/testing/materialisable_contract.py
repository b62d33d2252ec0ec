"""What every keeper of tables to query promises, as tests: inherit `MaterialisableContract`.

::

    class TestMine(MaterialisableContract):
        @pytest.fixture
        def destination(self) -> MyDestination: ...

A destination is a database under test, whose tables are read by its own means, as its users read
them. Laws P1, P6, P7: ``docs/spec/databases.md``.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, Protocol

from lakesync.core.delta import Op, make_delta
from lakesync.errors import SchemaMismatch
from lakesync.result import Err
from lakesync.testing.database_contract import batch, merged, mixed, new_table, schema

if TYPE_CHECKING:
    from lakesync.core.delta import Delta

_LATER: Final = 1_700_000_000_000 << 16


class TableDestination(Protocol):
    """A database under test; many tests share it, each with tables of its own."""

    def adapter(self) -> Any:
        """Return an adapter, `DatabaseAdapter` and `Materialisable`, of a gateway that is new."""
        ...

    def rows(self, table: str, *columns: str) -> dict[str, tuple[Any, ...]]:
        """Read columns of a table to query, by row id; an empty tuple if there are none."""
        ...

    def set_props(self, table: str, text: str) -> None:
        """Set every row's ``props`` to some JSON, as whoever else uses the database."""
        ...


def _put(table: str, row: str, columns: dict[str, object], hlc: int = 1) -> Delta:
    return make_delta(Op.INSERT, table, row, columns, client_id="c", hlc=hlc)


class MaterialisableContract:
    """The promises. A subclass has the fixture ``destination``."""

    def test_the_rows_there_are_those_of_the_merge(self, destination: TableDestination) -> None:
        """Each row that exists, and no other."""
        for seed in range(3):
            table = new_table()
            deltas = mixed(table, seed)
            adapter = destination.adapter()
            adapter.insert_deltas(batch(table, deltas[:5])).unwrap()
            after = adapter.mark(table).unwrap()
            adapter.insert_deltas(batch(table, deltas[5:], after=after)).unwrap()

            assert adapter.dead_letters(table).unwrap() == ()
            assert destination.rows(table).keys() == merged(deltas).keys()

    def test_columns_have_their_types(self, destination: TableDestination) -> None:
        """Numbers are numbers there, text is text, whatever is in it."""
        adapter, table = destination.adapter(), new_table()
        kinds = {"s": "string", "n": "number", "b": "boolean", "i": "integer"}
        text = "Brød \\ ' \" %s \U0001f600"
        columns: dict[str, object] = {"s": text, "n": 0.1, "b": True, "i": "9223372036854775807"}
        deltas = [_put(table, "r1", columns)]
        adapter.insert_deltas(batch(table, deltas, schema=schema(table, kinds))).unwrap()

        assert destination.rows(table, *kinds) == {"r1": (text, 0.1, True, 2**63 - 1)}

    def test_columns_are_added_and_typed_later(self, destination: TableDestination) -> None:
        """With every value that they should have had."""
        adapter, table = destination.adapter(), new_table()
        first = schema(table, {"s": "string"})
        deltas = [_put(table, "r1", {"s": "x", "late": 12})]
        adapter.insert_deltas(batch(table, deltas, schema=first)).unwrap()
        typed = schema(table, {"s": "string", "late": "number", "more": "string"}, version=2)
        deltas = [_put(table, "r2", {"more": "y"})]
        adapter.insert_deltas(batch(table, deltas, after=1, schema=typed)).unwrap()

        rows = destination.rows(table, "s", "late", "more")
        assert rows == {"r1": ("x", 12.0, None), "r2": (None, None, "y")}

    def test_decimals_widen_and_a_type_that_cannot_become_another_is_refused(
        self, destination: TableDestination
    ) -> None:
        """The refused schema changes nothing, and is `SchemaMismatch`."""
        adapter, table = destination.adapter(), new_table()
        narrow = schema(table, {"d": "decimal(5,2)"})
        deltas = [_put(table, "r1", {"d": "999.99"})]
        adapter.insert_deltas(batch(table, deltas, schema=narrow)).unwrap()
        wide = schema(table, {"d": "decimal(9,2)"}, version=2)
        deltas = [_put(table, "r2", {"d": "1234567.89"})]
        adapter.insert_deltas(batch(table, deltas, after=1, schema=wide)).unwrap()
        refused = adapter.ensure_schema(schema(table, {"d": "string"}, version=3))

        assert isinstance(refused, Err)
        assert isinstance(refused.error, SchemaMismatch)
        wanted = {"r1": (Decimal("999.99"),), "r2": (Decimal("1234567.89"),)}
        assert destination.rows(table, "d") == wanted

    def test_deleted_rows_go_or_are_marked(self, destination: TableDestination) -> None:
        """As the schema says; a row that comes back is there as any other."""
        for soft in (True, False):
            adapter, table = destination.adapter(), new_table()
            wanted = schema(table, {"n": "number"}, soft_delete=soft)
            adapter.insert_deltas(batch(table, [_put(table, "r1", {"n": 1})], schema=wanted))
            gone = make_delta(Op.DELETE, table, "r1", client_id="c", hlc=_LATER)
            adapter.insert_deltas(batch(table, [gone], after=1, schema=wanted)).unwrap()

            rows = destination.rows(table, "n", "deleted_at")
            assert list(rows) == (["r1"] if soft else [])
            assert not [row for row, (_, deleted_at) in rows.items() if deleted_at is None]
            back = _put(table, "r1", {"n": 2}, _LATER + 1)
            adapter.insert_deltas(batch(table, [back], after=2, schema=wanted)).unwrap()
            assert destination.rows(table, "n", "deleted_at") == {"r1": (2.0, None)}

    def test_props_are_never_touched(self, destination: TableDestination) -> None:
        """Neither by a batch, nor where the table is written anew."""
        adapter, table = destination.adapter(), new_table()
        wanted = schema(table, {"n": "number"})
        adapter.insert_deltas(batch(table, [_put(table, "r1", {"n": 1})], schema=wanted)).unwrap()
        destination.set_props(table, '{"mine": 1}')
        change = _put(table, "r1", {"n": 2}, 2)
        adapter.insert_deltas(batch(table, [change], after=1, schema=wanted)).unwrap()
        assert adapter.rewrite(table).unwrap() == 1

        [(number, props)] = destination.rows(table, "n", "props").values()
        assert number == 2.0
        assert "mine" in str(props)

    def test_a_refused_row_harms_no_other_and_stays_as_it_was(
        self, destination: TableDestination
    ) -> None:
        """It is a dead letter with its newest state, until that fits."""
        adapter, table = destination.adapter(), new_table()
        wanted = schema(table, {"n": "integer", "s": "string"})
        deltas = [_put(table, "r1", {"n": 1, "s": "x"})]
        adapter.insert_deltas(batch(table, deltas, schema=wanted)).unwrap()
        deltas = [
            _put(table, "r1", {"n": "no number", "s": "newer"}, 2),
            _put(table, "r2", {"n": 2}),
            _put(table, "r3", {"n": "none either"}),
        ]
        inserted = adapter.insert_deltas(batch(table, deltas, after=1, schema=wanted)).unwrap()

        refused = {letter.row_id: letter.reason for letter in inserted.dead_letters}
        assert refused.keys() == {"r1", "r3"}
        assert all("n" in reason for reason in refused.values())
        assert {one.row_id for one in adapter.dead_letters(table).unwrap()} == {"r1", "r3"}
        assert destination.rows(table, "n", "s") == {"r1": (1, "x"), "r2": (2, None)}
        assert adapter.latest_state(table, "r1").unwrap() == {"n": "no number", "s": "newer"}
        self._mended(destination, adapter, table)

    def _mended(self, destination: TableDestination, adapter: Any, table: str) -> None:
        after = adapter.mark(table).unwrap()
        wanted = schema(table, {"n": "integer", "s": "string"})
        deltas = [
            _put(table, "r1", {"n": 5}, 3),
            make_delta(Op.DELETE, table, "r3", client_id="c", hlc=3),
        ]
        adapter.insert_deltas(batch(table, deltas, after=after, schema=wanted)).unwrap()

        assert adapter.dead_letters(table).unwrap() == ()
        assert destination.rows(table, "n", "s") == {"r1": (5, "newer"), "r2": (2, None)}
