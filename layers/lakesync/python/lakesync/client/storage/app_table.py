"""One table of the app: what its cells contain, and the SQL statements that write its rows.

Text, integers and reals are stored unchanged, booleans as 1 and 0, objects and arrays as JSON text,
null as NULL. The exact value stays in the row state: a cell is for reading, never for merging. A
column that is declared ``decimal(p,s)`` is text with the collation `COLLATION`, so that
comparisons, sorting and indexes are exact; SQLite's own command line has a collation of this name
that does the same. Values that are not decimals sort after all decimals, as text.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from lakesync.client.storage.python_values import kind_of, read_value
from lakesync.client.storage.row_names import Places
from lakesync.client.storage.tables import PREFIX
from lakesync.core.merge import as_read
from lakesync.core.values import NULL

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from lakesync.client.storage.app_objects import Trigger
    from lakesync.core.merge import RowState
    from lakesync.core.values import CanonicalJson
    from lakesync.errors import LakeSyncError

Cell: TypeAlias = "str | int | float | None"

COLLATION: Final = "decimal"
DECIMAL: Final = "DECIMAL_TEXT"
"""The SQL type of decimals. They stay digits, as REAL would round them."""
_DECIMAL: Final = re.compile(
    r"[+-]?([0-9]{1,64}(\.[0-9]{0,64})?|\.[0-9]{1,64})([eE][+-]?[0-9]{1,3})?"
)
_WORDS: Final[dict[bytes, int | None]] = {b"null": None, b"true": 1, b"false": 0}
_QUOTE: Final = ord('"')
_ESCAPE: Final = b"\\"
_BRACKETS: Final = b"[{"
_INT64 = range(-(1 << 63), 1 << 63)
_REMEMBERED: Final = 4_096
_BOOLEANS: Final = frozenset({b"true", b"false"})
RESERVED: Final = ("sqlite_", PREFIX)
"""How no SQLite name begins that a name of the wire is given."""
RESERVED_TABLES: Final = (*RESERVED, "pragma_")
"""The same for tables; SQLite has a table for each pragma."""
ROW_ID: Final = "_row_id"
"""The column of every app table that holds the row's id."""


@dataclass(slots=True)
class AppTable:
    """One table of the app, and the statements that keep it."""

    id: int
    name: str
    sql_name: str
    columns: dict[str, str | None] = field(default_factory=dict)
    """SQLite's name of each column, in the order of first sight; None if there was no room."""
    shown: tuple[str, ...] = ()
    """The columns of the app's table, in the order in which ``upsert`` takes them."""
    upsert: str = ""
    insert_new: str = ""
    """The same for a row that has neither an app's row nor a state; if it has, it does nothing."""
    delete: str = ""
    booleans: dict[str, bool | None] = field(default_factory=dict)
    """Columns whose values so far are only booleans, or (None) only nulls."""
    declared: dict[str, str] = field(default_factory=dict)
    """The types that the app declared."""
    kinds: dict[str, bool] = field(default_factory=dict)
    """Decisions of `booleans` that were made again and are not stored yet."""
    places: Places = field(default_factory=lambda: Places(()))
    """The columns as row states name them."""
    delete_wins: bool = False
    """The table's schema at the gateway."""
    templates: dict[tuple[object, ...], Any] = field(default_factory=dict)
    """By operation and columns, as given or in order: an `EditTemplate`, valid while names, columns
    and ``booleans`` stay the same.
    """
    barred: Callable[[], LakeSyncError] | None = None
    """Makes the error of every edit, where an object of the app stands in the way; there are no
    templates then.
    """
    barred_triggers: tuple[Trigger, ...] = ()
    """Triggers of the app that may not fire when its rows are written."""

    def check(self) -> None:
        """Raise if an object of the app stands in the way of edits."""
        if self.barred:
            raise self.barred()

    def as_read(self, state: RowState) -> RowState:
        """Return a row as its table reads it; see `lakesync.core.merge.as_read`."""
        return as_read(state, delete_wins=self.delete_wins)

    def value(self, name: str, raw: CanonicalJson) -> Any:
        """Return the value of a column as Python has it."""
        return read_value(kind_of(self.declared.get(name, "")), raw)

    def prepare(self) -> None:
        """Compose the statements for the columns as they are now."""
        self.templates.clear()
        self.places = Places(tuple(self.columns))
        self.shown = tuple(name for name, sql_name in self.columns.items() if sql_name)
        quoted = [quote(sql_name) for sql_name in self.columns.values() if sql_name]
        table, key = quote(self.sql_name), quote(ROW_ID)
        changes = ", ".join(f"{name} = excluded.{name}" for name in quoted)
        insert = f"INSERT INTO {table} ({', '.join([key, *quoted])})"
        given = ", ".join(f"?{number}" for number in range(1, len(quoted) + 2))
        self.upsert = f"{insert} VALUES ({given}) ON CONFLICT ({key}) DO " + (
            f"UPDATE SET {changes}" if changes else "NOTHING"
        )
        self.insert_new = (
            f"{insert} SELECT {given} WHERE NOT EXISTS (SELECT 1 FROM _lakesync_rows "  # noqa: S608 - quoted names
            f"WHERE table_id = {self.id} AND row_id = ?1) ON CONFLICT ({key}) DO NOTHING"
        )
        self.delete = f"DELETE FROM {table} WHERE {key} = ?"  # noqa: S608 - quoted names

    def note_kinds(self, name: str, kinds: Collection[type]) -> None:
        """Note the kinds of the values of a column that are about to be written."""
        others = set(kinds) - {type(None)}
        if others and name in self.booleans:
            known, only = self.booleans[name], others == {bool}
            if only is not known:
                self.kinds[name] = only and known is None and self.kinds.get(name, True)

    def note_values(self, values: Mapping[str, CanonicalJson]) -> None:
        """Do the same for the values of one row."""
        for name, is_boolean in self.booleans.items():
            value = values.get(name, NULL)
            if value != NULL and (value in _BOOLEANS) is not is_boolean:
                self.kinds[name] = value in _BOOLEANS and is_boolean is None

    def cells(self, row_id: str, values: Mapping[str, CanonicalJson]) -> list[Cell]:
        """Return the parameters of ``upsert`` for a row. A column that the row lacks is NULL."""
        self.note_values(values)
        value_of = values.get
        cells: list[Cell] = [row_id]
        cells += [
            # Most cells are plain text: a call for each costs as much as its text.
            (value[1:-1].decode() if value[0] == _QUOTE and _ESCAPE not in value else cell(value))
            if value
            else None
            for value in map(value_of, self.shown)
        ]
        return cells


