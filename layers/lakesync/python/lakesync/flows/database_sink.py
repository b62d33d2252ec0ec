"""A database as the destination of a polled flow: accepts pushes as the gateway does.

Each push is one commit in each table that it changes, behind the table's mark. Deltas without
effect are left out, so a repeated page is not written again. Laws Y3, Y5, Y8:
``docs/spec/flows.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lakesync.adapters.database import PlacedDelta, Position, SideBySide, TableBatch
from lakesync.connectors.storage import Brought
from lakesync.core.clock import stamp
from lakesync.core.merge import EMPTY, apply, view
from lakesync.core.messages import DeltaOutcome, OutcomeKind, PushReceipt
from lakesync.errors import ConstraintViolated, Contention

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.adapters.database import DatabaseAdapter, DeadLetter
    from lakesync.adapters.row_images import DestinationDatabase
    from lakesync.connectors.storage import TellsBrought
    from lakesync.core.delta import Delta
    from lakesync.core.merge import RowState
    from lakesync.core.messages import Push
    from lakesync.core.schema import TableSchema
    from lakesync.ports import WallClock

_BROUGHT_ROWS: Final = 500


class DatabaseSink:
    """Writes pushes to a database.

    Args:
        database: the destination; no other writer changes these tables.
        schema_of: gives a table's schema in the destination, None without one.
        wall_clock: the time, for commit stamps.
        side_by_side: whether tasks of one job write these tables at once, each its own rows.
    """

    def __init__(
        self,
        database: DestinationDatabase,
        schema_of: Callable[[str], TableSchema | None],
        *,
        wall_clock: WallClock,
        side_by_side: bool = False,
    ) -> None:
        self._side_by_side = side_by_side
        self._database = database
        self._schema_of = schema_of
        self._wall_clock = wall_clock

    def push(self, push: Push) -> PushReceipt:
        """Make deltas durable in the database. Safe to repeat.

        Raises:
            LakeSyncError: the database refused; what was written to other tables stays.
        """
        tables: dict[str, list[tuple[int, Delta]]] = {}
        for index, delta in push.deltas:
            tables.setdefault(delta.table, []).append((index, delta))
        refused = [
            outcome for table, items in tables.items() for outcome in self._put(table, items)
        ]
        return PushReceipt(0, len(push.deltas) - len(refused), tuple(refused))

    def fence(self, table: str) -> None:
        """Move a table's mark, so that no earlier batch is accepted any more. Safe to repeat.

        This waits for a transaction that is about to commit, as that has locked the mark. So later
        reads see its changes.

        Raises:
            LakeSyncError: the database refused.
        """
        mark = self._database.mark(table).unwrap()
        last = max(mark + 1, stamp(self._wall_clock()))
        batch = TableBatch(table, mark, last, (), self._schema_of(table))
        self._database.insert_deltas(batch).unwrap()

    def _put(self, table: str, items: list[tuple[int, Delta]]) -> list[DeltaOutcome]:
        row_ids = list({delta.row_id: None for _, delta in items})
        states = dict(self._database.rows_of(table, row_ids).unwrap())
        fresh = [delta for _, delta in items if _changes(states, delta)]
        letters = (
            self._insert(table, fresh) if fresh else self._database.dead_letters(table).unwrap()
        )
        reasons = {letter.row_id: letter.reason for letter in letters}
        return [
            DeltaOutcome(
                index,
                delta.delta_id,
                OutcomeKind.REFUSED,
                ConstraintViolated(reasons[delta.row_id]),
            )
            for index, delta in items
            if delta.row_id in reasons
        ]

    def _insert(self, table: str, deltas: list[Delta]) -> tuple[DeadLetter, ...]:
        database, apart = self._database, None
        if self._side_by_side and isinstance(database, SideBySide):
            apart = database
        mark = 0 if apart else database.mark(table).unwrap()
        last = max(mark + 1, stamp(self._wall_clock()))
        placed = [PlacedDelta(Position(last, place), delta) for place, delta in enumerate(deltas)]
        batch = TableBatch(table, mark, last, placed, self._schema_of(table))
        insert = apart.insert_apart if apart else database.insert_deltas
        inserted = insert(batch).unwrap()
        if inserted.deltas < len(placed):
            raise Contention(
                f"another writer just wrote {table}; repeat the operation", retry_after_s=1
            )
        return inserted.dead_letters


def _changes(states: dict[str, RowState], delta: Delta) -> bool:
    """Return whether a delta changes its row, and store the row's new state in ``states``."""
    before = states.get(delta.row_id, EMPTY)
    after = states[delta.row_id] = apply(before, delta)
    return after is not before


def brought_to(database: DatabaseAdapter) -> TellsBrought:
    """Return a listing of the rows that a flow delivered: all rows of its own database."""

    def brought(table: str, place: str) -> Brought:
        page = database.rows_after(table, place, _BROUGHT_ROWS).unwrap()
        shown = tuple(row_id for row_id, state in page.rows.items() if view(state) is not None)
        return Brought(shown, max(page.rows, key=str.encode) if page.has_more else "")

    return brought
