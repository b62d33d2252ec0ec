"""A table to query: the synced columns of one table, in their types, for anybody to read.

Its rows are written from row states, so writing them again is always correct. Only the row that the
database refuses becomes a dead letter; the others are written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lakesync.adapters.batches import TABLE_DEAD_LETTERS_MAX, check_refused
from lakesync.adapters.database import DeadLetter
from lakesync.adapters.sql.conversion import EPOCH, Converted, Row, RowConverter
from lakesync.adapters.sql.definition import (
    DELETED_AT,
    PROPS,
    SYNCED_AT,
    UNTYPED,
    digested,
    sql_name,
)
from lakesync.adapters.sql.dialect import STAGE
from lakesync.adapters.sql.staging import fill_stage
from lakesync.core.column_types import precision_scale
from lakesync.core.names import folded
from lakesync.core.schema import ROW_ID

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lakesync.adapters.sql.definition import Definition
    from lakesync.adapters.sql.dialect import Cursor, Dialect

_STAGED_NUMBER: Final = "lakesync_number"
_STAGED_DELETED_AT: Final = "lakesync_deleted_at"
_SPAN: Final = f"s.{_STAGED_NUMBER} >= %s AND s.{_STAGED_NUMBER} < %s"
_DELETED_SPAN: Final = f"{_SPAN} AND s.{_STAGED_DELETED_AT} IS NOT NULL"


class DestinationTable:
    """One table to query, by its definition."""

    def __init__(self, dialect: Dialect, definition: Definition) -> None:
        self._dialect = dialect
        self.definition = definition
        self._columns = definition.stored_columns()
        self._quoted = dialect.quote(definition.destination)
        self.convert = RowConverter(dialect, definition).converted

    # --- definition -------------------------------------------------------------------------------

    def create(self, cursor: Cursor, before: Definition) -> bool:
        """Create the table, or change it from its former definition to the current one.

        Each statement may be repeated.

        Returns: Whether rows must be rewritten: the table or a column was missing, or a column got
            another type.
        """
        there = self._dialect.existing_columns(cursor, self.definition.destination)
        if not there:
            self._create(cursor)
            return bool(before.columns)
        present = {folded(name) for name in there}
        for name, kind in before.stored_columns().items():
            wanted = self.definition.columns[name]
            if wanted == kind or folded(sql_name(name)) not in present:
                continue
            if precision_scale(kind):
                self._widen(cursor, name, wanted)
            else:
                self._alter(cursor, f"DROP COLUMN {self._dialect.quote(sql_name(name))}")
                present.remove(folded(sql_name(name)))
        for name, kind in self._definitions().items():
            if folded(name) not in present:
                column = f"{self._dialect.quote(name)} {kind.removesuffix(' NOT NULL')}"
                self._alter(cursor, f"ADD COLUMN {column}")
        if ROW_ID not in present:
            index = self._dialect.quote(digested(f"{self.definition.destination}.{ROW_ID}"))
            cursor.execute(f"CREATE UNIQUE INDEX {index} ON {self._quoted} ({ROW_ID})", ())
        return any(folded(sql_name(name)) not in present for name in before.stored_columns())

    def _create(self, cursor: Cursor) -> None:
        quote = self._dialect.quote
        lines = [f"{quote(name)} {kind}" for name, kind in self._definitions().items()]
        keys = self.definition.keys
        lines.append(f"PRIMARY KEY ({', '.join(quote(sql_name(key)) for key in keys)})")
        unique = [name for name in (ROW_ID, self.definition.external_id) if name]
        lines += [f"UNIQUE ({quote(sql_name(name))})" for name in unique if (name,) != keys]
        options = self._dialect.updated_options
        cursor.execute(f"CREATE TABLE {self._quoted} ({', '.join(lines)}){options}", ())

    def _widen(self, cursor: Cursor, name: str, type_name: str) -> None:
        kind = self._dialect.column_type(type_name, in_key=name in self.definition.keys)
        column = self._dialect.quote(sql_name(name))
        cursor.execute(self._dialect.changed_type(self._quoted, column, kind), ())

    def _alter(self, cursor: Cursor, change: str) -> None:
        cursor.execute(f"ALTER TABLE {self._quoted} {change}", ())

    def _definitions(self) -> dict[str, str]:
        """Return the SQL type of each column."""
        keys = self.definition.keys
        keyed = {*keys, self.definition.external_id}
        kinds = {ROW_ID: self._dialect.column_type("string", in_key=True)}
        for name, kind in self._columns.items():
            required = " NOT NULL" if name in keys else ""
            sql_type = self._dialect.column_type(kind, in_key=name in keyed)
            kinds[sql_name(name)] = sql_type + required
        props = self._dialect.column_type(UNTYPED, in_key=False)
        return kinds | {
            PROPS: f"{props} DEFAULT ('{{}}')",
            SYNCED_AT: self._dialect.instant_type,
            DELETED_AT: self._dialect.instant_type,
        }

    # --- rows -------------------------------------------------------------------------------------

    def write(self, cursor: Cursor, converted: Converted) -> list[DeadLetter]:
        """Write rows; returns those that are refused, and those that could not be converted."""
        table, rows, refused = self.definition.table, converted.rows, list(converted.refused)
        if rows:
            self._load(cursor, rows)
            has_deleted = any(row.deleted_at is not None for row in rows)
            faults = self._written(cursor, 0, len(rows), has_deleted=has_deleted)
            refused += [DeadLetter(table, rows[at].row_id, reason) for at, reason in faults]
        check_refused(table, [letter.reason for letter in refused], mend="the table")
        return refused

    def remove(self, cursor: Cursor, row_ids: Sequence[str]) -> None:
        """Remove rows, whether deleted rows are kept or not."""
        nothing = [None] * len(self._columns)
        self._load(cursor, [Row(row_id, EPOCH, nothing) for row_id in row_ids])
        cursor.execute(self._removal(_DELETED_SPAN), (0, len(row_ids)))

    def _removal(self, deleted: str) -> str:
        # Every name is quoted or ours.
        gone = f"SELECT s.{ROW_ID} FROM {STAGE} s WHERE {deleted}"  # noqa: S608
        return f"DELETE FROM {self._quoted} WHERE {ROW_ID} IN ({gone})"  # noqa: S608

    def _load(self, cursor: Cursor, rows: Sequence[Row]) -> None:
        kinds = {
            sql_name(name): self._dialect.column_type(
                "string" if kind == UNTYPED else kind, in_key=False
            )
            for name, kind in self._columns.items()
        }
        key = {_STAGED_NUMBER: "INTEGER", _STAGED_DELETED_AT: self._dialect.instant_type}
        key[ROW_ID] = self._dialect.column_type("string", in_key=True)
        loaded = (
            (number, row.deleted_at, row.row_id, *row.values) for number, row in enumerate(rows)
        )
        fill_stage(self._dialect, cursor, key | kinds, loaded)

    def _written(
        self, cursor: Cursor, start: int, end: int, *, has_deleted: bool
    ) -> list[tuple[int, str]]:
        """Write a range of the staged rows; returns those that are refused, and why.

        A refusal does not name the row, so the range is halved until each refused row is alone.
        """
        cursor.execute("SAVEPOINT lakesync_rows_written", ())
        try:
            for statement in self._statements(has_deleted=has_deleted):
                cursor.execute(statement, (start, end))
        except Exception as exc:
            if not self._dialect.is_row_fault(exc):
                raise
            cursor.execute("ROLLBACK TO SAVEPOINT lakesync_rows_written", ())
            if end - start == 1:
                return [(start, " ".join(str(exc).split()))]
            middle = (start + end) // 2
            faults = self._written(cursor, start, middle, has_deleted=has_deleted)
            if len(faults) <= TABLE_DEAD_LETTERS_MAX:
                faults += self._written(cursor, middle, end, has_deleted=has_deleted)
            return faults
        cursor.execute("RELEASE SAVEPOINT lakesync_rows_written", ())
        return []

    def _statements(self, *, has_deleted: bool) -> Iterable[str]:
        """Yield the statements that write rows from ``%s`` up to before ``%s``."""
        quote = self._dialect.quote
        alive, deleted = f"{_SPAN} AND s.{_STAGED_DELETED_AT} IS NULL", _DELETED_SPAN
        columns = [(ROW_ID, f"s.{ROW_ID}")]
        columns += [
            (quote(sql_name(name)), self._dialect.staged(f"s.{quote(sql_name(name))}", kind))
            for name, kind in self._columns.items()
        ]
        columns += [(SYNCED_AT, "CURRENT_TIMESTAMP"), (DELETED_AT, "NULL")]
        yield from self._dialect.merge(self._quoted, columns, alive)
        if not has_deleted:
            return
        if self.definition.keeps_deleted:
            stamps = [(SYNCED_AT, "CURRENT_TIMESTAMP"), (DELETED_AT, f"s.{_STAGED_DELETED_AT}")]
            yield self._dialect.update(self._quoted, stamps, deleted)
        else:
            yield self._removal(deleted)
