"""What can still be read of a damaged file: its owner, the edits that wait, the queued actions.

SQLite reads a damaged table up to the damage, from both ends, and of a file that was cut nothing.
So the pages of a plain file are read one by one as well (`lakesync.client.recovery.pages`), those
of an encrypted one by SQLCipher. An edit contains a digest of itself, so only what was written is
saved.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import sqlite3
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from lakesync.client.recovery.pages import NO_ROWS, Pages
from lakesync.client.recovery.saved_actions import SavedActions, read_actions
from lakesync.client.storage.tables import ADDED, TABLES
from lakesync.client.upload.entries import OutboxEntry, Status
from lakesync.core.delta import check_client_id, known_delta
from lakesync.errors import InternalError, LakeSyncError

if TYPE_CHECKING:
    from lakesync.client.recovery.pages import Cells
    from lakesync.client.storage.encryption import Key
    from lakesync.core.clock import Stamp

_CHECKED: Final = ("hlc", "status", "run", "code", "message", "field")
_ENTRIES: Final = f"SELECT txn, {', '.join(_CHECKED)} FROM _lakesync_outbox"  # noqa: S608 - names
_OUTBOX: Final = "_lakesync_outbox"
_ACTIONS: Final = "_lakesync_actions"
_SYNC: Final = "_lakesync_sync"
_MADE: Final = {
    name: sql
    for name in (_OUTBOX, _ACTIONS, _SYNC)
    for sql in (*TABLES, *ADDED)
    if f"TABLE {name} " in sql or f"EXISTS {name} " in sql
}
"""How the tables that are read page by page are made; the file itself says so, while it can."""
_ROOT: Final = "UPDATE sqlite_master SET rootpage = ? WHERE name = '_lakesync_outbox'"
_NAMES: Final = re.compile(r"[(,]\s*(\w+) (?:INTEGER|TEXT|BLOB)")
SavedEdits: TypeAlias = "dict[Stamp, tuple[int | None, OutboxEntry]]"
"""Entries of a damaged outbox with their local transactions, by stamp."""


class Owner(NamedTuple):
    """Whose file it is."""

    client_id: str
    floor: Stamp
    """The greatest stamp that is known to be at the gateway."""
    epoch: str = ""
    """The gateway's, as far as it could be read: no other gets the edits."""


@dataclass(slots=True)
class Readable:
    """What can be read of a damaged file."""

    owner: Owner | None = None
    edits: SavedEdits = field(default_factory=dict)
    is_complete: bool = False
    """The whole outbox could be read."""
    actions: SavedActions = field(default_factory=SavedActions)


def checked_entry(hlc: Stamp, *columns: Any) -> OutboxEntry:
    """Return an entry of the outbox; raises if it is not what was written."""
    entry = OutboxEntry.stored(*columns)
    again = known_delta(*entry.delta[:6])
    if again.delta_id != entry.delta.delta_id or again.hlc != hlc:
        raise InternalError("the entry is not what was written")
    return entry


def read_damaged(path: Path, key: Key | None) -> Readable:
    """Read what can be read of a damaged file; raises nothing for what cannot."""
    readable = Readable()
    uri = f"{path.absolute().as_uri()}?mode=ro"
    connect = partial(key.connect, is_damaged=True) if key else sqlite3.connect
    with contextlib.closing(connect(uri, uri=True, isolation_level=None)) as connection:
        _read_by_sqlite(connection, readable)
    if key is None:
        with contextlib.closing(Pages(path)) as pages:
            _ByPages(pages, readable)
    elif not readable.is_complete:
        _read_each_page(path, key, readable)
    if readable.owner is None and readable.edits:
        first = readable.edits[min(readable.edits)]
        readable.owner = Owner(first[1].delta.client_id, 0)
    return readable


def _read_by_sqlite(connection: sqlite3.Connection, readable: Readable) -> None:
    """Read until the damage, from both ends."""
    readable.is_complete = _save(connection, "ASC", readable.edits)
    if not readable.is_complete:
        _save(connection, "DESC", readable.edits)
    readable.actions = read_actions(connection)
    with contextlib.suppress(sqlite3.Error, TypeError, ValueError, LakeSyncError):
        row = connection.execute("SELECT client_id, floor, epoch FROM _lakesync_sync").fetchone()
        readable.owner = Owner(check_client_id(row[0]), int(row[1]), str(row[2]))


