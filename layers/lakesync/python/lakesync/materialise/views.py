"""The views of a lake table: rows that exist, without LakeSync's own columns.

``flights__rows`` shows the state table, ``flights__live`` adds the changes that wait for the next
merge. An events table has only the first, a changes table none. Views are composed only here, for
each engine that reads the lake; names are always quoted.

A live view expresses a merge (`lakesync.core.merge`) in SQL, on typed values: for each column the
write with the greatest stamp and client, and for a row whether it exists. Rows without waiting
changes are read unchanged. The greatest ``_commit`` of the state table is at or before its end
(L18). A change that is merged already changes nothing when it is merged again.

One client may have written two different values under one stamp, which no correct client does. Then
the merged value stays here, whereas a merge takes the greater text. Law L20: ``docs/spec/lake.md``.
"""

from __future__ import annotations

import base64
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from botocore.exceptions import BotoCoreError, ClientError

from lakesync.core.clock import COUNTER_BITS
from lakesync.core.column_types import precision_scale
from lakesync.core.names import CHANGES_SUFFIX, LIVE_SUFFIX, ROWS_SUFFIX
from lakesync.materialise.lake_schema import (
    ALIVE,
    CARRIED,
    CHANGES_TABLE,
    CLIENT,
    COMMIT_STAMP,
    DELETED,
    HLC,
    ID,
    IS_DELETED,
    REST,
    STACK,
    STAMPS,
    STATE_TABLE,
    TEXTS,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from lakesync.materialise.lake_schema import Kind, LakeColumn

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
        name = DIALECTS[engine].name(database, self.name)
        return f"CREATE OR REPLACE VIEW {name} AS {self.select}"


class ViewCatalogue(Protocol):
    """Where views are kept."""

    def keep(self, table: ViewedTable) -> Mapping[str, str]:
        """Make a table's views or replace them; give by view why it is not as it should be."""


def views_of(table: ViewedTable, engine: str, catalogue: str = "") -> Iterator[View]:
    """Yield the views of a table, in the SQL of an engine of `DIALECTS`.

    Args:
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
    live = _LiveView(source, changes, names, dialect, delete_wins=table.delete_wins).select()
    yield View(table.name + LIVE_SUFFIX, columns, _shown(columns, f"({live})", dialect), _LIVE)


def schema_statement(database: str, engine: str) -> str:
    """Get the statement that makes the schema of views, if the engine separates it from tables."""
    return f"CREATE SCHEMA IF NOT EXISTS {DIALECTS[engine].name(database)}"


def _shown(columns: tuple[tuple[str, str], ...], source: str, dialect: Dialect) -> str:
    shown = _listed(dialect.shown(name, kind) for name, kind in columns)
    return f"SELECT {shown} FROM {source}"  # noqa: S608 - quoted


# --- live views -----------------------------------------------------------------------------------


_AGO: Final = ("ago_ms", "ago_counter")


class _LiveView:
    """The query of the ids and columns of all rows that exist; each part reads those before it.

    Args:
        delete_wins: how the table is read; see `lakesync.core.merge.as_read`.
    """

    def __init__(
        self,
        state: str,
        changes: str,
        columns: Sequence[str],
        dialect: Dialect,
        *,
        delete_wins: bool,
    ) -> None:
        self._delete_wins = delete_wins
        self._state = state
        self._changes = changes
        # The intermediate columns are numbered, so that a wide table's query stays short.
        self._columns = [_column(dialect.name(name), name, n) for n, name in enumerate(columns)]
        self._dialect = dialect

    def select(self) -> str:
        parts = {
            "waiting": self._waiting(),
            "folded": self._folded(),
            "joined": self._joined(),
            "beside": self._beside(),
            "won": self._won(),
        }
        named = _listed(f"{name} AS ({query})" for name, query in parts.items())
        shown = _listed([ID, *(c.name for c in self._columns)])
        merged = _listed(
            [ID, *(f"CASE WHEN {c.at} > {DELETED} THEN {c.name} END" for c in self._columns)]
        )
        written = () if self._delete_wins else (c.at for c in self._columns)
        exists = " OR ".join(f"{at} > {DELETED}" for at in (ALIVE, *written))
        quiet = f"NOT {IS_DELETED} AND {ID} NOT IN (SELECT {ID} FROM waiting)"  # noqa: S608 - quoted
        return (
            f"WITH {named} SELECT {shown} FROM {self._state} WHERE {quiet}"  # noqa: S608 - quoted
            f" UNION ALL SELECT {merged} FROM won WHERE {exists}"
        )

    def _waiting(self) -> str:
        mark = f"SELECT coalesce(max({COMMIT_STAMP}), 0) FROM {self._state}"  # noqa: S608 - quoted
        return f"SELECT * FROM {self._changes} WHERE {COMMIT_STAMP} > ({mark})"  # noqa: S608 - quoted

    def _folded(self) -> str:
        parts = [
            ID,
            f"max(CASE WHEN _op = 'INSERT' THEN {HLC} ELSE 0 END) AS _new_alive",
            f"max(CASE WHEN _op = 'DELETE' THEN {HLC} ELSE 0 END) AS _new_deleted",
        ]
        for c in self._columns:
            carried = self._dialect.contains.format(list=CARRIED, item=sql_text(c.written))
            parts += [
                f"coalesce(max({HLC}) FILTER (WHERE {carried}), 0) AS {c.new_at}",
                f"{self._last(CLIENT)} FILTER (WHERE {carried}) AS {c.new_by}",
                f"{self._last(c.name)} FILTER (WHERE {carried}) AS {c.new}",
            ]
        return f"SELECT {_listed(parts)} FROM waiting GROUP BY {ID}"  # noqa: S608 - quoted

    def _joined(self) -> str:
        """The waiting changes beside their row, if there is one."""
        own = (f"s.{name}" for name in (HLC, CLIENT, STAMPS, TEXTS, IS_DELETED))
        values = (f"s.{c.name}" for c in self._columns)
        rest = (f"{self._stamp(REST)} AS _rest_at", f"{self._client(REST)} AS _rest_by")
        select = _listed(["w.*", *own, *values, *rest])
        return f"SELECT {select} FROM folded w LEFT JOIN {self._state} s ON s.{ID} = w.{ID}"  # noqa: S608 - quoted

    def _beside(self) -> str:
        whole = f"CASE WHEN {IS_DELETED} THEN {HLC} ELSE 0 END"
        # The greatest stamp of an existing row is its insert's or a column's, so it shows existence
        # too.
        alive = f"{self._number(ALIVE)}, _rest_at" if self._delete_wins else HLC
        parts = [
            "*",
            f"CASE WHEN {IS_DELETED} THEN 0 ELSE coalesce({alive}, 0) END AS {ALIVE}",
            f"coalesce({self._number(DELETED)}, {whole}) AS {DELETED}",
        ]
        for c in self._columns:
            text = self._dialect.scalar.format(json=TEXTS, path=_path(c.written))
            said = self._dialect.is_there.format(json=STAMPS, path=_path(c.written))
            stamp = f"CASE WHEN {said} THEN {self._stamp(c.written)} ELSE _rest_at END"
            client = f"CASE WHEN {said} THEN {self._client(c.written)} ELSE _rest_by END"
            parts += [
                f"CASE WHEN {c.name} IS NULL AND {text} IS NULL THEN 0 ELSE {stamp} END AS {c.at}",
                f"{client} AS {c.by}",
            ]
        return f"SELECT {_listed(parts)} FROM joined"  # noqa: S608 - quoted

    def _won(self) -> str:
        """The winning write of each column, and the stamps of the row's insert and delete."""
        parts = [
            ID,
            f"greatest({ALIVE}, _new_alive) AS {ALIVE}",
            f"greatest({DELETED}, _new_deleted) AS {DELETED}",
        ]
        for c in self._columns:
            later = f"{c.new_at} > {c.at} OR ({c.new_at} = {c.at} AND {c.new_by} > {c.by})"
            parts += [
                f"greatest({c.new_at}, {c.at}) AS {c.at}",
                f"CASE WHEN {later} THEN {c.new} ELSE {c.name} END AS {c.name}",
            ]
        return f"SELECT {_listed(parts)} FROM beside"  # noqa: S608 - quoted

    def _stamp(self, of: str) -> str:
        """The stamp, of which `STAMPS` records the difference from the row's."""
        ms, counter = (f"coalesce({self._number(f'{of}.{n}')}, 0)" for n in _AGO)
        return f"{HLC} - {ms} * {1 << COUNTER_BITS} - {counter}"

    def _client(self, of: str) -> str:
        said = self._dialect.scalar.format(json=STAMPS, path=_path(f"{of}.client_id"))
        return f"coalesce({said}, {CLIENT})"

    def _number(self, path: str) -> str:
        said = self._dialect.scalar.format(json=STAMPS, path=_path(path))
        return f"CAST({said} AS BIGINT)"

    def _last(self, value: str) -> str:
        return self._dialect.last.format(value=value, hlc=HLC, client=CLIENT)


class _Column(NamedTuple):
    """A column, and the names of its intermediate parts; no table's own column begins with `_`."""

    name: str
    """Quoted."""
    written: str
    at: str
    """The stamp of the stored write, 0 if there is none."""
    by: str
    """Its client."""
    new: str
    """The waiting value."""
    new_at: str
    """Its stamp, 0 if none waits."""
    new_by: str


def _column(name: str, written: str, number: int) -> _Column:
    parts = ("at", "by", "new", "new_at", "new_by")
    return _Column(name, written, *(f"_{part}{number}" for part in parts))


def _path(path: str) -> str:
    return sql_text(f"$.{path}")


def sql_text(value: str) -> str:
    """Return a literal; names in the lake have no quotes, and those that have are doubled."""
    return "'" + value.replace("'", "''") + "'"


def _listed(parts: Iterable[str]) -> str:
    return ", ".join(parts)


# --- dialects of engines --------------------------------------------------------------------------


class Dialect(NamedTuple):
    """One engine's SQL, as patterns; each takes SQL expressions, and gives one."""

    quote: str
    """The quotes around a name."""
    contains: str
    """Whether ``list`` contains ``item``."""
    scalar: str
    """The text at a ``path`` of ``json``, NULL if nothing is there."""
    is_there: str
    """Whether anything is at a ``path`` of ``json``."""
    last: str
    """In a group, the ``value`` of the row with the greatest ``hlc`` and ``client``, even if NULL.
    """
    types: Mapping[str, str]
    """By column type (`lakesync.core.column_types`), the type of a view's column."""
    encoded: str
    """Bytes as text."""
    instant: str = "{value}"
    """A point in time, of a type that a view may have."""

    def name(self, *parts: str) -> str:
        return ".".join(
            self.quote + part.replace(self.quote, self.quote * 2) + self.quote for part in parts
        )

    def shown(self, name: str, kind: str) -> str:
        """Return a column of this type as a view may have it, under its own name."""
        quoted = self.name(name)
        value = self.instant.format(value=quoted) if kind == "timestamp" else quoted
        return quoted if value == quoted else f"{value} AS {quoted}"

    def type_name(self, kind: str) -> str:
        decimal = precision_scale(kind)
        return self.types[kind] if decimal is None else f"decimal({decimal[0]},{decimal[1]})"


def _types(text: str, number: str, instant: str, blob: str) -> dict[str, str]:
    return {
        **dict.fromkeys(("string", "json", "null"), text),
        "number": number,
        "boolean": "boolean",
        "integer": "bigint",
        "timestamp": instant,
        "date": "date",
        "bytes": blob,
    }


_TRINO: Final = Dialect(
    quote='"',
    contains="contains({list}, {item})",
    scalar="json_extract_scalar({json}, {path})",
    is_there="json_extract({json}, {path}) IS NOT NULL",
    last="max_by({value}, ROW({hlc}, {client}))",
    types=_types("varchar", "double", "timestamp(6) with time zone", "varbinary"),
    encoded="to_base64({value})",
)
DIALECTS: Final = {
    # Athena makes no view with a time zone column, and the lake's instants are in UTC.
    "athena": _TRINO._replace(
        instant="CAST({value} AT TIME ZONE 'UTC' AS timestamp(6))",
        types=_types("varchar", "double", "timestamp(6)", "varbinary"),
    ),
    "duckdb": Dialect(
        quote='"',
        contains="list_contains({list}, {item})",
        scalar="json_extract_string({json}, {path})",
        is_there="json_extract({json}, {path}) IS NOT NULL",
        last="arg_max_null({value}, ROW({hlc}, {client}))",
        types=_types("varchar", "double", "timestamp with time zone", "blob"),
        encoded="base64({value})",
    ),
    "spark": Dialect(
        quote="`",
        contains="array_contains({list}, {item})",
        scalar="get_json_object({json}, {path})",
        is_there="get_json_object({json}, {path}) IS NOT NULL",
        last="max_by({value}, struct({hlc}, {client}))",
        types=_types("string", "double", "timestamp", "binary"),
        encoded="base64({value})",
    ),
    "trino": _TRINO,
}
"""By the name of the engine."""


# --- in Glue's catalogue --------------------------------------------------------------------------


TEXT_CHARACTERS_MAX: Final = 409_600
"""Length of a view's document in the catalogue: enough for the live view of about 250 columns."""
_OPENING: Final = "/* Presto View: "
_CLOSING: Final = " */"
_EXPANDED: Final = "/* Presto View */"
_VIEW: Final = "VIRTUAL_VIEW"
MISSING: Final = "missing"
_OUTDATED: Final = "outdated"
_TAKEN: Final = "something else has its name"
_ATHENA: Final = DIALECTS["athena"]
# The catalogue's names of types that Athena's engine names differently.
_IN_CATALOGUE: Final = {"varchar": "string", "timestamp(6)": "timestamp", "varbinary": "binary"}


class GlueViews:
    """The views of lake tables in the catalogue of an account."""

    def __init__(self, glue: Any) -> None:
        """Prepare the work."""
        self._glue = glue

    def keep(self, table: ViewedTable) -> Mapping[str, str]:
        """Make a table's views, and replace those that are out of date. Idempotent.

        A view that somebody else made under the same name is left unchanged.

        Returns:
            By view, why it is not as it should be.
        """
        return self.keep_these(table, views_of(table, "athena"))

    def keep_these(self, table: ViewedTable, views: Iterable[View]) -> Mapping[str, str]:
        """Make or replace views beside a table, of whatever tables they are; as `keep` does."""
        faults: dict[str, str] = {}
        for view in views:
            try:
                fault = self._keep_one(table, view)
            except (BotoCoreError, ClientError) as error:
                fault = str(error)
            if fault:
                faults[view.name] = fault
        return faults

    def wrong(self, table: ViewedTable) -> Mapping[str, str]:
        """Return by view what `keep` would change: it is missing, is outdated, or is not ours."""
        return self.these_wrong(table, views_of(table, "athena"))

    def these_wrong(self, table: ViewedTable, views: Iterable[View]) -> Mapping[str, str]:
        wanted = {view.name: table_input(table, view) for view in views}
        conditions = {name: self._condition(table, each) for name, each in wanted.items()}
        return {name: condition for name, condition in conditions.items() if condition}

    def drop_these(self, table: ViewedTable, names: Iterable[str]) -> None:
        """Remove views beside a table, except those that somebody else made. Idempotent."""
        for name in names:
            try:
                current = self._glue.get_table(DatabaseName=table.database, Name=name)["Table"]
            except self._glue.exceptions.EntityNotFoundException:
                continue
            if _is_ours(current, table):
                self._glue.delete_table(DatabaseName=table.database, Name=name)

    def make_database(self, name: str, comment: str) -> None:
        try:
            self._glue.get_database(Name=name)
        except self._glue.exceptions.EntityNotFoundException:
            with suppress(self._glue.exceptions.AlreadyExistsException):
                self._glue.create_database(DatabaseInput={"Name": name, "Description": comment})

    def _keep_one(self, table: ViewedTable, view: View) -> str:
        wanted = table_input(table, view)
        if len(wanted["ViewOriginalText"]) > TEXT_CHARACTERS_MAX:
            return f"its text is longer than {TEXT_CHARACTERS_MAX} characters"
        condition = self._condition(table, wanted)
        if condition == MISSING:
            return self._make(table, wanted)
        if condition == _OUTDATED:
            self._glue.update_table(DatabaseName=table.database, TableInput=wanted)
            return ""
        return condition

    def _condition(self, table: ViewedTable, wanted: Mapping[str, Any]) -> str:
        """Return what is wrong with a view; empty if it is as it should be."""
        try:
            current = self._glue.get_table(DatabaseName=table.database, Name=wanted["Name"])
        except self._glue.exceptions.EntityNotFoundException:
            return MISSING
        if not _is_ours(current["Table"], table):
            return _TAKEN
        return "" if is_as(current["Table"], wanted) else _OUTDATED

    def _make(self, table: ViewedTable, wanted: Mapping[str, Any]) -> str:
        try:
            self._glue.create_table(DatabaseName=table.database, TableInput=wanted)
        except self._glue.exceptions.AlreadyExistsException:
            return "somebody else made it meanwhile"
        return ""


def table_input(table: ViewedTable, view: View) -> dict[str, Any]:
    """Return the request that stores a view in the catalogue."""
    columns = [
        {"Name": name, "Type": _in_catalogue(kind), "Comment": table.comments.get(name, "")}
        for name, kind in view.columns
    ]
    return {
        "Name": view.name,
        "Description": view.comment,
        "TableType": _VIEW,
        "Parameters": {"presto_view": "true", "comment": view.comment, STACK: table.stack},
        "StorageDescriptor": {"Columns": columns, "SerdeInfo": {}},
        "ViewOriginalText": _OPENING + _document(table, view) + _CLOSING,
        "ViewExpandedText": _EXPANDED,
    }


def is_as(current: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Return whether the catalogue's entry of a view is as it should be."""
    columns = current.get("StorageDescriptor", {}).get("Columns", [])
    shown = [
        {"Name": each["Name"], "Type": each.get("Type"), "Comment": each.get("Comment", "")}
        for each in columns
    ]
    said = (current.get("ViewOriginalText"), current.get("Description"), shown)
    return said == (
        wanted["ViewOriginalText"],
        wanted["Description"],
        wanted["StorageDescriptor"]["Columns"],
    )


def _is_ours(view: Mapping[str, Any], table: ViewedTable) -> bool:
    is_view = view.get("TableType") == _VIEW
    return is_view and view.get("Parameters", {}).get(STACK) == table.stack


def _document(table: ViewedTable, view: View) -> str:
    body = {
        "originalSql": view.select,
        "catalog": "awsdatacatalog",
        "schema": table.database,
        "columns": [{"name": name, "type": _ATHENA.type_name(kind)} for name, kind in view.columns],
    }
    return base64.b64encode(json.dumps(body, separators=(",", ":")).encode()).decode()


def _in_catalogue(kind: str) -> str:
    name = _ATHENA.type_name(kind)
    return _IN_CATALOGUE.get(name, name)
