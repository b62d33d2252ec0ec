"""INSERT, UPDATE and DELETE of an app: of synced tables they are edits.

Rules of this module
    1. A statement runs once to be noted, and is rolled back; then its notes are written like any
       edits. So the app's table contains only what became deltas.
    2. Columns that the statement leaves unchanged are not written: others may have changed them
       meanwhile.
    3. A statement that cannot become deltas is refused with the reason before anything is written.
"""

from __future__ import annotations

import base64
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from lakesync.client.storage.app_table import ROW_ID, quote
from lakesync.client.storage.failures import query_result
from lakesync.client.storage.kinds import stored_kinds
from lakesync.client.storage.local_tables import (
    NO_RETURNING,
    check_local,
    refused,
    run_local,
    targets_of,
)
from lakesync.client.storage.python_values import as_cells, base64_texts, holds_bytes
from lakesync.core.delta import Op
from lakesync.core.values import parse
from lakesync.errors import ValidationFailed

if TYPE_CHECKING:
    from lakesync.client.storage.app_table import AppTable
    from lakesync.client.storage.capture import Note
    from lakesync.client.storage.file import ClientFile
    from lakesync.client.storage.local_tables import Targets
    from lakesync.client.storage.writing import Writer

_MISSING: Final = object()
_TARGETS_REMEMBERED: Final = 512
_NOTHING: Final = frozenset[Any]()
_AS_TEXT: Final = (list, dict)
"""Parameters that are written as their JSON text."""


def execute(file: ClientFile, writer: Writer, sql: str, parameters: object) -> int:
    """Run one statement that writes to a table; returns how many rows it wrote.

    Of a synced table they are edits; a local one is written as it is.
    """
    given = as_cells(parameters, _AS_TEXT)
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
    notes = query_result(lambda: _noted(file, table, sql, compared), "statement").unwrap()
    texts = frozenset() if compared is given else base64_texts(given)
    for note in notes:
        _write(file, writer, table, note, texts)
    return len(notes)


def _execute_locally(file: ClientFile, targets: Targets, sql: str, given: Any) -> int:
    if not targets.written and not targets.defined:
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


def _write(
    file: ClientFile, writer: Writer, table: AppTable, note: Note, texts: frozenset[str]
) -> None:
    """Write a note as an edit; ``texts`` are bytes that became base64, to be compared."""
    if note.row_id != note.old_id:
        raise refused("a row keeps its _row_id: delete it, and insert another one")
    if not isinstance(note.row_id, str):
        raise refused(f"a _row_id is text, not {type(note.row_id).__name__}")
    row_id = note.row_id
    if note.op is Op.DELETE:
        writer.write(Op.DELETE, table.name, row_id, {})
        return
    before = _before(file, table, row_id)
    kinds = _kinds(file, table)
    columns = {
        name: _value(name, value, kinds.get(name), table, before.get(name))
        for name, value in zip(table.shown, note.cells, strict=True)
        if (value is not None or name in before) and not _same(value, before.get(name, _MISSING))
    }
    for name, value in columns.items():
        if texts and isinstance(value, str) and value in texts and kinds.get(name) != "bytes":
            raise _no_bytes(name)
    if columns or note.op is Op.INSERT:
        writer.write(note.op, table.name, row_id, columns)


def _same(one: object, other: object) -> bool:
    return one == other and type(one) is type(other)


def _before(file: ClientFile, table: AppTable, row_id: str) -> dict[str, object]:
    """Return the cells of a row before a note of it is written; none if there is no row."""
    names = ", ".join(quote(c) for c in table.columns.values() if c) or "NULL"
    row = file.connection.execute(
        f"SELECT {names} FROM {quote(table.sql_name)} WHERE {quote(ROW_ID)} = ?",  # noqa: S608 - quoted
        (row_id,),
    ).fetchone()
    return dict(zip(table.shown, row, strict=False)) if row else {}


def _kinds(file: ClientFile, table: AppTable) -> dict[str, str]:
    """Return the types of columns: the schema's, or what the app declared."""
    schema = file.schema(table.name)
    registered = {column.name: column.type for column in schema.columns} if schema else {}
    return table.declared | registered


def _no_bytes(name: str) -> ValidationFailed:
    return refused(
        f"the column {name} is given bytes, which need the type bytes: declare it so, or write text"
    )


def _value(name: str, cell: object, kind: str | None, table: AppTable, before: object) -> object:
    """Return the value that a cell stands for."""
    if isinstance(cell, bytes):
        if kind != "bytes":
            raise _no_bytes(name)
        return base64.b64encode(cell).decode()
    if isinstance(cell, int) and cell in (0, 1):
        is_boolean = table.booleans.get(name) is True if kind is None else kind == "boolean"
        return bool(cell) if is_boolean else cell
    looks_like_json = kind is None and isinstance(before, str) and before[:1] in {"[", "{"}
    if isinstance(cell, str) and (kind == "json" or looks_like_json):
        try:
            return parse(cell.encode())
        except ValidationFailed:
            return cell
    return cell
