"""A table of the app in SQL: what writes its rows, which queries read it, what stands in its way.

What cells say is in `lakesync.client.storage.cell_values`. The exact value stays in the row state:
a cell is for reading, never for merging. A column that is declared ``decimal(p,s)`` is text with
the collation `COLLATION`, so that comparisons, sorting and indexes are exact; SQLite's own command
line has a collation of this name that does the same. Values that are not decimals sort after all
decimals, as text.

Rules of this module
    1. An edit of a table whose name an object of the app has would be written where no query of
       that name looks: it is refused (``NAME_TAKEN``).
    2. A row of a synced table that a trigger writes would be no edit, and a row that a trigger
       leaves out would still be one: such a trigger is named in the refusal of every edit that
       would fire it, and does not fire for anything that the gateway sends.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import sqlite3
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from lakesync.client.storage.cell_values import (
    FORMS,
    cell,
    kind_of,
    read_value,
    rewriter,
    value_of,
    writer,
)
from lakesync.client.storage.file_layout import JOURNAL, PREFIX
from lakesync.client.storage.stored_state import Places
from lakesync.core.merge import as_read
from lakesync.errors import NameTaken, ValidationFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from lakesync.client.storage.cell_values import Cell
    from lakesync.core.delta import CanonicalJson
    from lakesync.core.merge import RowState
    from lakesync.errors import LakeSyncError

# --- what a query reads ---------------------------------------------------------------------------


Answer: TypeAlias = "tuple[list[str], list[tuple[object, ...]]]"
"""The column names and the rows of a query."""
ColumnKey: TypeAlias = tuple[str, str]
"""SQLite's names of a table and a column of it, in small letters."""

_READING: Final = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE}
_PRAGMAS: Final = {
    *("table_info", "table_xinfo", "table_list", "index_list", "index_info", "index_xinfo"),
    *("foreign_key_list", "database_list", "collation_list", "compile_options", "function_list"),
    *("integrity_check", "quick_check"),
}
"""Those that tell of a table or an index, which they may be given by name."""
_PRAGMAS_BARE: Final = {
    *("user_version", "application_id", "schema_version", "data_version", "page_count"),
    *("page_size", "freelist_count", "journal_mode", "synchronous", "encoding"),
}
"""Those that only tell as long as they are given nothing."""


def reads_of(
    connection: sqlite3.Connection, sql: str, parameters: object = ()
) -> frozenset[ColumnKey]:
    """Return the columns that a query reads, and the views of which it reads columns."""
    read: set[ColumnKey] = set()

    def note(action: int, subject: str | None, detail: str | None, *details: Any) -> int:
        if action == sqlite3.SQLITE_READ and subject:
            read.add((subject.lower(), (detail or "").lower()))
        return only_reads(action, subject, detail, *details)

    connection.set_authorizer(note)
    try:
        answer_of(connection, f"EXPLAIN {sql}", parameters)
    finally:
        connection.set_authorizer(only_reads)
    return frozenset(read)


def tables_in(read: frozenset[ColumnKey]) -> frozenset[str] | None:
    """Return the tables of `reads_of`, in small letters; None if not only an app's own."""
    tables = frozenset(table for table, _ in read)
    internal = any(name.startswith((PREFIX, "sqlite_", "pragma_")) for name in tables)
    return tables if tables and not internal else None


def answer_of(connection: sqlite3.Connection, sql: str, parameters: object = ()) -> Answer:
    cursor = connection.execute(sql, parameters)  # type: ignore[arg-type]  # sequence or mapping
    try:
        return [column[0] for column in cursor.description or ()], cursor.fetchall()
    finally:
        cursor.close()


def only_reads(action: int, subject: str | None, detail: str | None, *_: object) -> int:
    """Let SQLite prepare what reads, and nothing else."""
    return sqlite3.SQLITE_OK if is_reading(action, subject, detail) else sqlite3.SQLITE_DENY


def is_reading(action: int, subject: str | None, detail: str | None) -> bool:
    """Return whether something that SQLite is about to prepare reads, and nothing else."""
    if action == sqlite3.SQLITE_READ and subject == JOURNAL:
        return False
    return action in _READING or (
        (action == sqlite3.SQLITE_FUNCTION and detail != "load_extension")
        or (action == sqlite3.SQLITE_PRAGMA and subject in _PRAGMAS)
        or (action == sqlite3.SQLITE_PRAGMA and subject in _PRAGMAS_BARE and detail is None)
        # SQLite says this of table-valued functions; it refuses to write to that table by itself.
        or (action == sqlite3.SQLITE_UPDATE and subject == "sqlite_master")
    )