def quote(identifier: str) -> str:
    """Return an identifier as SQL text that can be nothing else."""
    doubled = identifier.replace('"', '""')
    return f'"{doubled}"'


def table_sql(sql_name: str, columns: Iterable[tuple[str, str]]) -> str:
    """Return the statement that makes an app's table of columns with their types."""
    parts = [f"{quote(ROW_ID)} TEXT PRIMARY KEY NOT NULL"]
    parts += [column_sql(name, sql_type) for name, sql_type in columns]
    return f"CREATE TABLE {quote(sql_name)} ({', '.join(parts)}) WITHOUT ROWID"


def column_sql(sql_name: str, sql_type: str) -> str:
    """Return how a column is made, by its name and its SQL type."""
    collation = f" COLLATE {COLLATION}" if sql_type == DECIMAL else ""
    return f"{quote(sql_name)} {sql_type}{collation}"


def free_name(name: str, taken: Collection[str], kept: tuple[str, ...] = RESERVED) -> str:
    """Return SQLite's name for a name: itself, or with a digest if it is reserved or taken."""
    folded = name.lower()
    reserved = folded.startswith(kept)
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


def cell(value: CanonicalJson) -> Cell:
    """Return what SQLite stores for a value."""
    first = value[0]
    if first == _QUOTE:
        return value[1:-1].decode() if _ESCAPE not in value else str(json.loads(value))
    return value.decode() if first in _BRACKETS else _scalar(value)


# Columns repeat the same few short numbers and words, so remembering them is cheap.
@lru_cache(_REMEMBERED)
def _scalar(value: CanonicalJson) -> int | float | None:
    if value in _WORDS:
        return _WORDS[value]
    if b"." in value:  # most texts that are not integers; an exception costs more than this
        return float(value)
    try:
        number = int(value)
    except ValueError:
        return float(value)
    # Canonical JSON prints a double such as 1e20 in digits; SQLite's integers end at 2^63.
    return number if number in _INT64 else float(value)


def compare(left: str, right: str) -> int:
    """Return a number below, equal to or above 0: the first value sorts before, with, or after."""
    one, other = _key(left), _key(right)
    return (one > other) - (one < other)


def _key(text: str) -> tuple[int, Decimal, str]:
    if _DECIMAL.fullmatch(text):
        return 0, Decimal(text), ""
    return 1, Decimal(0), text
