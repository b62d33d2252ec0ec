"""Which rows a statement of the app writes, as temporary triggers note them.

A trigger is created for a table when a statement first writes to it, and again when the table's
columns change; it notes changes only while a statement runs. Temporary triggers belong to this
connection: no other process sees them, and nothing of them is in the file.
"""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lakesync.client.storage.app_table import ROW_ID, quote
from lakesync.core.delta import Op

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator

    from lakesync.client.storage.app_table import AppTable
    from lakesync.client.storage.reading import ColumnKey

_CALL_COLUMNS: Final = 100
"""Columns that one call of the noting function is given; SQLite allows 127 arguments."""
_OPS: Final = {Op.INSERT: "NEW", Op.UPDATE: "NEW", Op.DELETE: "OLD"}


@dataclass(slots=True)
class Note:
    """One row that a statement wrote."""

    op: Op
    row_id: object
    """The id after an insert or an update."""
    old_id: object
    cells: list[object]
    """What its columns contain afterwards, in the order of `AppTable.shown`; empty for a deleted
    row.
    """


class Capture:
    """Notes what statements write. Used within a transaction of the connection."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._is_on = False
        self._notes: list[Note] = []
        self.targets: dict[str, tuple[str, frozenset[ColumnKey]]] = {}
        """For statements that were prepared before: the table that each writes to, and the tables
        it reads.
        """
        connection.create_function("_lakesync_notes", 0, lambda: self._is_on)
        connection.create_function("_lakesync_note", -1, self._note)

    def _note(self, op: str, row_id: object, old_id: object, *cells: object) -> None:
        if op:
            self._notes.append(Note(Op[op], row_id, old_id, list(cells)))
        else:
            self._notes[-1].cells += cells

    @contextlib.contextmanager
    def noting(self, table: AppTable) -> Iterator[list[Note]]:
        """Note what the block writes to a table; the block's list has the notes when it ends."""
        self._prepare(table)
        notes: list[Note] = []
        self._notes = notes
        self._is_on = True
        try:
            yield notes
        finally:
            self._is_on = False

    def _prepare(self, table: AppTable) -> None:
        execute = self._connection.execute
        digest = hashlib.sha256("\0".join(map(str, table.columns.values())).encode()).hexdigest()
        wanted = {f"_lakesync_{op.name}_{table.id}_{digest[:10]}": op for op in _OPS}
        prefixes = " OR ".join(f"name GLOB '_lakesync_{op.name}_{table.id}_*'" for op in _OPS)
        there = {
            name
            for (name,) in execute(
                f"SELECT name FROM temp.sqlite_master WHERE type = 'trigger' AND ({prefixes})"  # noqa: S608 - ours
            ).fetchall()
        }
        for name in there - wanted.keys():
            execute(f"DROP TRIGGER temp.{quote(name)}")
        for name in wanted.keys() - there:
            execute(_trigger(name, wanted[name], table))


def _trigger(name: str, op: Op, table: AppTable) -> str:
    of = _OPS[op]
    columns = [] if op is Op.DELETE else [quote(c) for c in table.columns.values() if c]
    ids = [f"{of}.{quote(ROW_ID)}", f"{'NEW' if op is Op.INSERT else 'OLD'}.{quote(ROW_ID)}"]
    calls = []
    for start in range(0, max(1, len(columns)), _CALL_COLUMNS):
        part = [f"{of}.{column}" for column in columns[start : start + _CALL_COLUMNS]]
        first = f"'{op.name}'" if start == 0 else "''"
        calls.append(f"SELECT _lakesync_note({', '.join([first, *ids, *part])});")
    return (
        f"CREATE TEMP TRIGGER {quote(name)} AFTER {op.name} ON main.{quote(table.sql_name)} "
        f"WHEN _lakesync_notes() BEGIN {' '.join(calls)} END"
    )
