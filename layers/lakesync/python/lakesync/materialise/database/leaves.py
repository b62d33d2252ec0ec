"""Writes the rows of a state table: rewrites each file that a changed row belongs to, and no other.

Files are separated by the ids of their rows, and split when they grow large. So a changed row costs
one file, however large the table is, and one file at a time is in memory.
"""

from __future__ import annotations

import base64
from bisect import bisect_right
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from lakesync.adapters.sql.values import Unfit, sql_value
from lakesync.core.merge import RowState, view
from lakesync.materialise.data_files import Part, data_files
from lakesync.materialise.database.schemas import REFUSED
from lakesync.materialise.database.state_files import read_as
from lakesync.materialise.shape import ID
from lakesync.materialise.state_rows import row_of
from lakesync.wire.row_state import encode_row_state

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime

    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata

    from lakesync.adapters.sql.definition import Definition
    from lakesync.core.clock import Stamp
    from lakesync.core.values import CanonicalJson
    from lakesync.materialise.columns import LakeColumn
    from lakesync.materialise.database.state_files import StateFiles

FILE_ROWS_MAX: Final = 20_000
"""Rows of one file: as many are in memory, and rewritten when one of them changes."""


class Leaves:
    """One write of a state table.

    Args:
        table: the table as it was loaded.
        metadata: the same with the columns that it is to have.
        files: reads it.
        definition: which columns there are.
        columns: the same, as the table has them.
        commit: the mark that comes with the rows.
        at: when the write was begun.
    """

    def __init__(
        self,
        table: Table,
        metadata: TableMetadata,
        files: StateFiles,
        definition: Definition,
        columns: Sequence[LakeColumn],
        commit: Stamp,
        at: datetime,
    ) -> None:
        self._table = table
        self._metadata = metadata
        self._files = files
        self._definition = definition
        self._columns = columns
        self._commit = commit
        self._at = at
        self.made: list[DataFile] = []
        """The new files."""
        self.replaced: list[DataFile] = []
        """Those in whose place they are."""
        self.refused: dict[str, str] = {}
        """Why, by row id."""

    def write(self, states: Mapping[str, RowState | None], *, anew: bool) -> None:
        """Put the files that rows belong to.

        Args:
            states: of the rows that change; None for one that is to leave no trace.
            anew: whether all others are written anew too.
        """
        by_place = self._by_place(states)
        last = len(self._files.tasks) - 1
        places = range(last + 1) if anew else sorted(by_place)
        for place in places:
            if place >= 0:
                self._write_leaf(place, by_place.get(place, {}), anew=anew, is_last=place == last)
        if by_place.get(-1):
            self._cut(self._rows(by_place[-1], {}), is_last=True)

    def _by_place(
        self, states: Mapping[str, RowState | None]
    ) -> dict[int, dict[str, RowState | None]]:
        """Return rows by the file that they are in, or belong to; -1 where there is none."""
        there = self._files.holding(states)
        by_place: dict[int, dict[str, RowState | None]] = {}
        for row_id, state in states.items():
            near = min(max(bisect_right(self._files.least, row_id.encode()) - 1, 0),
                       len(self._files.tasks) - 1)  # fmt: skip
            if row_id in there or state is not None:
                by_place.setdefault(there.get(row_id, near), {})[row_id] = state
        return by_place

    def _write_leaf(
        self, place: int, put: Mapping[str, RowState | None], *, anew: bool, is_last: bool
    ) -> None:
        task = self._files.tasks[place]
        before = self._files.whole(task)
        is_put = pc.is_in(before[ID].cast(pa.large_string()),
                          value_set=pa.array(put, pa.large_string()))  # fmt: skip
        if anew:
            stay: Mapping[str, RowState | None] = {
                row[ID]: self._files.state(row)
                for row in before.filter(pc.invert(is_put)).to_pylist()
            }
            rows = self._rows({**stay, **put}, {})
        else:
            shown = {row[ID]: self._files.shown(row) for row in before.filter(is_put).to_pylist()}
            whole = read_as(self._table, self._metadata, task)
            kept = pc.invert(pc.is_in(whole[ID].cast(pa.large_string()),
                                      value_set=pa.array(put, pa.large_string())))  # fmt: skip
            rows = pa.concat_tables([whole.filter(kept), self._rows(put, shown)])
        self.replaced.append(task.file)
        self._cut(rows, is_last=is_last)

    def _rows(
        self, states: Mapping[str, RowState | None], shown: Mapping[str, RowState]
    ) -> pa.Table:
        made = [
            self._row(row_id, state, shown.get(row_id))
            for row_id, state in states.items()
            if state is not None
        ]
        return pa.Table.from_pylist(made, schema=self._metadata.schema().as_arrow())

    def _row(self, row_id: str, state: RowState, shown: RowState | None) -> dict[str, Any]:
        """Return a row as the table has it: where it is refused, as it was shown, or hidden."""
        reason, kept = _refusal(self._definition, state), None
        if reason:
            self.refused[row_id] = reason
            kept = base64.b64encode(encode_row_state(state)).decode()
            state = shown or RowState(0, max(state.alive, state.deleted), {})
        names = {column.written: column.name for column in self._columns}
        registers = {names[written]: one for written, one in state.columns.items()}
        schema = self._definition.schema
        row = row_of(
            row_id,
            RowState(state.alive, state.deleted, registers),
            self._columns,
            self._commit,
            self._at,
            delete_wins=bool(schema and schema.delete_wins),
        )
        return {**row, REFUSED: kept}

    def _cut(self, rows: pa.Table, *, is_last: bool) -> None:
        """Put rows into as few files as may be: even ones, or full ones where rows are appended."""
        if not rows.num_rows:
            return
        rows = rows.take(pc.sort_indices(rows, sort_keys=[(ID, "ascending")]))
        files = -(-rows.num_rows // FILE_ROWS_MAX)
        size = FILE_ROWS_MAX if is_last else -(-rows.num_rows // files)
        parts = [Part(None, rows.slice(at, size)) for at in range(0, rows.num_rows, size)]
        for part in parts:
            self.made += data_files(self._metadata, [part], self._table.io)


def _refusal(definition: Definition, state: RowState) -> str:
    """Return why a row cannot be shown as it is; empty if it can."""
    values = view(definition.as_read(state))
    return "" if values is None else next(_unfit(definition, values), "")


def _unfit(definition: Definition, values: Mapping[str, CanonicalJson]) -> Iterator[str]:
    for name, text in values.items():
        kind = definition.columns[name]
        try:
            sql_value("json" if kind == "null" else kind, text)
        except Unfit as error:
            yield f"column {name}: {error}"