# --- a table --------------------------------------------------------------------------------------


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
    `lakesync.client.storage.cell_values`.
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
        return as_read(state, delete_wins=self.delete_wins)

    def value(self, name: str, raw: CanonicalJson) -> Any:
        return read_value(self.kind(name), raw)

    def kind(self, name: str) -> str:
        return kind_of(self.declared.get(name, ""))

    def written(self, name: str, content: Any, kind: str) -> Any:
        return value_of(content, kind, self.forms.get(name, 0))

    def prepare(self) -> None:
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


# --- the app's own objects ------------------------------------------------------------------------


WRITING: Final = frozenset({sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE})
"""What SQLite calls a statement's writing of rows."""
_FUNCTIONS: Final = frozenset(
    {
        *("json_each", "json_tree", "jsonb_each", "jsonb_tree", "generate_series", "carray"),
        *("dbstat", "bytecode", "tables_used", "explain", "completion", "prefixes", "wholenumber"),
        *("fsdir", "zipfile", "vtablog", "spellfix1", "closure", "unionvtab", "swarmvtab", "csv"),
        *("fts3", "fts3tokenize", "fts4", "fts4aux", "fts5", "fts5vocab", "rtree", "rtree_i32"),
        *("geopoly", "amatch", "approximate_match", "templatevtab", "memstat", "stmt"),
    }
)
"""Tables and functions that builds of SQLite have without anybody making them. A table of the same
name would take their place in every query."""
_SKIPS_ROWS: Final = re.compile(r"\braise\s*\(\s*ignore\b", re.IGNORECASE)
_OBJECT: Final = (
    "SELECT type FROM main.sqlite_master WHERE lower(name) = ? AND type <> 'trigger' "
    "AND lower(name) NOT IN (SELECT lower(sql_name) FROM _lakesync_tables)"
)
_HIDES: Final = (
    "the app has {article} {kind} named {name} of its own, which every query of that name means; "
    "nothing was written: rename it, or give the synced table another name"
)
_WRITES: Final = (
    "a trigger of the app, {trigger}, writes to the synced table {target}, which would be no edit: "
    "drop the trigger, and write there by execute"
)
_SKIPS: Final = (
    "a trigger of the app, {trigger}, leaves out rows of the synced table {target} "
    "(RAISE(IGNORE)), which would be edits all the same: drop it, or let it RAISE(ABORT, …)"
)


class AppObjects:
    """The app's own objects in one file. Used within the caller's transaction."""

    def __init__(self, connection: sqlite3.Connection, tables: Mapping[str, AppTable]) -> None:
        self._connection = connection
        self._tables = tables
        self._known: object = None
        self._barred: dict[int, tuple[Trigger, ...]] = {}

    def free_name(self, name: str, *, received: bool) -> str:
        """Return SQLite's name for a new table; `NameTaken` if an object of the app has it."""
        if not received and (error := self._hidden_by(name)):
            raise error()
        execute = self._connection.execute
        objects = execute("SELECT lower(name) FROM main.sqlite_master WHERE type <> 'trigger'")
        taken = {other for (other,) in objects} | _FUNCTIONS
        taken |= {row[0].lower() for row in execute("PRAGMA module_list").fetchall()}
        return free_name(name, taken, RESERVED_TABLES)

    def look(self) -> None:
        """See again which edits of the synced tables are refused for an object of the app.

        Cost: one scan of the schema. What the app's triggers write is looked at only if they, or
        the tables, are others than before.
        """
        tables = self._tables.values()
        triggers = self._connection.execute(
            "SELECT lower(tbl_name), name, sql FROM main.sqlite_master WHERE type = 'trigger'"
        ).fetchall()
        known = triggers and (triggers, [(t.id, t.sql_name, *t.columns) for t in tables])
        if known != self._known:
            self._barred = _barred(self._connection, triggers, tables) if triggers else {}
            self._known = known
        for table in tables:
            table.barred_triggers = self._barred.get(table.id, ())
            is_elsewhere = table.sql_name.lower() != table.name.lower()
            table.barred = self._hidden_by(table.name) if is_elsewhere else None
            if table.barred_triggers and table.barred is None:
                sentence = table.barred_triggers[0].sentence
                table.barred = partial(ValidationFailed, sentence, field="table")
            if table.barred is not None:
                table.templates.clear()

    def check(self) -> None:
        """Do so after the app has made an object; raises if it stands in the way of a table."""
        free = [table for table in self._tables.values() if not table.barred]
        self.look()
        for table in free:
            table.check()

    def _hidden_by(self, name: str) -> Callable[[], NameTaken] | None:
        """Return what makes the error of edits of a table whose name an object of the app has."""
        if name.lower().startswith(RESERVED_TABLES):
            return None
        for (kind,) in self._connection.execute(_OBJECT, (name.lower(),)).fetchall():
            article = "an" if kind == "index" else "a"
            sentence = _HIDES.format(article=article, kind=kind, name=name)
            return partial(NameTaken, sentence, field="table")
        return None


