"""What every destination of deliveries promises, as tests: inherit `FillableContract`.

::

    class TestMine(FillableContract):
        @pytest.fixture
        def make(self) -> Callable[[], DestinationDatabase]: ...

Each call of ``make`` gives an adapter that has applied nothing, as for
`lakesync.testing.database_contract`. Law P11: ``docs/spec/databases.md``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lakesync.adapters.database import ORDINAL_END, PlacedDelta, Position, RowImages, TableBatch
from lakesync.core.delta import Op, make_delta
from lakesync.core.merge import state_of
from lakesync.errors import Conflict, CursorExpired
from lakesync.result import Err
from lakesync.testing.database_contract import new_table, numbered

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.core.merge import RowState

    Make = Callable[[], Any]


def images(
    table: str, span: tuple[int, int], rows: dict[str, RowState | None], *, is_last: bool = True
) -> RowImages:
    """Return rows of a table that hold all commits of a span."""
    return RowImages(table, *span, rows, is_last=is_last)


class FillableContract:
    """The promises. A subclass has the fixture ``make``."""

    def test_rows_are_merged_and_removed_with_the_mark(self, make: Make) -> None:
        """Once the mark has come so far, nothing more."""
        adapter, table = make(), new_table()
        states = {f"r{n}": state_of(delta) for n, delta in enumerate(numbered(table, 3))}
        deleted = state_of(make_delta(Op.DELETE, table, "r9", client_id="c", hlc=9))
        filled = images(table, (0, 10), {**states, "r9": deleted}, is_last=False)

        assert adapter.put_rows(filled).unwrap().rows == 3, (
            "a deleted row that was never there is none"
        )
        assert adapter.mark(table).unwrap() == 0
        assert adapter.put_rows(filled).unwrap().rows == 0
        assert adapter.put_rows(images(table, (0, 10), {})).unwrap().rows == 0
        assert adapter.mark(table).unwrap() == 10
        assert adapter.put_rows(images(table, (0, 10), {"r0": None})).unwrap().rows == 0, "too late"
        assert (
            adapter.put_rows(images(table, (10, 12), {"r0": None, "rx": None})).unwrap().rows == 1
        )
        assert list(adapter.rows_after(table, "", 10).unwrap().rows) == ["r1", "r2"]
        assert adapter.latest_state(table, "r0").unwrap() is None
        again = images(table, (12, 13), {"r0": states["r0"]})
        assert adapter.put_rows(again).unwrap().rows == 1
        assert adapter.latest_state(table, "r0").unwrap() == {"n": 0}

    def test_of_a_row_whose_deletion_was_forgotten_nothing_old_remains(self, make: Make) -> None:
        """What is older than the horizon is only certain where the row still has it."""
        adapter, table = make(), new_table()
        old = make_delta(Op.INSERT, table, "r", client_id="c", hlc=3, columns={"n": 1, "gone": 1})
        new = make_delta(Op.INSERT, table, "r", client_id="c", hlc=9, columns={"n": 2})
        adapter.put_rows(images(table, (0, 10), {"r": state_of(old)})).unwrap()
        image = replace(images(table, (10, 11), {"r": state_of(new)}), horizon=5)
        adapter.put_rows(image).unwrap()

        assert adapter.latest_state(table, "r").unwrap() == {"n": 2}

    def test_rows_wait_for_the_batch_before_them_and_their_history_is_said_to_be_gone(
        self, make: Make
    ) -> None:
        """Batches go on behind them."""
        adapter, table = make(), new_table()
        early = adapter.put_rows(images(table, (5, 6), {}))
        adapter.put_rows(images(table, (0, 6), {})).unwrap()
        late = adapter.query_deltas_since(table, Position(), 10)
        [delta] = numbered(table, 1)
        batch = TableBatch(table, 6, 7, [PlacedDelta(Position(7, 0), delta)])

        assert isinstance(early, Err)
        assert isinstance(early.error, Conflict)
        assert isinstance(late, Err)
        assert isinstance(late.error, CursorExpired)
        assert adapter.insert_deltas(batch).unwrap().deltas == 1
        behind = adapter.query_deltas_since(table, Position(6, ORDINAL_END), 10).unwrap()
        assert len(behind.deltas) == 1

    def test_a_table_that_begins_anew_keeps_its_rows(self, make: Make) -> None:
        """Its history and its mark are gone, and it is filled again."""
        adapter, table = make(), new_table()
        deltas = [PlacedDelta(Position(n + 1, 0), one) for n, one in enumerate(numbered(table, 3))]
        adapter.insert_deltas(TableBatch(table, 0, 3, deltas)).unwrap()
        adapter.restart(table).unwrap()

        assert adapter.mark(table).unwrap() == 0
        assert len(adapter.rows_after(table, "", 10).unwrap().rows) == 3
        assert isinstance(adapter.query_deltas_since(table, Position(), 10), Err)
        adapter.put_rows(images(table, (0, 3), {"r1": None})).unwrap()
        assert adapter.mark(table).unwrap() == 3
        assert list(adapter.rows_after(table, "", 10).unwrap().rows) == ["r0", "r2"]

    def test_it_answers_and_refuses_no_row_of_a_table_that_is_not_there(self, make: Make) -> None:
        """Asking makes nothing."""
        adapter, table = make(), new_table()
        adapter.answers().unwrap()

        assert adapter.dead_letters(table).unwrap() == ()
        assert adapter.tables().unwrap() == {}
