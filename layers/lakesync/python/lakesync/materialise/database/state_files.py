"""Reads the rows of a state table: by their ids, and in their order.

A file whose bounds exclude a row is not read. Small files are read whole and cached, as files are
immutable; larger ones are filtered while they are read.
"""

from __future__ import annotations

import base64
from bisect import bisect_right
from collections import OrderedDict
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan

from lakesync.core.merge import RowState
from lakesync.materialise.database.expressions import behind, between, one_of
from lakesync.materialise.database.schemas import REFUSED
from lakesync.materialise.iceberg_table import IcebergTable, own_columns
from lakesync.materialise.shape import CLIENT, HLC, ID, IS_DELETED, STAMPS, TEXTS
from lakesync.materialise.state_rows import state_in
from lakesync.wire.row_state import decode_row_state

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyiceberg.table import FileScanTask, Table

REMEMBERED_FILE_ROWS: Final = 50_000
"""Rows up to which a file is read whole, and cached."""
REMEMBERED_ROWS: Final = 100_000
"""Rows of all cached files."""
WINDOW_ROWS: Final = 20_000
"""Rows in order that are read at once: unsorted files are read for each such window."""
_READ: Final = (ID, IS_DELETED, HLC, CLIENT, STAMPS, TEXTS, REFUSED)


class Remembered:
    """The rows of the most recently read files, each as one schema of its table shows them."""

    def __init__(self) -> None:
        self._tables: OrderedDict[tuple[str, int], pa.Table] = OrderedDict()

    def get(self, path: str, schema: int) -> pa.Table | None:
        """Return a file's rows by the schema of this id; None if they are not cached."""
        key = path, schema
        if key in self._tables:
            self._tables.move_to_end(key)
        return self._tables.get(key)

    def put(self, path: str, schema: int, rows: pa.Table) -> None:
        """Cache a file's rows, and drop those read long ago."""
        self._tables[path, schema] = rows
        while len(self._tables) > 1 and sum(map(len, self._tables.values())) > REMEMBERED_ROWS:
            self._tables.popitem(last=False)


class _Window(NamedTuple):
    """Some rows in the order of their ids."""

    behind: bytes
    ids: list[bytes]
    rows: pa.Table
    is_last: bool
    """Whether there are none behind them."""