@contextlib.contextmanager
def suspended(connection: sqlite3.Connection, table: AppTable) -> Iterator[None]:
    """Let the block write to a table without firing the triggers that may not fire."""
    for trigger in table.barred_triggers:
        connection.execute(f"DROP TRIGGER main.{quote(trigger.name)}")
    yield
    for trigger in table.barred_triggers:
        connection.execute(trigger.sql)


def _barred(
    connection: sqlite3.Connection, triggers: list[tuple[str, str, str]],
    tables: Collection[AppTable],
) -> dict[int, tuple[Trigger, ...]]:  # fmt: skip
    """Return the triggers that may not fire, by the tables whose rows fire them."""
    sql_of = {name: sql for _, name, sql in triggers}
    names = {table.sql_name.lower(): table.name for table in tables}
    barred: dict[int, tuple[Trigger, ...]] = {}
    for table in tables:
        own = table.sql_name.lower()
        direct = {name: sql for on, name, sql in triggers if on == own}
        if not direct:
            continue
        sentences = {
            name: _SKIPS.format(trigger=name, target=table.name)
            for name, sql in direct.items()
            if _SKIPS_ROWS.search(sql)
        }
        for name, target in _writes_of(connection, table):
            if target.startswith(PREFIX) or target in names:
                shown = names.get(target, target)
                sentences[name] = _WRITES.format(trigger=name, target=shown)
        if sentences:
            barred[table.id] = tuple(
                Trigger(name, sql_of[name], sentence) for name, sentence in sentences.items()
            )
    return barred


def _writes_of(connection: sqlite3.Connection, table: AppTable) -> set[tuple[str, str]]:
    """Return which tables' rows triggers write when any row of a table is written."""
    written: set[tuple[str, str]] = set()

    def note(action: int, *details: Any) -> int:
        if action in WRITING and details[-1] and details[0]:
            written.add((details[-1], details[0].lower()))
        return sqlite3.SQLITE_OK

    name, key = f"main.{quote(table.sql_name)}", quote(ROW_ID)
    columns = [key, *(quote(column) for column in table.columns.values() if column)]
    changes = ", ".join(f"{column} = {column}" for column in columns)
    connection.set_authorizer(note)
    try:
        for statement in (
            f"INSERT INTO {name} ({key}) VALUES ('')",  # noqa: S608 - quoted names
            f"UPDATE {name} SET {changes}",  # noqa: S608 - quoted names
            f"DELETE FROM {name}",  # noqa: S608 - quoted names
        ):
            with contextlib.suppress(sqlite3.OperationalError):  # broken: it cannot fire either
                connection.execute(f"EXPLAIN {statement}").close()
    finally:
        connection.set_authorizer(None)
    return written


# --- types and forms of columns -------------------------------------------------------------------


def keep_forms(connection: sqlite3.Connection, table: AppTable, name: str, forms: int) -> None:
    """Store the forms of a column, and mark the cells that these change the reading of."""
    connection.execute(
        "UPDATE _lakesync_columns SET forms = ? WHERE table_id = ? AND name = ?",
        (forms, table.id, name),
    )
    sql_name = table.columns.get(name)
    now = rewriter(table.kind(name), table.forms.get(name, 0), forms)
    if sql_name is None or now is None:
        return
    where, mark = now
    column, key, shown = quote(sql_name), quote(ROW_ID), quote(table.sql_name)
    rows = connection.execute(
        f"SELECT {column}, {key} FROM {shown} WHERE {where.format(column)}"  # noqa: S608 - quoted
    ).fetchall()
    with suspended(connection, table):
        connection.executemany(
            f"UPDATE {shown} SET {column} = ? WHERE {key} = ?",  # noqa: S608 - quoted
            [(mark(content), row_id) for content, row_id in rows],
        )


def sql_type_of(kind: str) -> str:
    """Return the SQL type of a column of a declared kind; mostly none, so SQLite converts nothing.

    That of decimals makes text of what they are compared with.
    """
    return DECIMAL if kind == "decimal" else ""
