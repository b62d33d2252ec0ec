"""A damaged file: detecting it, saving the edits that wait in it, and starting a new file.

What can still be read of it: `lakesync.client.recovery.damaged`. Data that the gateway has is not
saved: it is pulled again.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lakesync.client.actions.entries import COLUMNS, ActionEntry
from lakesync.client.attachments.entries import AttachmentStatus
from lakesync.client.attachments.folder import Folder
from lakesync.client.private_files import copy_file
from lakesync.client.recovery.damaged import checked_entry, read_damaged
from lakesync.client.storage.cells import cell
from lakesync.client.storage.encryption import given_key
from lakesync.client.storage.failures import attempt
from lakesync.client.storage.file import open_file
from lakesync.client.storage.stored_state import states_in
from lakesync.client.upload.entries import OutboxEntry, Status
from lakesync.client.upload.outbox import PUT
from lakesync.core.merge import view
from lakesync.errors import LakeSyncError, NotFound, Unavailable
from lakesync.result import Err, Result
from lakesync.wire.records import encode_records

if TYPE_CHECKING:
    from lakesync.client.recovery.damaged import Owner, Readable
    from lakesync.client.storage.encryption import GivenKey, Key
    from lakesync.client.storage.file import ClientFile
    from lakesync.client.storage.rows import LocalKey

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
    """Fill the outbox and the queue of a new file with what was saved.

    The bytes of attachments are beside it, and all of them are offered to the gateway again.
    """
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
    """Keep a damaged file with its log, under the first name that is free."""
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
