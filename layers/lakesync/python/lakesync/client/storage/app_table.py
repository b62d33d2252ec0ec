"""One table of the app: what its cells contain, and the SQL statements that write its rows.

What cells say is in `lakesync.client.storage.cells`. The exact value stays in the row state: a cell
is for reading, never for merging. A column that is declared ``decimal(p,s)`` is text with the
collation `COLLATION`, so that
comparisons, sorting and indexes are exact; SQLite's own command line has a collation of this name
that does the same. Values that are not decimals sort after all decimals, as text.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lakesync.client.storage.cells import FORMS, cell, value_of, writer
from lakesync.client.storage.python_values import kind_of, read_value
from lakesync.client.storage.row_names import Places
from lakesync.client.storage.tables import PREFIX
from lakesync.core.merge import as_read

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from lakesync.client.storage.cells import Cell
    from lakesync.core.merge import RowState
    from lakesync.core.values import CanonicalJson
    from lakesync.errors import LakeSyncError

COLLATION: Final = "decimal"
DECIMAL: Final = "DECIMAL_TEXT"
"""The SQL type of decimals. They stay digits, as REAL would round them."""
_DECIMAL: Final = re.compile(
    r"[+-]?([0-9]{1,64}(\.[0-9]{0,64})?|\.[0-9]{1,64})([eE][+-]?[0-9]{1,3})?"
)
_QUOTE: Final = ord('"')
_ESCAPE: Final = b"\\"
RESERVED: Final = ("sqlite_", PREFIX)
"""How no SQLite name begins that a name of the wire is given."""
RESERVED_TABLES: Final = (*RESERVED, "pragma_")
"""The same for tables; SQLite has a table for each pragma."""
ROW_ID: Final = "_row_id"
"""The column of every app table that holds the row's id."""


class Trigger(NamedTuple):
    """A trigger of the app that may not fire, and why."""

    name: str
    sql: str
    sentence: str


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
    forms: dict[str, int] = field(default_factory=dict)
    """Of each column which of the values that look alike it has held; see
    `lakesync.client.storage.cells`.
    """
    declared: dict[str, str] = field(default_factory=dict)
    """The types that the app declared."""
    keep_forms: Callable[[AppTable, str, int], None] = lambda *_: None
    """Stores a column's forms, before it first holds a value of a new one."""
    places: Places = field(default_factory=lambda: Places(()))
    """The columns as row states name them."""
    delete_wins: bool = False
    """The table's schema at the gateway."""
    templates: dict[tuple[object, ...], Any] = field(default_factory=dict)
    """By operation and columns, as given or in order: an `EditTemplate`, valid while names, types
    and ``forms`` stay the same.
    """
    _writers: list[tuple[int, str, Callable[[CanonicalJson], Cell]]] = field(default_factory=list)
    """Columns of which not all cells are plain: their places in ``shown``, and what makes them."""
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
        return read_value(self.kind(name), raw)

    def kind(self, name: str) -> str:
        """Return the kind that a column is declared as; empty if it is not."""
        return kind_of(self.declared.get(name, ""))

    def written(self, name: str, content: Any, kind: str) -> Any:
        """Return the JSON value that a cell stands for, as SQL wrote it to a column."""
        return value_of(content, kind, self.forms.get(name, 0))

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
        self._find_writers()

    def _find_writers(self) -> None:
        self.templates.clear()
        each = ((place, name, self.writer(name)) for place, name in enumerate(self.shown))
        self._writers = [(place, name, make) for place, name, make in each if make]

    def writer(self, name: str) -> Callable[[CanonicalJson], Cell] | None:
        """Return the function that makes a column's cells; None if all are plain."""
        return writer(self.kind(name), self.forms.get(name, 0))

    def learn(self, name: str, forms: int) -> None:
        """Note the forms of values of a column that are about to be written."""
        before = self.forms.get(name, 0)
        if forms & ~before:
            self.keep_forms(self, name, before | forms)
            self.forms[name] = before | forms
            self._find_writers()

    def cells(self, row_id: str, values: Mapping[str, CanonicalJson]) -> list[Cell]:
        """Return the parameters of ``upsert`` for a row. A column that the row lacks is NULL."""
        self._look_at(values)
        return self._cells(row_id, values)

    def rows(self, rows: Sequence[tuple[str, Mapping[str, CanonicalJson]]]) -> list[list[Cell]]:
        """Do the same for several rows, which are written before any others."""
        for _, values in rows:  # one may change what the cells of another are
            self._look_at(values)
        return [self._cells(*row) for row in rows]

    def _look_at(self, values: Mapping[str, CanonicalJson]) -> None:
        known, form_of = self.forms.get, FORMS.get
        for name, value in values.items():
            form = form_of(value[:2])
            if form and form & ~known(name, 0):
                self.learn(name, form)

    def _cells(self, row_id: str, values: Mapping[str, CanonicalJson]) -> list[Cell]:
        value_of_column = values.get
        cells: list[Cell] = [row_id]
        cells += [
            # Most cells are plain text: a call for each costs as much as its text.
            (value[1:-1].decode() if value[0] == _QUOTE and _ESCAPE not in value else cell(value))
            if value
            else None
            for value in map(value_of_column, self.shown)
        ]
        for place, name, make in self._writers:
            value = value_of_column(name)
            if value:
                cells[place + 1] = make(value)
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


def compare(left: str, right: str) -> int:
    """Return a number below, equal to or above 0: the first value sorts before, with, or after."""
    one, other = _key(left), _key(right)
    return (one > other) - (one < other)


def _key(text: str) -> tuple[int, Decimal, str]:
    if _DECIMAL.fullmatch(text):
        return 0, Decimal(text), ""
    return 1, Decimal(0), text
