"""The tables in one reading of the log: how their rows are decoded, and which are read again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lakesync.connectors.sql.binlog.columns import captured_table
from lakesync.connectors.sql.binlog.parts import Described
from lakesync.connectors.sql.binlog.rows import reader_of
from lakesync.connectors.sql.binlog.statements import tables_in
from lakesync.errors import AdapterRefused

if TYPE_CHECKING:
    from lakesync.connectors.sql.binlog.events import Statement
    from lakesync.connectors.sql.binlog.table_map import LoggedTable
    from lakesync.connectors.sql.binlog.tables import Tables
    from lakesync.connectors.sql.capture.captured import Captured


class Logged:
    """The captured tables, as the log describes them up to the current event."""

    def __init__(self, captured: Captured, tables: Tables) -> None:
        self._captured = captured
        self._tables = tables

    def described(self, logged: LoggedTable) -> Described | None:
        """Return how a table's logged rows are decoded; None if it is not captured."""
        name = self._tables.name_of(logged.schema, logged.name)
        if name is None or name not in self._captured.kept.tables:
            return None
        try:
            table = captured_table(logged, self._tables.looks[name], self._captured.settings[name])
            readers = tuple(map(reader_of, logged.columns))
        except AdapterRefused:
            # A configured column is missing, in the table or in the log: read once it exists.
            self._captured.kept.tables.pop(name, None)
            self._captured.save()
            return None
        return Described(table, readers)

    def stated(self, statement: Statement) -> list[str]:
        """Return the tables that a statement may have changed without logging their rows."""
        places = {name: self._tables.place(name) for name in self._captured.settings}
        return tables_in(statement.sql, statement.schema, places)

    def restate(self, cursor: Any, name: str, us: int) -> None:
        """Schedule a table to be read again; forget it if it no longer exists."""
        cursor.connection.rollback()
        self._tables.look(cursor)
        if name in self._tables.looks:
            self._captured.mark(cursor, name, us)
        else:
            self._captured.kept.tables.pop(name, None)
        self._captured.save()
