"""A damaged file: detecting it, saving the edits and actions that wait in it, and starting anew.

SQLite reads a damaged table up to the damage, from both ends, and of a file that was cut nothing.
So the pages of a plain file are read one by one as well (`lakesync.client.damaged_pages`), those of
an encrypted one by SQLCipher. An edit contains a digest of itself, so only what was written is
saved. Data that the gateway has is not saved: it is pulled again.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import sqlite3
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from lakesync.client.damaged_pages import NO_ROWS, Pages
from lakesync.client.storage.action_queue import COLUMNS, ActionEntry, ActionStatus
from lakesync.client.storage.attachment_store import AttachmentStatus, Folder
from lakesync.client.storage.cell_values import cell
from lakesync.client.storage.file import open_file
from lakesync.client.storage.file_layout import ADDED, TABLES
from lakesync.client.storage.outbox import PUT, OutboxEntry, Status
from lakesync.client.storage.private_files import copy_file, given_key
from lakesync.client.storage.sqlite_file import attempt
from lakesync.client.storage.stored_state import states_in
from lakesync.core.delta import check_client_id, known_delta
from lakesync.core.merge import view
from lakesync.errors import EditRefused, InternalError, LakeSyncError, NotFound, Unavailable
from lakesync.result import Err, Result
from lakesync.wire.records import encode_records

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lakesync.client.damaged_pages import Cells
    from lakesync.client.storage.file import ClientFile
    from lakesync.client.storage.private_files import GivenKey, Key
    from lakesync.client.storage.stored_rows import LocalKey
    from lakesync.core.clock import Stamp

# --- queued actions -------------------------------------------------------------------------------


_ALSO: Final = ("place", "after_hlc", "sent_ms", "due_ms", "ended_ms")
_ACTION_COLUMNS: Final = f"{COLUMNS}, {', '.join(_ALSO)}"
_LOST: Final = (
    "the file was damaged, and edits that were made before it may be lost, so it was not sent: "
    "look at the rows, then retry the action"
)


@dataclass(slots=True)
class SavedActions:
    """Actions of a damaged file by their places."""

    rows: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    is_complete: bool = True
    unsure: set[int] = field(default_factory=set)
    """Places of actions of which the file may no longer know that they have ended."""

    @property
    def entries(self) -> tuple[ActionEntry, ...]:
        return tuple(entry_of(row) for _, row in sorted(self.rows.items()))

    def add(self, row: tuple[Any, ...]) -> None:
        entry_of(row).to_send("-")
        place, after_hlc, sent_ms, due_ms, ended_ms = row[-len(_ALSO) :]
        if not all(
            isinstance(n, int) for n in (place, after_hlc, sent_ms or 0, due_ms, ended_ms or 0)
        ):
            raise ValueError("a number is none")
        self.rows[place] = row

    def take(self, cells: Mapping[str, Any], *, was_reached: bool) -> None:
        if cells["place"] not in self.rows:
            self.add(tuple(cells[name] for name in _ACTION_COLUMNS.split(", ")))
            if not was_reached:
                self.unsure.add(cells["place"])

    def fill(self, file: ClientFile, *, edits_complete: bool) -> None:
        marks = ", ".join("?" * (_ACTION_COLUMNS.count(",") + 1))
        for place, row in sorted(self.rows.items()):
            file.connection.execute(
                f"INSERT INTO _lakesync_actions ({_ACTION_COLUMNS}) VALUES ({marks})",  # noqa: S608 - names
                row,
            )
            entry, after_hlc = entry_of(row), row[-4]
            waits = entry.status is ActionStatus.WAITING
            is_unsure = place in self.unsure and (waits or entry.status is ActionStatus.SENT)
            if is_unsure or (after_hlc and waits and not edits_complete):
                file.actions.end(entry, EditRefused(_LOST))


def entry_of(row: tuple[Any, ...]) -> ActionEntry:
    return ActionEntry.stored(*row[: -len(_ALSO)])


def read_actions(connection: sqlite3.Connection) -> SavedActions:
    """Read actions from both ends, up to the damage."""
    saved = SavedActions()
    there = "SELECT 1 FROM sqlite_master WHERE name = '_lakesync_actions'"
    try:
        if not connection.execute(there).fetchall():
            return saved  # the file is of a release that had none
    except (sqlite3.Error, UnicodeError):
        saved.is_complete = False
        return saved
    if not _read(connection, "ASC", saved):
        saved.is_complete = False
        _read(connection, "DESC", saved)
    return saved


def _read(connection: sqlite3.Connection, order: str, saved: SavedActions) -> bool:
    complete = True
    sql = f"SELECT {_ACTION_COLUMNS} FROM _lakesync_actions NOT INDEXED ORDER BY place {order}"  # noqa: S608 - names
    try:
        with closing(connection.execute(sql)) as rows:
            for row in rows:
                try:
                    saved.add(row)
                except Exception:  # noqa: BLE001 - whatever decoding raises, it is this one's damage
                    complete = False
    except (sqlite3.Error, UnicodeError):
        return False
    return complete


# --- what can still be read -----------------------------------------------------------------------


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
_COLUMN_NAMES: Final = re.compile(r"[(,]\s*(\w+) (?:INTEGER|TEXT|BLOB)")
SavedEdits: TypeAlias = "dict[Stamp, tuple[int | None, OutboxEntry]]"
"""Entries of a damaged outbox with their local transactions, by stamp."""


class Owner(NamedTuple):
    client_id: str
    floor: Stamp
    """The greatest stamp that is known to be at the gateway."""
    epoch: str = ""
    """The gateway's, as far as it could be read: no other gets the edits."""


