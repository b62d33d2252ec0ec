"""INSERT, UPDATE and DELETE of an app: of synced tables they are edits.

Rules of this module
    1. A statement runs once to be noted, and is rolled back; then its notes are written like any
       edits. So the app's table contains only what became deltas.
    2. Columns that the statement leaves unchanged are not written: others may have changed them
       meanwhile.
    3. A statement that cannot become deltas is refused with the reason before anything is written.
    4. What its cells stand for is determined before any of them is written, by what their columns
       hold until then.
"""

from __future__ import annotations

import base64
import re
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from lakesync.client.storage.app_table import ROW_ID, quote
from lakesync.client.storage.cells import is_mark
from lakesync.client.storage.failures import query_result
from lakesync.client.storage.kinds import stored_kinds
from lakesync.client.storage.local_tables import (
    NO_RETURNING,
    check_local,
    refused,
    run_local,
    targets_of,
)
from lakesync.client.storage.parameters import Origins, as_cells, holds_bytes, same
from lakesync.client.storage.python_values import BINARY, kind_of
from lakesync.core.delta import Op
from lakesync.core.values import parse

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lakesync.client.storage.app_table import AppTable
    from lakesync.client.storage.capture import Note
    from lakesync.client.storage.file import ClientFile
    from lakesync.client.storage.local_tables import Targets
    from lakesync.client.storage.writing import Writer

_DEFINES: Final = re.compile(r"\s*(?:CREATE|DROP)\b", re.IGNORECASE)
_MISSING: Final = object()
_TARGETS_REMEMBERED: Final = 512
_NOTHING: Final = frozenset[Any]()


def execute(file: ClientFile, writer: Writer, sql: str, parameters: object) -> int:
    """Run one statement that writes to a table; returns how many rows it wrote.

    Of a synced table they are edits; a local one is written as it is.
    """
    given = as_cells(parameters, takes_lists=True)
    prepared = file.capture.targets
    name, read = prepared.get(str(sql), ("", _NOTHING))
    table = file.catalogue.by_sql_name(name)
    if table is None:
        targets = query_result(
            lambda: targets_of(file.connection, sql, given), "statement"
        ).unwrap()
        name = "".join(targets.written)  # SQLite writes to one
        table = None if targets.defined else file.catalogue.by_sql_name(name)
        if table is None:
            return _execute_locally(file, targets, sql, given)
        if len(prepared) >= _TARGETS_REMEMBERED:
            prepared.clear()
        read = frozenset(targets.read)
        prepared[str(sql)] = name, read
    table.check()
    compared = given
    if read and holds_bytes(given):
        compared = stored_kinds(file.connection).compared(read, given)
    again = partial(_noted, file, table, sql)
    notes = query_result(lambda: again(compared), "statement").unwrap()
    origins = Origins(parameters, compared, again)
    kinds = _kinds(file, table)
    for note, values in zip(notes, _values(table, kinds, notes, origins), strict=True):
        _write(file, writer, table, kinds, note, values)
    return len(notes)


def _execute_locally(file: ClientFile, targets: Targets, sql: str, given: Any) -> int:
    if not targets.written and not targets.defined:
        if _DEFINES.match(sql):
            return 0  # IF EXISTS, IF NOT EXISTS: SQLite finds nothing to do
        raise refused("the statement writes to no table: execute writes, query reads")
    check_local(file.catalogue, targets)
    run = partial(run_local, file.connection, file.catalogue, targets, sql, given)
    return query_result(run, "statement").unwrap()


def _noted(file: ClientFile, table: AppTable, sql: str, parameters: Any) -> list[Note]:
    """Run a statement, note what it writes, and undo it."""
    run = file.connection.execute
    replaces = "replace" in sql.lower()
    with file.capture.noting(table) as notes:
        if replaces:  # what it replaces is deleted, which triggers hear of only so
            run("PRAGMA recursive_triggers = ON")
        run("SAVEPOINT _lakesync_statement")
        try:
            cursor = run(sql, parameters)
            gives_rows = cursor.description is not None
            cursor.close()
        finally:
            if file.connection.in_transaction:
                run("ROLLBACK TO _lakesync_statement")
                run("RELEASE _lakesync_statement")
            if replaces:
                run("PRAGMA recursive_triggers = OFF")
    if gives_rows:
        raise refused(NO_RETURNING)
    return notes


def _values(
    table: AppTable, kinds: Mapping[str, str], notes: Sequence[Note], origins: Origins
) -> list[dict[str, object]]:
    """Return the values that the cells of notes stand for."""
    names = [(place, name, kinds.get(name, "")) for place, name in enumerate(table.shown)]
    read: list[dict[str, object]] = []
    doubtful: list[tuple[int, int, str]] = []
    for row, note in enumerate(notes):
        values: dict[str, object] = {}
        for place, name, kind in names if note.cells else ():
            content = note.cells[place]
            values[name] = value = _value(table, name, kind, content)
            if origins.is_doubtful(content, value, kind):
                doubtful.append((row, place, name))
        read.append(values)
    origin_of = origins.of(notes) if doubtful else {}
    for row, place, name in doubtful:
        read[row][name] = origin_of.get((row, place), read[row][name])
    for values in read:
        for name, value in values.items():
            if isinstance(value, BINARY):
                raise refused(
                    f"the column {name} is given bytes, which need the type bytes: declare it so, "
                    "or write text"
                )
    return read


def _value(table: AppTable, name: str, kind: str, content: object) -> object:
    """Return the value that a cell stands for; bytes if it can be nothing else."""
    if isinstance(content, bytes):
        if kind == "bytes":
            return base64.b64encode(content).decode()
        return parse(content) if is_mark(content, kind, table.forms.get(name, 0)) else content
    return table.written(name, content, kind)


def _write(
    file: ClientFile,
    writer: Writer,
    table: AppTable,
    kinds: Mapping[str, str],
    note: Note,
    values: Mapping[str, object],
) -> None:
    """Write a note as an edit of the columns that it changes."""
    if note.row_id != note.old_id:
        raise refused("a row keeps its _row_id: delete it, and insert another one")
    if not isinstance(note.row_id, str):
        raise refused(f"a _row_id is text, not {type(note.row_id).__name__}")
    row_id = note.row_id
    if note.op is Op.DELETE:
        writer.write(Op.DELETE, table.name, row_id, {})
        return
    before = _before(file, table, kinds, row_id)
    columns = {
        name: value
        for name, value in values.items()
        if (value is not None or name in before) and not same(value, before.get(name, _MISSING))
    }
    if columns or note.op is Op.INSERT:
        writer.write(note.op, table.name, row_id, columns)


def _before(
    file: ClientFile, table: AppTable, kinds: Mapping[str, str], row_id: str
) -> dict[str, object]:
    """Return the values of a row before a note of it is written; none if there is no row."""
    names = ", ".join(quote(c) for c in table.columns.values() if c) or "NULL"
    row = file.connection.execute(
        f"SELECT {names} FROM {quote(table.sql_name)} WHERE {quote(ROW_ID)} = ?",  # noqa: S608 - quoted
        (row_id,),
    ).fetchone()
    return {
        name: _value(table, name, kinds.get(name, ""), content)
        for name, content in zip(table.shown, row or (), strict=False)
    }


def _kinds(file: ClientFile, table: AppTable) -> dict[str, str]:
    """Return the kinds of columns: the schema's, or what the app declared."""
    schema = file.schema(table.name)
    registered = {column.name: column.type for column in schema.columns} if schema else {}
    return {name: kind_of(kind) for name, kind in (table.declared | registered).items()}
