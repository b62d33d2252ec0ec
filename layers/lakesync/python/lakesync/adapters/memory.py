"""A database in memory: for tests, and the shortest example of a `DestinationDatabase`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lakesync.adapters.database import (
    DeltaPage,
    Inserted,
    NothingToQuery,
    PlacedDelta,
    Position,
    RowPage,
    TableBatch,
)
from lakesync.adapters.ledger_database import (
    check_history,
    delta_page,
    merged_images,
    missing_batch,
    row_page,
    values_of,
)
from lakesync.core.merge import EMPTY, RowState, apply
from lakesync.errors import CursorExpired
from lakesync.result import Err, Ok

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lakesync.adapters.database import RowImages
    from lakesync.core.clock import Stamp
    from lakesync.core.schema import TableSchema
    from lakesync.errors import LakeSyncError
    from lakesync.result import Result


@dataclass
class _Table:
    schema: TableSchema | None = None
    mark: Stamp = 0
    forgotten: Stamp = 0
    history: list[PlacedDelta] = field(default_factory=list)
    rows: dict[str, RowState] = field(default_factory=dict)


class MemoryDatabase(NothingToQuery):
    """`lakesync.adapters.database.DestinationDatabase` in memory. Not for several threads."""

    def __init__(self) -> None:
        self._tables: dict[str, _Table] = {}

    def ensure_schema(self, schema: TableSchema) -> Result[None, LakeSyncError]:
        table = self._table(schema.table)
        if table.schema is None or table.schema.version < schema.version:
            table.schema = schema
        return Ok(None)

    def insert_deltas(self, batch: TableBatch) -> Result[Inserted, LakeSyncError]:
        table = self._table(batch.table)
        if table.mark < batch.after and table.mark < batch.last:
            return Err(missing_batch(batch, table.mark))
        if batch.schema:
            self.ensure_schema(batch.schema)
        fresh = [placed for placed in batch.deltas if placed.position.commit > table.mark]
        places: dict[Stamp, int] = {}
        changed = set()
        for (commit, _), delta in fresh:
            place = places[commit] = places.get(commit, -1) + 1
            table.history.append(PlacedDelta(Position(commit, place), delta))
            before = table.rows.get(delta.row_id, EMPTY)
            after = apply(before, delta)
            if after is not before:  # an empty delta of a missing row creates none
                table.rows[delta.row_id] = after
                changed.add(delta.row_id)
        table.mark = max(table.mark, batch.last)
        return Ok(Inserted(len(fresh), len(changed)))

    def put_rows(self, images: RowImages) -> Result[Inserted, LakeSyncError]:
        table = self._table(images.table)
        if table.mark >= images.last:
            return Ok(Inserted())
        if table.mark < images.after:
            return Err(missing_batch(images, table.mark))
        if images.schema:
            self.ensure_schema(images.schema)
        changed, gone = merged_images(images, table.rows)
        table.rows |= changed
        for row_id in gone:
            del table.rows[row_id]
        if images.is_last:
            table.mark = images.last
            self.forget_history(images.table, images.last)
        return Ok(Inserted(0, len(changed) + len(gone)))

    def mark(self, table: str) -> Result[Stamp, LakeSyncError]:
        return Ok(self._peek(table).mark)

    def query_deltas_since(
        self, table: str, since: Position, deltas_max: int
    ) -> Result[DeltaPage, LakeSyncError]:
        try:
            check_history(table, since, self._peek(table).forgotten)
        except CursorExpired as error:
            return Err(error)
        behind = [placed for placed in self._peek(table).history if placed.position > since]
        return Ok(delta_page(behind, since, deltas_max))

    def latest_state(
        self, table: str, row_id: str
    ) -> Result[Mapping[str, Any] | None, LakeSyncError]:
        known = self._peek(table)
        return Ok(values_of(known.rows.get(row_id, EMPTY), known.schema))

    def tables(self) -> Result[Mapping[str, TableSchema | None], LakeSyncError]:
        return Ok({name: table.schema for name, table in sorted(self._tables.items())})

    def rows_after(self, table: str, row_id: str, rows_max: int) -> Result[RowPage, LakeSyncError]:
        ordered = sorted(self._peek(table).rows.items(), key=lambda row: row[0].encode())
        behind = {row: state for row, state in ordered if row.encode() > row_id.encode()}
        return Ok(row_page(behind, rows_max))

    def row_ahead(self, table: str, row_id: str, rows: int) -> Result[str, LakeSyncError]:
        """Return the id of the row so many rows behind another; empty if there are fewer."""
        behind = list(self.rows_after(table, row_id, rows).unwrap().rows)
        return Ok(behind[-1] if len(behind) == rows else "")

    def insert_apart(self, batch: TableBatch) -> Result[Inserted, LakeSyncError]:
        mark = self._peek(batch.table).mark
        last = max(mark + 1, batch.last)
        deltas = [PlacedDelta(Position(last, at), one.delta) for at, one in enumerate(batch.deltas)]
        return self.insert_deltas(TableBatch(batch.table, mark, last, deltas, batch.schema))

    def rows_of(
        self, table: str, row_ids: Sequence[str]
    ) -> Result[Mapping[str, RowState], LakeSyncError]:
        rows = self._peek(table).rows
        return Ok({row_id: rows[row_id] for row_id in row_ids if row_id in rows})

    def forget_history(self, table: str, until: Stamp) -> Result[None, LakeSyncError]:
        known = self._peek(table)
        known.forgotten = max(known.forgotten, min(until, known.mark))
        known.history = [
            placed for placed in known.history if placed.position.commit > known.forgotten
        ]
        return Ok(None)

    def restart(self, table: str) -> Result[None, LakeSyncError]:
        known = self._table(table)
        self.forget_history(table, known.mark)
        known.mark = 0
        return Ok(None)

    def answers(self) -> Result[None, LakeSyncError]:
        return Ok(None)

    def close(self) -> None:
        """Do nothing: what is in memory stays."""

    def _table(self, name: str) -> _Table:
        return self._tables.setdefault(name, _Table())

    def _peek(self, name: str) -> _Table:
        return self._tables.get(name) or _Table()