@dataclass(slots=True)
class Readable:
    owner: Owner | None = None
    edits: SavedEdits = field(default_factory=dict)
    is_complete: bool = False
    """The whole outbox could be read."""
    actions: SavedActions = field(default_factory=SavedActions)


def checked_entry(hlc: Stamp, *columns: Any) -> OutboxEntry:
    entry = OutboxEntry.stored(*columns)
    again = known_delta(*entry.delta[:6])
    if again.delta_id != entry.delta.delta_id or again.hlc != hlc:
        raise InternalError("the entry is not what was written")
    return entry


def read_damaged(path: Path, key: Key | None) -> Readable:
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
    readable.is_complete = _save(connection, "ASC", readable.edits)
    if not readable.is_complete:
        _save(connection, "DESC", readable.edits)
    readable.actions = read_actions(connection)
    with contextlib.suppress(sqlite3.Error, TypeError, ValueError, LakeSyncError):
        row = connection.execute("SELECT client_id, floor, epoch FROM _lakesync_sync").fetchone()
        readable.owner = Owner(check_client_id(row[0]), int(row[1]), str(row[2]))


def _save(connection: sqlite3.Connection, order: str, saved: SavedEdits) -> bool:
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
        self._columns = {name: _COLUMN_NAMES.findall(schema[name][1]) for name in _MADE}
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


# --- the new file ---------------------------------------------------------------------------------


_BEHIND: Final = ("-wal", "-shm")
"""Files that SQLite keeps beside the database; the log contains edits, the other is recreated."""


@dataclass(frozen=True, slots=True)
class Salvaged:
    """The content that was saved of a damaged file."""

    edits: tuple[OutboxEntry, ...]
    """The edits that wait, oldest first; the new file's outbox holds them."""
    is_complete: bool
    """The whole outbox, and all actions, could be read; if not, some may be missing, made between
    those saved or after the last.
    """
    kept: Path
    """The damaged file, as it was; its log is beside it."""
    actions: tuple[ActionEntry, ...] = ()
    """The actions that were queued, whatever their state; the new file's queue has them. If edits
    may be missing, actions that waited for edits are dead letters there.
    """


def is_sound(file: ClientFile) -> bool:
    """Return whether a file is undamaged, as far as that can be checked. Reads all of it."""
    try:
        with file.database.reading() as connection:
            if connection.execute("PRAGMA quick_check").fetchall() != [("ok",)]:
                return False
            tables, state_of = set(), states_in(connection)
            rows = connection.execute("SELECT table_id, state, base FROM _lakesync_rows")
            for table_id, state, base in rows:
                for value in (view(state_of(table_id, state)) or {}).values():
                    cell(value)
                state_of(table_id, base)
                tables.add(table_id)
            for action in connection.execute(f"SELECT {COLUMNS} FROM _lakesync_actions"):  # noqa: S608
                ActionEntry.stored(*action).to_send("-")
            for table_id, *columns in connection.execute(
                "SELECT table_id, hlc, status, run, code, message, field FROM _lakesync_outbox"
            ):
                checked_entry(*columns)
                tables.add(table_id)
            known = {row[0] for row in connection.execute("SELECT id FROM _lakesync_tables")}
            owners = connection.execute("SELECT count(*) FROM _lakesync_sync").fetchone()
            return tables <= known and owners == (1,)
    except Exception:  # noqa: BLE001 - whatever reading it raises: what was written can be read
        return False


