"""What the app itself keeps in its file, where it stands in the way of a synced table.

Rules of this module
    1. An edit of a table whose name an object of the app has would be written where no query of
       that name looks: it is refused (``NAME_TAKEN``).
    2. A row of a synced table that a trigger writes would be no edit, and a row that a trigger
       leaves out would still be one: such a trigger is named in the refusal of every edit that
       would fire it, and does not fire for anything that the gateway sends.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from lakesync.client.storage.app_table import (
    RESERVED_TABLES,
    ROW_ID,
    Trigger,
    free_name,
    quote,
)
from lakesync.client.storage.tables import PREFIX
from lakesync.errors import NameTaken, ValidationFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from lakesync.client.storage.app_table import AppTable

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
        """Return SQLite's name for a new table.

        Raises:
            NameTaken: an object of the app has the name, and the table is not the gateway's.
        """
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
