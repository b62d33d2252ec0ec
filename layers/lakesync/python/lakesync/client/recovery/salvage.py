"""A damaged file: telling that it is, saving the edits that wait in it, and beginning anew.

SQLite reads a damaged table up to the damage. So the outbox is read from both ends, which gives all
of it if one place is damaged. What the gateway holds is not saved: it is pulled again.
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lakesync.client.storage.catalogue import Catalogue
from lakesync.client.storage.cells import cell
from lakesync.client.storage.database import open_database
from lakesync.client.storage.failures import translated
from lakesync.client.storage.rows import Rows
from lakesync.client.storage.tables import claim
from lakesync.client.upload.entries import OutboxEntry, Status
from lakesync.client.upload.outbox import PUT
from lakesync.core.delta import check_client_id, checked_delta
from lakesync.core.merge import view
from lakesync.errors import InternalError, LakeSyncError, NotFound, Unavailable
from lakesync.result import Err, Ok, Result
from lakesync.wire.records import encode_records
from lakesync.wire.row_state import decode_row_state

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lakesync.client.storage.rows import LocalKey
    from lakesync.core.clock import Stamp

_ENTRIES: Final = "SELECT hlc, txn, status, run, code, message, field FROM _lakesync_outbox "
_OWNER: Final = "SELECT client_id, floor FROM _lakesync_sync"
_BEHIND: Final = ("-wal", "-shm")
"""What SQLite keeps beside a file; the log holds edits, the other is made anew."""


@dataclass(frozen=True, slots=True)
class Salvaged:
    """What was saved of a damaged file."""

    edits: tuple[OutboxEntry, ...]
    """The edits that wait, oldest first; the new file's outbox holds them."""
    is_complete: bool
    """The whole outbox could be read; if not, edits may be missing that were made between the
    edits saved, or after the last."""
    kept: Path
    """The damaged file, as it was; its log is beside it."""


class Owner(NamedTuple):
    """Whose a file is."""

    client_id: str
    floor: Stamp
    """The greatest stamp that is known to be at the gateway."""


class Saved(NamedTuple):
    """An entry of a damaged outbox."""

    hlc: Stamp
    txn: int | None
    entry: OutboxEntry


def is_sound(connection: sqlite3.Connection) -> bool:
    """Tell whether a file is as it was written, as far as that can be told. Reads all of it."""
    try:
        if connection.execute("PRAGMA quick_check").fetchall() != [("ok",)]:
            return False
        known = {row[0] for row in connection.execute("SELECT id FROM _lakesync_tables")}
        rows = connection.execute("SELECT table_id, state, base FROM _lakesync_rows")
        for table_id, state, base in rows:
            for value in (view(decode_row_state(state)) or {}).values():
                cell(value)
            decode_row_state(base or None)
            if table_id not in known:
                return False
        for table_id, *columns in connection.execute(
            "SELECT table_id, hlc, txn, status, run, code, message, field FROM _lakesync_outbox"
        ):
            _saved(*columns)
            if table_id not in known:
                return False
        return bool(connection.execute("SELECT count(*) = 1 FROM _lakesync_sync").fetchone()[0])
    except Exception:  # noqa: BLE001 - whatever reading it raises: what was written can be read
        return False


def _read(path: Path) -> tuple[Owner | None, list[Saved], bool]:
    """Give whose a damaged file is, what can be read of its outbox, and whether that is all."""
    saved: dict[Stamp, Saved] = {}
    owner: Owner | None = None
    uri = f"{path.absolute().as_uri()}?mode=ro"
    with contextlib.closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as connection:
        complete = _walk(connection, f"{_ENTRIES} ORDER BY hlc", saved)
        if not complete:
            _walk(connection, f"{_ENTRIES} ORDER BY hlc DESC", saved)
        with contextlib.suppress(sqlite3.Error, TypeError, LakeSyncError):
            client_id, floor = connection.execute(_OWNER).fetchone()
            owner = Owner(check_client_id(client_id), int(floor))
    entries = [saved[hlc] for hlc in sorted(saved)]
    if owner is None and entries:
        owner = Owner(entries[0].entry.delta.client_id, 0)
    return owner, entries, complete


