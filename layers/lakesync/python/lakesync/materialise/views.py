"""The views of a lake table: rows that exist, without LakeSync's own columns.

``flights__rows`` shows the state table, ``flights__live`` adds the changes that wait for the next
merge. An events table has only the first, a changes table none. Views are composed only here; names
are always quoted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from lakesync.core.names import CHANGES_SUFFIX, LIVE_SUFFIX, ROWS_SUFFIX
from lakesync.materialise.live_view import live_select
from lakesync.materialise.shape import CHANGES_TABLE, ID, IS_DELETED, STATE_TABLE
from lakesync.materialise.view_dialects import DIALECTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from lakesync.materialise.columns import LakeColumn
    from lakesync.materialise.shape import Kind
    from lakesync.materialise.view_dialects import Dialect


_ROWS: Final = "The rows that exist, without LakeSync's own columns"
_LIVE: Final = "The rows that exist, with changes that wait to be merged into the table"


class ViewedTable(NamedTuple):
    """A state or events table as its views need it."""

    database: str
    name: str
    """In the lake."""
    kind: Kind
    columns: tuple[LakeColumn, ...]
    stack: str
    """The stack to which it belongs."""
    comments: Mapping[str, str]
    """By column, its comment in the catalogue."""
    delete_wins: bool = False
    """Whether no update restores a deleted row."""
    gateway: str = ""
    """Its gateway at the stack; empty if it has none."""
    written: str = ""
    """Its name on the wire."""


class View(NamedTuple):
    """A view: its name, its columns, and its query."""

    name: str
    columns: tuple[tuple[str, str], ...]
    """Name and type, as `lakesync.core.column_types` has them."""
    select: str
    comment: str
    """What it shows, in one sentence."""

    def statement(self, database: str, engine: str) -> str:
        """Return the statement that makes or replaces the view in a database."""
        name = DIALECTS[engine].name(database, self.name)
        return f"CREATE OR REPLACE VIEW {name} AS {self.select}"


class ViewCatalogue(Protocol):
    """Where views are kept."""

    def keep(self, table: ViewedTable) -> Mapping[str, str]:
        """Make a table's views or replace them; give by view why it is not as it should be."""


def views_of(table: ViewedTable, engine: str, catalogue: str = "") -> Iterator[View]:
    """Yield the views of a table, in the SQL of an engine of `DIALECTS`.

    Args:
        table: the table.
        engine: whose SQL.
        catalogue: the engine's name of the table's catalogue, if it is needed.
    """
    if table.kind == CHANGES_TABLE:
        return
    dialect = DIALECTS[engine]
    columns = ((ID, "string"), *((column.name, column.type) for column in table.columns))
    place = [part for part in (catalogue, table.database) if part]
    source = dialect.name(*place, table.name)
    select = _shown(columns, source, dialect)
    if table.kind != STATE_TABLE:
        yield View(table.name + ROWS_SUFFIX, columns, select, _ROWS)
        return
    filtered = f"{select} WHERE NOT {dialect.name(IS_DELETED)}"
    yield View(table.name + ROWS_SUFFIX, columns, filtered, _ROWS)
    names = [column.name for column in table.columns]
    changes = dialect.name(*place, table.name + CHANGES_SUFFIX)
    live = live_select(source, changes, names, dialect, delete_wins=table.delete_wins)
    yield View(table.name + LIVE_SUFFIX, columns, _shown(columns, f"({live})", dialect), _LIVE)


def schema_statement(database: str, engine: str) -> str:
    """Get the statement that makes the schema of views, if the engine separates it from tables."""
    return f"CREATE SCHEMA IF NOT EXISTS {DIALECTS[engine].name(database)}"


def _shown(columns: tuple[tuple[str, str], ...], source: str, dialect: Dialect) -> str:
    shown = []
    for name, kind in columns:
        quoted = dialect.name(name)
        value = dialect.instant.format(value=quoted) if kind == "timestamp" else quoted
        shown.append(quoted if value == quoted else f"{value} AS {quoted}")
    return f"SELECT {', '.join(shown)} FROM {source}"  # noqa: S608 - quoted
