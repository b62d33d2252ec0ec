"""One table of the app: its names in SQLite, and the SQL statements that write its rows."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from lakesync.client.storage.cells import cell
from lakesync.client.storage.tables import PREFIX
from lakesync.core.values import NULL

if TYPE_CHECKING:
    from collections.abc import Collection

    from lakesync.client.storage.cells import Cell
    from lakesync.core.merge import RowState

_BOOLEANS: Final = frozenset({b"true", b"false"})
ROW_ID: Final = "_row_id"
"""The column of every app table that holds the row's id."""


@dataclass(slots=True)
class AppTable:
    """One table of the app, and the statements that keep it."""

    id: int
    name: str
    sql_name: str
    columns: dict[str, str | None] = field(default_factory=dict)
    """SQLite's name of each column, in the order of first sight; None where there is no room."""
    shown: tuple[str, ...] = ()
    """The columns that the app's table has, in the order in which ``upsert`` takes them."""
    upsert: str = ""
    delete: str = ""
    booleans: dict[str, bool | None] = field(default_factory=dict)
    """Columns that hold nothing but booleans, or, where it is None, nothing but nulls so far."""
    kinds: dict[str, bool] = field(default_factory=dict)
    """Of which of these that is decided anew, and is yet to be stored."""

    def prepare(self) -> None:
        """Compose the statements for the columns as they are now."""
        self.shown = tuple(name for name, sql_name in self.columns.items() if sql_name)
        quoted = [quote(sql_name) for sql_name in self.columns.values() if sql_name]
        table, key = quote(self.sql_name), quote(ROW_ID)
        changes = ", ".join(f"{name} = excluded.{name}" for name in quoted)
        self.upsert = (
            f"INSERT INTO {table} ({', '.join([key, *quoted])}) "  # noqa: S608 - quoted names
            f"VALUES ({', '.join('?' * (1 + len(quoted)))}) ON CONFLICT ({key}) DO "
            + (f"UPDATE SET {changes}" if changes else "NOTHING")
        )
        self.delete = f"DELETE FROM {table} WHERE {key} = ?"  # noqa: S608 - quoted names

    def cells(self, row_id: str, state: RowState) -> list[Cell] | None:
        """Give the parameters of ``upsert``, or None if there is no row.

        A column that the row does not have is NULL.
        """
        columns = state.columns
        if not columns and not state.alive:
            return None
        for name, is_boolean in self.booleans.items():
            value = columns[name][2] if name in columns else NULL
            if value != NULL and (value in _BOOLEANS) is not is_boolean:
                self.kinds[name] = value in _BOOLEANS and is_boolean is None
        cells: list[Cell] = [row_id]
        cells += [cell(columns[name][2]) if name in columns else None for name in self.shown]
        return cells


def quote(identifier: str) -> str:
    """Give an identifier as SQL text that can be nothing else."""
    doubled = identifier.replace('"', '""')
    return f'"{doubled}"'


def free_name(name: str, taken: Collection[str]) -> str:
    """Give SQLite's name for a name: itself, or with a digest where that is reserved or taken."""
    folded = name.lower()
    reserved = folded.startswith(("sqlite_", PREFIX))
    if not reserved and folded not in taken:
        return name
    plain = f"t_{name}" if reserved else name
    attempt = name
    while True:
        digest = hashlib.sha256(attempt.encode()).hexdigest()[:10]
        candidate = f"{plain}_{digest}"
        if candidate.lower() not in taken:
            return candidate
        attempt += "+"