def _walk(connection: sqlite3.Connection, sql: str, saved: dict[Stamp, Saved]) -> bool:
    """Save entries until the damage; tells whether there was none."""
    complete = True
    try:
        for columns in connection.execute(sql):
            try:
                one = _saved(*columns)
            except Exception:  # noqa: BLE001 - whatever decoding it raises, it is this one's damage
                complete = False
                continue
            saved[one.hlc] = one
    except (sqlite3.Error, UnicodeError):
        return False
    return complete


def _saved(hlc: Stamp, txn: int | None, *columns: Any) -> Saved:
    entry = OutboxEntry.stored(*columns)
    again = checked_delta(*entry.delta[:6])
    if again.delta_id != entry.delta.delta_id or again.hlc != hlc:
        raise InternalError("the entry is not what was written")
    return Saved(hlc, txn, entry)


def salvage(path: str | Path) -> Result[Salvaged, LakeSyncError]:
    """Save the edits that wait in a damaged file, and put a new file in its place.

    For ``CORRUPT``. The new file belongs to the same client, and its outbox holds every edit that
    could still be read, under the stamps that it had, so that one that the gateway holds already is
    recognised. Everything else is pulled again. The damaged file is copied before it is replaced,
    so this may be repeated after a crash.

    Args:
        path: the file. Nobody may have it open: close the client first.

    Returns:
        What was saved; or why not, and nothing was changed.
    """
    try:
        return Ok(_begin_anew(Path(path)))
    except LakeSyncError as error:
        return Err(error)
    except sqlite3.Error as exc:
        return Err(translated(exc))
    except OSError as exc:
        return Err(Unavailable(f"the disk refuses: {exc}; see to it and salvage again"))


def _begin_anew(path: Path) -> Salvaged:
    if not path.is_file():
        raise NotFound(f"there is no file {str(path)!r} to salvage", field="path")
    owner, saved, complete = _read(path)
    kept = _copied(path)
    new = path.with_name(f"{path.name}.new")
    _remove_beside(new)
    new.unlink(missing_ok=True)
    if owner is not None:
        _fill(new, owner, saved)
    _remove_beside(path)
    if owner is not None:
        new.replace(path)
    else:  # nothing tells whose it was, and no edit is left: who opens it makes a new one
        path.unlink()
    return Salvaged(tuple(one.entry for one in saved), is_complete=complete, kept=kept)


def _fill(path: Path, owner: Owner, saved: Iterable[Saved]) -> None:
    """Make a file of a client whose outbox holds saved entries."""
    database = open_database(path, "FULL", sqlite3.Connection)
    try:
        claim(database.writer, owner.client_id)
        catalogue = Catalogue(database.writer)
        keys: dict[LocalKey, None] = {}
        with database.transaction() as connection:
            connection.execute("UPDATE _lakesync_sync SET floor = ?", (owner.floor,))
            for hlc, txn, entry in saved:
                delta, status, error = entry.delta, entry.status, entry.error
                table = catalogue.table(
                    delta.table, [name for name, _ in delta.columns], received=True
                )
                keys[table.id, delta.row_id] = None
                if status not in {Status.PENDING, Status.QUARANTINED}:
                    status = Status.SENT  # the gateway may hold it
                refusal = (error.code, error.message, error.field) if error else (None, None, None)
                run = encode_records((delta,))
                connection.execute(PUT, (hlc, txn, status, run, table.id, delta.row_id, *refusal))
            Rows(connection, catalogue).refold(keys, {})
    finally:
        database.close()


def _copied(path: Path) -> Path:
    """Keep a damaged file with its log, under the first name that is free."""
    number = 1
    while (kept := path.with_name(f"{path.name}.corrupt-{number}")).exists():
        number += 1
    log = path.with_name(f"{path.name}{_BEHIND[0]}")
    if log.exists():
        shutil.copy2(log, kept.with_name(f"{kept.name}{_BEHIND[0]}"))
    shutil.copy2(path, kept)
    return kept


def _remove_beside(path: Path) -> None:
    for ending in _BEHIND:
        path.with_name(f"{path.name}{ending}").unlink(missing_ok=True)