def _save(connection: sqlite3.Connection, order: str, saved: SavedEdits) -> bool:
    """Save entries until the damage; returns whether there was none."""
    complete = True
    try:
        for txn, hlc, *columns in connection.execute(f"{_ENTRIES} ORDER BY hlc {order}"):
            try:
                saved[hlc] = txn, checked_entry(hlc, *columns)
            except Exception:  # noqa: BLE001 - whatever decoding raises, it is this one's damage
                complete = False
    except (sqlite3.Error, UnicodeError):
        return False
    return complete


class _ByPages:
    """Adds what is in the pages of the tables, and in pages to which no table leads any more."""

    def __init__(self, pages: Pages, readable: Readable) -> None:
        self._readable = readable
        stored = pages.schema()
        schema = {name: (0, sql) for name, sql in _MADE.items()} | stored
        self._columns = {name: _NAMES.findall(schema[name][1]) for name in _MADE}
        tables = {name: pages.table(schema[name][0]) for name in _MADE}
        if stored and _ACTIONS not in stored:  # the file is of a release that had none
            tables[_ACTIONS] = NO_ROWS
        for name, table in tables.items():
            for row in table.rows.items():
                self._take(name, *row, was_reached=True)
        entries = len(tables[_OUTBOX].rows)
        if tables[_OUTBOX].is_whole and entries == len(readable.edits):
            readable.is_complete = True
        if tables[_ACTIONS].is_whole and len(tables[_ACTIONS].rows) == len(readable.actions.rows):
            readable.actions.is_complete = True
        if not all(table.is_whole for table in tables.values()):
            known = pages.free().union(*(table.pages for table in tables.values()))
            for row in pages.leaves(known):
                for name in _MADE:
                    self._take(name, *row, was_reached=False)

    def _take(self, table: str, row_id: int, row: Cells, *, was_reached: bool) -> None:
        """Take a row that may be of a table, if it is."""
        first, *others = self._columns[table]  # SQLite stores null for a rowid of its own name
        if row[:1] != (None,) or not len(row) <= 1 + len(others):
            return
        cells = {first: row_id, **dict(zip(others, row[1:], strict=False))}
        with contextlib.suppress(Exception):  # whatever decoding raises, it is no row of the table
            if table == _OUTBOX:
                self._take_edit(cells, was_reached=was_reached)
            elif table == _ACTIONS:
                self._readable.actions.take(cells, was_reached=was_reached)
            elif self._readable.owner is None and isinstance(cells["layout"], int):
                owner = check_client_id(cells["client_id"])
                self._readable.owner = Owner(owner, int(cells["floor"]), str(cells["epoch"]))

    def _take_edit(self, cells: dict[str, Any], *, was_reached: bool) -> None:
        entry = checked_entry(*(cells[name] for name in _CHECKED))
        if not was_reached and entry.status == Status.PENDING:
            # It may be of a page that was freed since, so the gateway may hold it.
            entry = replace(entry, status=Status.SENT)
        self._readable.edits.setdefault(cells["hlc"], (cells["txn"], entry))


def _read_each_page(path: Path, key: Key, readable: Readable) -> None:
    """Read an encrypted outbox page by page: in a copy of the file, each in turn is its root.

    After a page that is damaged SQLCipher refuses all others, so the copy is opened again.
    """
    with TemporaryDirectory(prefix="lakesync-") as folder:
        copy = Path(folder, "copy.db")
        for ending in ("", "-wal"):
            beside = path.with_name(f"{path.name}{ending}")
            if beside.exists():
                shutil.copyfile(beside, f"{copy}{ending}")
        number, count = 0, 1
        while number < count:
            connection = key.connect(str(copy), isolation_level=None, is_damaged=True)
            with contextlib.closing(connection):
                try:
                    ((count,),) = connection.execute("PRAGMA page_count").fetchall()
                    connection.execute("PRAGMA synchronous = OFF").close()
                    is_read = True
                    while is_read and number < count:
                        number += 1
                        connection.execute(_ROOT, (number,)).close()
                        connection.execute("PRAGMA writable_schema = RESET").close()
                        connection.execute("PRAGMA writable_schema = ON").close()
                        is_read = _save(connection, "ASC", readable.edits)
                except sqlite3.Error:  # the schema itself is damaged
                    return