def salvage(path: str | Path, *, key: GivenKey | None = None) -> Result[Salvaged, LakeSyncError]:
    """Save the edits that wait in a damaged file, and replace it by a new file.

    For ``CORRUPT``. The new file belongs to the same client, and its outbox has every edit that
    could still be read, under its old stamp, so that the gateway recognises those that it already
    has. Everything else is pulled again. The damaged file is copied before it is replaced, so this
    may be repeated after a crash. An ``Err`` states why nothing was changed. An encrypted file
    needs its key, and the new file has the same key.

    Nobody may have the file open: close the client first.
    """
    try:
        return attempt(lambda: _begin_anew(Path(path), given_key(key)))
    except OSError as exc:
        return Err(Unavailable(f"the disk reports an error: {exc}; correct it and salvage again"))


def _begin_anew(path: Path, key: Key | None) -> Salvaged:
    if not path.is_file():
        raise NotFound(f"there is no file {str(path)!r} to salvage", field="path")
    readable = read_damaged(path, key)
    owner, saved, actions = readable.owner, readable.edits, readable.actions
    kept = _copied(path)
    new = path.with_name(f"{path.name}.new")
    _remove_beside(new)
    new.unlink(missing_ok=True)
    if owner is not None:
        file = open_file(new, owner.client_id, key=key)
        _fill(file, path, owner, readable)
    _remove_beside(path)
    if owner is not None:
        new.replace(path)
    else:  # the client is unknown, and no edit is left: opening it creates a new file
        path.unlink()
    edits = tuple(entry for _, (_, entry) in sorted(saved.items()))
    is_all = (
        readable.is_complete and actions.is_complete and (owner is not None or not actions.rows)
    )
    return Salvaged(edits, is_complete=is_all, kept=kept, actions=actions.entries)


def _fill(file: ClientFile, path: Path, owner: Owner, readable: Readable) -> None:
    """Fill outbox and queue of a new file; all attachments are offered to the gateway again."""
    with contextlib.closing(file.database), file.database.transaction() as connection:
        connection.execute(
            "UPDATE _lakesync_sync SET floor = ?, epoch = ?", (owner.floor, owner.epoch)
        )
        keys: dict[LocalKey, None] = {}
        for hlc, (txn, entry) in sorted(readable.edits.items()):
            delta, status, error = entry.delta, entry.status, entry.error
            names = [name for name, _ in delta.columns]
            table = file.catalogue.table(delta.table, names, received=True)
            keys[table.id, delta.row_id] = None
            if status not in {Status.PENDING, Status.QUARANTINED}:
                status = Status.SENT  # the gateway may hold it
            refusal = (error.code, error.message, error.field) if error else (None, None, None)
            run = encode_records((delta,))
            connection.execute(PUT, (hlc, txn, status, run, table.id, delta.row_id, *refusal))
        file.rows.refold(keys)
        for known in Folder(path).named():
            file.attachments.put(known, AttachmentStatus.WAITING)
        readable.actions.fill(file, edits_complete=readable.is_complete)


def _copied(path: Path) -> Path:
    names = (path.with_name(f"{path.name}.corrupt-{number}") for number in count(1))
    kept = next(name for name in names if not name.exists())
    log = path.with_name(f"{path.name}{_BEHIND[0]}")
    if log.exists():
        copy_file(log, kept.with_name(f"{kept.name}{_BEHIND[0]}"))
    copy_file(path, kept)
    return kept


def _remove_beside(path: Path) -> None:
    for ending in _BEHIND:
        path.with_name(f"{path.name}{ending}").unlink(missing_ok=True)