class StateFiles:
    """A state table as it is when it is loaded.

    Args:
        table: the table.
        remembered: the cache of its files.
    """

    def __init__(self, table: Table, remembered: Remembered) -> None:
        self._table = table
        self._lake = IcebergTable(table)
        self._remembered = remembered
        self._window: _Window | None = None
        self.columns = own_columns(table.metadata)
        self._written = {column.name: column.written for column in self.columns}

    @cached_property
    def tasks(self) -> list[FileScanTask]:
        """The data files, in the order of their least ids."""
        return sorted(self._lake.files(), key=self._least)

    @cached_property
    def least(self) -> list[bytes]:
        """The least id of each file, or a prefix of it."""
        return [self._least(task) for task in self.tasks]

    def whole(self, task: FileScanTask) -> pa.Table:
        """Return everything that a file contains."""
        path, schema = task.file.file_path, self._table.schema().schema_id
        rows = self._remembered.get(path, schema)
        if rows is None:
            rows = self._lake.read(task)
            if not task.delete_files:  # a file's deletions may increase a moment later
                self._remembered.put(path, schema, rows)
        return rows

    def holding(self, row_ids: Iterable[str]) -> dict[str, int]:
        """Return those of some rows that exist, each with the place of its file."""
        wanted = pa.array(row_ids, pa.large_string())
        places: dict[str, int] = {}
        for place, task in self._may_hold(wanted):
            known = self.whole(task)[ID].cast(pa.large_string())
            there = known.filter(pc.is_in(known, value_set=wanted))
            places |= dict.fromkeys(there.to_pylist(), place)
        return places

    def states(self, row_ids: Sequence[str]) -> dict[str, RowState]:
        """Return the states of rows; missing rows are left out."""
        wanted = pa.array(row_ids, pa.large_string())
        states: dict[str, RowState] = {}
        for _, task in self._may_hold(wanted):
            if task.file.record_count <= REMEMBERED_FILE_ROWS:
                rows = self.whole(task)
                rows = rows.filter(pc.is_in(rows[ID].cast(pa.large_string()), value_set=wanted))
            else:
                rows = self._scanned([task], one_of(ID, row_ids))
            states |= {row[ID]: self.state(row) for row in rows.to_pylist()}
        return states

    def states_after(self, row_id: str, count: int) -> dict[str, RowState]:
        """Return the states of rows behind a row id, in the order of its bytes."""
        window, at = self._window, self._place(row_id, count)
        if window is None or at is None:
            window = self._window = self._read_window(row_id, max(count, WINDOW_ROWS))
            at = 0
        return {row[ID]: self.state(row) for row in window.rows.slice(at, count).to_pylist()}

    def _place(self, row_id: str, count: int) -> int | None:
        """Return the place in the window behind a row; None if that has to be read."""
        window, key = self._window, row_id.encode()
        if window is None or key < window.behind:
            return None
        at = bisect_right(window.ids, key)
        return at if window.is_last or len(window.ids) - at >= count else None

    def state(self, row: Mapping[str, Any]) -> RowState:
        """Return the state of a row, refused or not."""
        kept = row.get(REFUSED)
        return self.shown(row) if kept is None else decode_row_state(base64.b64decode(kept))

    def shown(self, row: Mapping[str, Any]) -> RowState:
        """Return the state that a row's columns show."""
        state = state_in(row, self.columns)
        registers = {self._written[name]: one for name, one in state.columns.items()}
        return RowState(state.alive, state.deleted, registers)

    def count(self) -> int:
        """Count the rows."""
        return sum(task.file.record_count for task in self.tasks)

    def _least(self, task: FileScanTask) -> bytes:
        bounds = task.file.lower_bounds or {}
        return bounds.get(self._table.schema().find_field(ID).field_id, b"")

    def _may_hold(self, row_ids: pa.Array) -> list[tuple[int, FileScanTask]]:
        ids = sorted(row_id.encode() for row_id in row_ids.to_pylist())
        return [
            (place, task)
            for place, task in enumerate(self.tasks)
            if self._lake.may_hold(task.file, ids)
        ]

    def _read_window(self, row_id: str, count: int) -> _Window:
        """Return the next rows in order."""
        rest = behind(ID, row_id)
        ids, seen = pa.array([], pa.large_string()), 0
        for place, task in enumerate(self.tasks):
            if len(ids) > count and self.least[place] > ids[count - 1].as_py().encode():
                break  # all that follow are behind the last wanted row
            more = self._scanned([task], rest, ID)[ID].cast(pa.large_string())
            ids = pa.concat_arrays([ids, *more.chunks])
            ids = ids.take(pc.sort_indices(ids)).slice(0, count + 1)
            seen = place + 1
        is_last, ids = len(ids) <= count, ids.slice(0, count)
        last = ids[-1].as_py() if len(ids) else row_id
        rows = self._scanned(self.tasks[:seen], between(ID, row_id, last))
        rows = rows.take(pc.sort_indices(rows, sort_keys=[(ID, "ascending")]))
        return _Window(row_id.encode(), [one.encode() for one in ids.to_pylist()], rows, is_last)

    def _scanned(self, tasks: Sequence[FileScanTask], rows: Any, *names: str) -> pa.Table:
        """Return rows of files, filtered while they are read."""
        table, schema = self._table, self._table.schema()
        there = {field.name for field in schema.fields}
        own = [column.name for column in self.columns]
        wanted = names or [name for name in (*_READ, *own) if name in there]
        scan = ArrowScan(table.metadata, table.io, schema.select(*wanted), rows)
        return scan.to_table(tasks)


def read_as(table: Table, metadata: Any, task: FileScanTask) -> pa.Table:
    """Return everything that a file contains, with the columns of other metadata of its table."""
    scan = ArrowScan(metadata, table.io, metadata.schema(), AlwaysTrue())
    return scan.to_table([task]).cast(metadata.schema().as_arrow())
