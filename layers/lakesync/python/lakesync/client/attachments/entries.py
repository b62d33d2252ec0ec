"""The attachments that a client's file knows, and what becomes of each."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from lakesync.core.attachments import SCHEME, checked_reference
from lakesync.errors import NotFound

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection, Sequence

    from lakesync.client.storage.device_clock import DeviceClock
    from lakesync.core.attachments import Attachment
    from lakesync.errors import LakeSyncError


class AttachmentStatus(StrEnum):
    """What becomes of an attachment."""

    WAITING = "waiting"
    """It was added here, and is uploaded when there is a network."""
    REFUSED = "refused"
    """The gateway refuses it: its entry has the reason."""
    KEPT = "kept"
    """The gateway has it; its bytes are here too, and may be evicted."""


@dataclass(frozen=True, slots=True)
class AttachmentEntry:
    """An attachment whose bytes are on the device."""

    attachment: Attachment
    status: AttachmentStatus
    code: str
    """Why the gateway refuses it; empty if it does not."""
    message: str
    parts: tuple[str, ...]
    """The digests of its parts; none of one that was fetched."""
    upload: str
    """What the gateway knows its upload by; empty if that is not begun."""


_COLUMNS: Final = "reference, status, code, message, parts, upload"
_WHERE: Final = f"SELECT {_COLUMNS} FROM _lakesync_attachments WHERE "  # noqa: S608 - names
_BEHIND_KEY: Final = len(SCHEME) + 32 + len(":") + 1
_GONE: Final = "no attachment on this device has this reference"


class AttachmentTable:
    """The attachments of one file. Used within the caller's transaction, or its lock."""

    def __init__(self, connection: sqlite3.Connection, clock: DeviceClock) -> None:
        self._run = connection.execute
        self._clock = clock

    def put(self, file: Attachment, status: AttachmentStatus, parts: Sequence[str] = ()) -> None:
        """Record that a file exists here, in place of its former record."""
        self._run(
            "INSERT OR REPLACE INTO _lakesync_attachments "
            "(file_name, reference, status, parts, used_ms) VALUES (?, ?, ?, ?, ?)",
            (file.file_name, str(file), status, json.dumps(parts), self._clock.device_ms()),
        )

    def get(self, file: Attachment) -> AttachmentEntry:
        """Return the stored entry of a file.

        Raises:
            NotFound: nothing is.
        """
        for entry in self._entries("file_name = ?", file.file_name):
            return entry
        raise NotFound(_GONE, field="reference")

    def added(self, digest: str, size_bytes: int, media_type: str) -> Attachment | None:
        """Return the attachment that was made here of the same content, if one was."""
        content = f"{digest}:{size_bytes}:{media_type}"
        ours = f"parts <> '[]' AND substr(reference, {_BEHIND_KEY}) = ? LIMIT 1"
        return next((entry.attachment for entry in self._entries(ours, content)), None)

    def listed(self, status: AttachmentStatus) -> list[AttachmentEntry]:
        """Return the attachments of a status, in the order in which they were added."""
        return self._entries("status = ? ORDER BY rowid", status)

    def by_use(self) -> list[AttachmentEntry]:
        """Return those that may be evicted, that which was used longest ago first."""
        return self._entries("status = ? ORDER BY used_ms, rowid", AttachmentStatus.KEPT)

    def file_names(self) -> frozenset[str]:
        """Return the names of all files that are known."""
        rows = self._run("SELECT file_name FROM _lakesync_attachments")
        return frozenset(name for (name,) in rows)

    def _entries(self, where: str, *values: object) -> list[AttachmentEntry]:
        return [
            AttachmentEntry(
                checked_reference(reference), AttachmentStatus(status), code, message,
                tuple(json.loads(parts)), upload,
            )
            for reference, status, code, message, parts, upload in self._run(_WHERE + where, values)
        ]  # fmt: skip

    def note_upload(self, file: Attachment, upload: str) -> None:
        """Note what the gateway knows an upload by."""
        self._change(file, upload=upload)

    def use(self, file: Attachment) -> None:
        """Note that a file was used just now."""
        self._change(file, used_ms=self._clock.device_ms())

    def end(self, file: Attachment) -> None:
        """Note that the gateway has a file."""
        self._change(file, status=AttachmentStatus.KEPT, upload="", code="", message="")

    def refuse(self, file: Attachment, error: LakeSyncError) -> None:
        """Note that the gateway does not take a file."""
        refused = AttachmentStatus.REFUSED
        self._change(file, status=refused, code=error.code, message=error.message)

    def wait(self, file: Attachment) -> None:
        """Have a file uploaded, or uploaded again."""
        self._change(file, status=AttachmentStatus.WAITING, code="", message="")

    def start_elsewhere(self, wanted: Collection[Attachment], *, keep_waiting: bool) -> None:
        """Have files uploaded to another gateway: those wanted there, and those that wait."""
        waiting = (AttachmentStatus.WAITING, AttachmentStatus.REFUSED)
        for entry in self._entries("true"):
            if entry.attachment in wanted or (keep_waiting and entry.status in waiting):
                self._change(entry.attachment, upload="")
                self.wait(entry.attachment)
            elif entry.status in waiting:
                self.remove(entry.attachment)

    def remove(self, file: Attachment) -> None:
        """Forget a file."""
        self._run("DELETE FROM _lakesync_attachments WHERE file_name = ?", (file.file_name,))

    def _change(self, file: Attachment, **changes: object) -> None:
        sets = ", ".join(f"{name} = ?" for name in changes)
        self._run(
            f"UPDATE _lakesync_attachments SET {sets} WHERE file_name = ?",  # noqa: S608 - names
            (*changes.values(), file.file_name),
        )
