"""The state table of an Iceberg database: its schema, and its rows, read and written by file.

The schemas of state and changes follow a table's definition.

Reading: rows are found by their ids, and in their order. A file whose bounds exclude a row is not
read. Small files are read whole and cached, as files are immutable; larger ones are filtered while
they are read.

Writing: each file that a changed row belongs to is rewritten, and no other. Files are separated by
the ids of their rows, and split when they grow large. So a changed row costs one file, however
large the table is, and one file at a time is in memory.
"""

from __future__ import annotations

import base64
import json
from bisect import bisect_right
from collections import OrderedDict
from functools import cached_property
from itertools import count
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg import expressions
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    TimestamptzType,
)

from lakesync.core.column_types import Unfit, precision_scale, sql_value
from lakesync.core.merge import RowState, view
from lakesync.core.names import folded, lake_columns
from lakesync.materialise.iceberg_table import IcebergTable, Part, data_files, own_columns
from lakesync.materialise.lake_rows import row_of, state_in
from lakesync.materialise.lake_schema import (
    CLIENT,
    COLUMNS,
    DELETE_WINS,
    HLC,
    ID,
    IS_DELETED,
    STAMPS,
    STATE_TABLE,
    TEXTS,
    LakeColumn,
)
from lakesync.wire.records import decode_row_state, encode_row_state

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

    from pyiceberg.manifest import DataFile
    from pyiceberg.table import FileScanTask, Table, Transaction
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.update.schema import UpdateSchema
    from pyiceberg.types import IcebergType

    from lakesync.adapters.sql.ledger import Definition
    from lakesync.core.clock import Stamp
    from lakesync.core.delta import CanonicalJson
    from lakesync.materialise.lake_schema import Kind

# --- schemas --------------------------------------------------------------------------------------


REFUSED: Final = "_refused"
"""The state of a refused row, which its other columns do not show; NULL for all others."""
_TYPES: Final[dict[str, type[Any]]] = {
    "number": DoubleType,
    "boolean": BooleanType,
    "integer": LongType,
    "timestamp": TimestamptzType,
    "date": DateType,
    "bytes": BinaryType,
}
"""Columns of all other types are text."""
_OWN: Final[dict[str, type[Any]]] = {
    "STRING": StringType,
    "BIGINT": LongType,
    "INT": IntegerType,
    "BOOLEAN": BooleanType,
    "TIMESTAMP": TimestamptzType,
}


def column_type(kind: str) -> IcebergType:
    digits = precision_scale(kind)
    if digits is not None:
        return DecimalType(*digits)
    made: IcebergType = _TYPES.get(kind, StringType)()
    return made


def first_schema(kind: Kind) -> Schema:
    """Return the schema of a new table: LakeSync's own columns."""
    numbers = count(1)
    names = {**kind.head, **kind.tail} | ({REFUSED: "STRING"} if kind is STATE_TABLE else {})
    fields = []
    for name, sql in names.items():
        number = next(numbers)
        made: Any
        if sql == "ARRAY<STRING>":
            made = ListType(next(numbers), StringType(), element_required=False)
        elif sql == "MAP<STRING, STRING>":
            made = MapType(
                next(numbers), StringType(), next(numbers), StringType(), value_required=False
            )
        else:
            made = _OWN[sql]()
        fields.append(NestedField(number, name, made, required=False))
    return Schema(*fields)


def follow_definition(
    transaction: Transaction, definition: Definition, others: Iterable[LakeColumn] = ()
) -> tuple[LakeColumn, ...]:
    """Have a table get the columns of a definition; returns them.

    Args:
        others: the columns of the other table that tells of the same one: a name is the same.
    """
    current = own_columns(transaction.table_metadata)
    taken = {folded(one.written): one.name for one in (*others, *current)}
    names = lake_columns(definition.columns, taken)
    wanted = tuple(
        LakeColumn(names[written], kind, written) for written, kind in definition.columns.items()
    )
    there = {column.name: column for column in current}
    changed = [column for column in wanted if there.get(column.name) != column]
    if changed:
        with transaction.update_schema() as update:
            for column in changed:
                _follow(update, there.get(column.name), column)
    _describe(transaction, wanted, definition)
    return wanted


def _follow(update: UpdateSchema, before: LakeColumn | None, column: LakeColumn) -> None:
    wanted = column_type(column.type)
    if before is not None and isinstance(wanted, DecimalType) and precision_scale(before.type):
        update.update_column(column.name, field_type=wanted, doc=column.comment)
    elif before is not None and column_type(before.type) == wanted:
        update.update_column(column.name, doc=column.comment)
    else:
        if before is not None:  # every row is written anew with it
            update.delete_column(column.name)
        update.add_column(column.name, wanted, doc=column.comment)


def _describe(
    transaction: Transaction, columns: Iterable[LakeColumn], definition: Definition
) -> None:
    """Note what the columns are, and how rows are read, where that is not noted."""
    schema = transaction.table_metadata.schema()
    recorded = {
        str(schema.find_field(column.name).field_id): [column.type, column.written]
        for column in columns
    }
    wins = bool(definition.schema and definition.schema.delete_wins)
    said = {COLUMNS: json.dumps(recorded), DELETE_WINS: "true" if wins else "false"}
    properties = transaction.table_metadata.properties
    if any(properties.get(name) != text for name, text in said.items()):
        transaction.set_properties(said)


# --- expressions ----------------------------------------------------------------------------------


_make: Any = expressions


def between(name: str, after: object, until: object) -> Any:
    """Return the expression for values behind one and no further than another."""
    return _make.And(_make.GreaterThan(name, after), _make.LessThanOrEqual(name, until))


def behind(name: str, after: object) -> Any:
    return _make.GreaterThan(name, after)


def one_of(name: str, values: Iterable[str]) -> Any:
    return _make.In(name, tuple(values))


# --- reading --------------------------------------------------------------------------------------


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
    """A state table as it is when it is loaded."""

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
        return [self._least(task) for task in self.tasks]

    def whole(self, task: FileScanTask) -> pa.Table:
        if task.delete_files:  # which may increase a moment later
            return self._lake.read(task)
        path, schema = task.file.file_path, self._table.schema().schema_id
        rows = self._remembered.get(path, schema)
        if rows is None:
            rows = self._lake.read(task)
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
        kept = row.get(REFUSED)
        return self.shown(row) if kept is None else decode_row_state(base64.b64decode(kept))

    def shown(self, row: Mapping[str, Any]) -> RowState:
        state = state_in(row, self.columns)
        registers = {self._written[name]: one for name, one in state.columns.items()}
        return RowState(state.alive, state.deleted, registers)

    def count(self) -> int:
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


# --- writing --------------------------------------------------------------------------------------


FILE_ROWS_MAX: Final = 20_000
"""Rows of one file: as many are in memory, and rewritten when one of them changes."""


class Leaves:
    """One write of a state table."""

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
