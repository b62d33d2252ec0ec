"""`Attachments`: files beside the rows: ``client.attachments``."""

from __future__ import annotations

import mimetypes
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from uuid import uuid4

from lakesync.client.attachments.entries import AttachmentStatus
from lakesync.client.attachments.fetch import Fetcher
from lakesync.client.attachments.folder import BYTES, Folder, disk
from lakesync.client.attachments.upload import Uploader, UploadSummary
from lakesync.core.attachments import attachment, checked_media_type, checked_reference
from lakesync.errors import ValidationFailed
from lakesync.result import Result, heard

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    from lakesync.client.attachments.entries import AttachmentEntry
    from lakesync.client.attachments.folder import Source
    from lakesync.client.live.status import Activity
    from lakesync.client.storage.file import ClientFile
    from lakesync.core.attachments import Attachment
    from lakesync.errors import LakeSyncError
    from lakesync.ports import Transport

    T = TypeVar("T")

    class _Attempt(Protocol):
        def __call__(self, operation: Callable[[], T]) -> Result[T, LakeSyncError]: ...


def _never() -> bool:
    return False


class Attachments:
    """The attachments of one client. Laws G6-G8: ``docs/spec/attachments.md``.

    ::

        photo = client.attachments.add("beach.jpg").unwrap()
        client.update("todos", "t1", {"photo": str(photo)}).unwrap()
        client.attachments.fetch("todos", "t1", "photo").unwrap()      # a path, on any client

    Their bytes are in a folder beside the client's file, and are not encrypted: a client with a key
    refuses attachments.
    """

    def __init__(
        self, file: ClientFile, path: str | Path, transport: Transport, activity: Activity,
        attempt: _Attempt, wake: Callable[[], None], *, is_encrypted: bool,
    ) -> None:  # fmt: skip
        self._file = file
        self._attempt = attempt
        self._wake = wake
        self._is_encrypted = is_encrypted
        self._folder = Folder(path)
        self._fetcher = Fetcher(file, self._folder)
        self._uploader = Uploader(file, self._folder, transport, activity)

    def add(self, source: Source, *, media_type: str = "") -> Result[Attachment, LakeSyncError]:
        """Copy a file, and queue it to be uploaded; it is on the disk when this returns.

        ``str()`` of the result is the value to store, in any number of rows. The same content is
        one attachment.

        Args:
            source: a path, bytes, or a file that is open for bytes.
            media_type: ``image/jpeg``; else guessed by a path's ending.
        """
        named = mimetypes.guess_type(str(source))[0] if isinstance(source, str | Path) else None
        result = self._attempt(
            lambda: self._add(source, checked_media_type(media_type or named or BYTES))
        )
        self._wake()
        return heard(result, "an attachment")

    def _add(self, source: Source, media_type: str) -> Attachment:
        self._check_not_encrypted()
        with disk():
            new, digester = self._folder.write(source)
            try:
                with self._file.database.transaction():
                    table = self._file.attachments
                    content = digester.digest(), digester.size_bytes, media_type
                    if (file := table.added(*content)) is None:
                        file = attachment(uuid4().hex, *content)
                        table.put(file, AttachmentStatus.WAITING, digester.part_digests())
                    table.wait(file)  # checked again: the gateway may no longer have it
                    new.replace(self._folder.file(file))
            finally:
                new.unlink(missing_ok=True)
        return file

    def _check_not_encrypted(self) -> None:
        if self._is_encrypted:
            raise ValidationFailed(
                "this client's file is encrypted, and the bytes of attachments would not be: keep "
                "them yourself, or use a client without a key"
            )

    def fetch(
        self, table: str, row_id: str, column: str, reference: str | Attachment = ""
    ) -> Result[Path, LakeSyncError]:
        """Get the path of the attachment that a cell refers to, downloading it unless it is here.

        ``NOT_YET_UPLOADED``: its client has not uploaded it. An interrupted download continues
        where it stopped. The app must not change the file; it stays until it is evicted.

        Args:
            table: as in `insert`, and so is ``row_id``.
            row_id: of a row that this client has.
            column: its value is a reference, or JSON that contains some.
            reference: which one, if there are several.
        """
        return self._attempt(lambda: self._fetch((table, row_id, column), str(reference)))

    def _fetch(self, place: tuple[str, str, str], reference: str) -> Path:
        self._check_not_encrypted()
        file = self._fetcher.cell(*place, reference)
        path = self._fetcher.local(file)
        return path or self._fetcher.download(self._uploader.carrier(), place, file)

    def path(self, reference: str | Attachment) -> Result[Path | None, LakeSyncError]:
        """Return the path of an attachment on this device; None if it would have to be fetched."""
        return self._attempt(lambda: self._fetcher.local(checked_reference(str(reference))))

    def pending(self) -> Result[list[AttachmentEntry], LakeSyncError]:
        """Return the attachments that wait to be uploaded, oldest first."""
        return self._attempt(lambda: self._listed(AttachmentStatus.WAITING))

    def refused(self) -> Result[list[AttachmentEntry], LakeSyncError]:
        """Return the attachments that the gateway does not take, with why."""
        return self._attempt(lambda: self._listed(AttachmentStatus.REFUSED))

    def _listed(self, status: AttachmentStatus) -> list[AttachmentEntry]:
        with self._file.database.lock:
            return self._file.attachments.listed(status)

    def retry(self, reference: str | Attachment) -> Result[AttachmentEntry, LakeSyncError]:
        """Have an attachment uploaded again that was refused."""
        result = self._attempt(lambda: self._changed(reference, self._file.attachments.wait))
        self._wake()
        return heard(result, "retry of an attachment")

    def discard(self, reference: str | Attachment) -> Result[AttachmentEntry, LakeSyncError]:
        """Remove an attachment from this device, though the gateway may not have it."""

        def remove(file: Attachment) -> None:
            self._file.attachments.remove(file)
            self._folder.file(file).unlink(missing_ok=True)

        result = self._attempt(lambda: self._changed(reference, remove))
        return heard(result, "discard of an attachment")

    def _changed(
        self, reference: str | Attachment, change: Callable[[Attachment], None]
    ) -> AttachmentEntry:
        file = checked_reference(str(reference))
        with disk(), self._file.database.transaction():
            entry = self._file.attachments.get(file)
            change(file)
            return entry

    def upload(
        self, *, stopped: Callable[[], bool] = _never
    ) -> Result[UploadSummary, LakeSyncError]:
        """Upload all that waits, until ``stopped()`` is true; `SyncLoop` does it beside its syncs.

        The error reports what still waits; its ``done`` is an `UploadSummary`.
        """
        return self._attempt(lambda: self._uploader.upload(stopped))

    def evict(self, keep_bytes: int = 0) -> Result[int, LakeSyncError]:
        """Remove the least recently used files from this device, down to this many bytes.

        Gives the bytes that remain here. Files that the gateway is not known to have stay.
        """
        return self._attempt(lambda: self._evict(keep_bytes))

    def _evict(self, keep_bytes: int) -> int:
        table = self._file.attachments
        with disk(), self._file.database.transaction():
            evictable = table.by_use()
            waiting = [*table.listed(AttachmentStatus.WAITING)]
            waiting += table.listed(AttachmentStatus.REFUSED)
            size = sum(entry.attachment.size_bytes for entry in [*evictable, *waiting])
            for entry in evictable:
                if size <= keep_bytes:
                    break
                size -= entry.attachment.size_bytes
                table.remove(entry.attachment)
                self._folder.file(entry.attachment).unlink(missing_ok=True)
            self._folder.remove_strays(table.file_names())
        return size

    def is_waiting(self) -> bool:
        """Return whether anything waits to be uploaded."""
        return bool(self.pending().unwrap_or([]))
