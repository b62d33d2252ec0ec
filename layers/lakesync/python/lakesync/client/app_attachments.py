"""`Attachments`: files beside the rows, added offline, uploaded and fetched part by part.

Rules of this module
    1. The parts that the gateway reports missing are sent; no record of sent parts is kept here. So
       an upload that is interrupted at any point resumes with the first part that did not arrive.
    2. The database's lock is never held while waiting for the network.
    3. An attachment that fails does not stop the others from being uploaded.
    4. Beside a `SyncLoop` uploads have a thread of their own: a large file keeps no edit waiting.
       The thread exists while something waits to be uploaded, and ends when nothing does, or when
       its loop is stopped, which ends every wait early.
    5. One is fetched by the cell that refers to it, resuming where the last try stopped.
"""

from __future__ import annotations

import json
import logging
import mimetypes
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from lakesync.client.storage.app_table import quote
from lakesync.client.storage.attachment_store import BYTES, AttachmentStatus, Folder, disk
from lakesync.client.waits import never
from lakesync.core.attachments import (
    attachment,
    checked_media_type,
    checked_reference,
    references_in,
)
from lakesync.core.delta import check_row_id
from lakesync.errors import (
    AnotherGateway,
    AuthFailed,
    DamagedOnTheWay,
    FileCorrupt,
    InternalError,
    LakeSyncError,
    NotFound,
    NotOffered,
    Retry,
    Unreachable,
    ValidationFailed,
)
from lakesync.ports import CarriesAttachments
from lakesync.result import Err, Result, heard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lakesync.client.client_status import Activity
    from lakesync.client.storage.attachment_store import AttachmentEntry, Source
    from lakesync.client.storage.file import ClientFile
    from lakesync.client.storage.sqlite_file import Attempt
    from lakesync.core.attachments import Attachment
    from lakesync.ports import Transport

# --- uploads --------------------------------------------------------------------------------------


ROUNDS_MAX: Final = 1_000
"""How often one upload requests its progress: more often than it has parts."""
_DAMAGED: Final = "its file on this device is damaged: discard it and add it again"


@dataclass(frozen=True, slots=True)
class UploadSummary:
    """What uploading did."""

    stored: int = 0
    """Attachments that the gateway has now."""
    refused: int = 0
    """Attachments that it does not take."""


class Uploader:
    """Uploads the attachments of one client. Safe to use from several threads."""

    def __init__(
        self, file: ClientFile, folder: Folder, transport: Transport, activity: Activity
    ) -> None:
        self._file = file
        self._folder = folder
        self._transport = transport
        self._activity = activity
        self._one_at_a_time = threading.Lock()

    def carrier(self) -> CarriesAttachments:
        if not isinstance(self._transport, CarriesAttachments):
            raise NotOffered("this transport carries no attachments: use HttpTransport")
        return self._transport

    def upload(self, stopped: Callable[[], bool]) -> UploadSummary:
        """Upload all that waits, or until stopped; see `Attachments.upload`."""
        self._file.database.must_be_idle()
        stored = refused = 0
        first: LakeSyncError | None = None
        with self._one_at_a_time, self._activity.uploading():
            for entry in self._waiting():
                try:
                    if not self._one(entry, stopped):
                        break
                except LakeSyncError as error:
                    if self._is_final(entry, error):
                        refused += 1
                        continue
                    first = first or error
                    if isinstance(error, Unreachable | AuthFailed | NotOffered | AnotherGateway):
                        break
                else:
                    stored += 1
        self._activity.ended("attachments", first)
        if first is not None:
            first.done = UploadSummary(stored, refused)
            raise first
        return UploadSummary(stored, refused)

    def _waiting(self) -> list[AttachmentEntry]:
        with self._file.database.lock:
            return self._file.attachments.listed(AttachmentStatus.WAITING)

    def _one(self, entry: AttachmentEntry, stopped: Callable[[], bool]) -> bool:
        carrier, file, upload = self.carrier(), entry.attachment, entry.upload
        with disk():  # of one whose digests were lost with a damaged file, they are taken again
            parts = entry.parts or self._folder.digester(self._folder.file(file)).part_digests()
        table, database = self._file.attachments, self._file.database
        with database.lock:
            epoch = self._file.position().epoch
        for _ in range(ROUNDS_MAX):
            if stopped():
                return False
            state = carrier.ask_upload(file, parts, upload, epoch)
            if state.stored:
                with database.transaction():
                    table.end(file)
                return True
            if state.upload != upload:
                upload = state.upload
                with database.transaction():
                    table.note_upload(file, upload)
            for request in state.requests:
                if stopped():
                    return False
                with disk():
                    content = self._folder.read_part(file, request.part)
                carrier.send_bytes(request, content)
        raise InternalError(f"an upload of {file.size_bytes} bytes does not end; report it")

    def _is_final(self, entry: AttachmentEntry, error: LakeSyncError) -> bool:
        file = entry.attachment
        path = self._folder.file(file)
        with disk():
            is_there = path.is_file()
            # Bytes that never arrive whole may be wrong from the beginning.
            suspects = isinstance(error, DamagedOnTheWay) or not is_there
            if suspects and not (is_there and self._folder.is_whole(path, file)):
                error = FileCorrupt(_DAMAGED)
        if error.retry is not Retry.NEVER or isinstance(error, NotOffered | AnotherGateway):
            return False
        with self._file.database.transaction():
            self._file.attachments.refuse(file, error)
        return True


# --- uploads beside a loop ------------------------------------------------------------------------


_log = logging.getLogger("lakesync.client")


class BackgroundUploads:
    """Uploads one client's waiting attachments; ``backoff_s`` gives the wait after a failure."""

    def __init__(
        self, attachments: Attachments, backoff_s: Callable[[LakeSyncError, int], float]
    ) -> None:
        self._attachments = attachments
        self._backoff_s = backoff_s
        self._thread: threading.Thread | None = None

    def start(self, stopped: threading.Event) -> None:
        """Begin if anything waits and no upload is running; called only by the loop's thread."""
        is_running = self._thread is not None and self._thread.is_alive()
        if is_running or stopped.is_set() or not self._attachments.is_waiting():
            return
        self._thread = threading.Thread(
            target=self._run, args=(stopped,), name="lakesync-attachments", daemon=True
        )
        self._thread.start()

    def join(self, timeout_s: float) -> bool:
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(max(0.0, timeout_s))
            return not thread.is_alive()
        return True

    def _run(self, stopped: threading.Event) -> None:
        failures = 0
        while not stopped.is_set() and self._attachments.is_waiting():
            try:
                result = self._attachments.upload(stopped=stopped.is_set)
            except Exception:  # noqa: BLE001 - as in the loop
                _log.exception("an upload raised; it is tried again with a later sync")
                return
            if isinstance(result, Err):
                if isinstance(result.error, NotOffered):
                    return
                failures += 1
                stopped.wait(self._backoff_s(result.error, failures))
            else:
                failures = 0


# --- downloads ------------------------------------------------------------------------------------


_SEVERAL: Final = "the column refers to several attachments; say which by its reference"


class Fetcher:
    """Downloads the attachments of one client. Safe to use from several threads."""

    def __init__(self, file: ClientFile, folder: Folder) -> None:
        self._file = file
        self._folder = folder
        self._one_at_a_time = threading.Lock()

    def cell(self, table: str, row_id: str, column: str, reference: str) -> Attachment:
        """Return the attachment that a cell refers to; several, and none said, are refused."""
        check_row_id(row_id)
        names = self._file.sql_name(table, None), self._file.sql_name(table, column)
        rows: list[tuple[object, ...]] = []
        if all(names):
            app_table, app_column = (quote(str(name)) for name in names)
            sql = f"SELECT {app_column} FROM {app_table} WHERE _row_id = ?"  # noqa: S608 - quoted
            _, rows = self._file.database.read(sql, (row_id,))
        there = {str(each): each for value in rows for each in _references(value[0])}
        if reference:
            there = {text: each for text, each in there.items() if text == reference}
        if not there:
            raise NotFound(
                "no such row refers to such an attachment in that column", field="column"
            )
        if len(there) > 1:
            raise ValidationFailed(_SEVERAL, field="reference")
        return next(iter(there.values()))

    def local(self, file: Attachment) -> Path | None:
        path = self._folder.file(file)
        if not path.is_file():
            return None
        with self._file.database.transaction():
            self._file.attachments.use(file)
        return path

    def download(
        self, carrier: CarriesAttachments, place: tuple[str, str, str], file: Attachment
    ) -> Path:
        """Download a file, unless it is there; bytes that have arrived stay for the next try."""
        with self._one_at_a_time:
            if (path := self.local(file)) is not None:
                return path
            with disk():
                start = self._folder.downloaded_bytes(file)
            if start < file.size_bytes or not file.size_bytes:
                request = carrier.ask_download(*place, file)
                with disk():
                    self._folder.append(file, carrier.receive_bytes(request, start), start)
            return self._whole(file)

    def _whole(self, file: Attachment) -> Path:
        part, path = self._folder.part(file), self._folder.file(file)
        with disk():
            if not self._folder.is_whole(part, file):
                part.unlink(missing_ok=True)
                raise DamagedOnTheWay(
                    "the bytes received are not those of the reference; try again"
                )
            with self._file.database.transaction():
                self._file.attachments.put(file, AttachmentStatus.KEPT)
                part.replace(path)
        return path


def _references(value: object) -> Iterator[Attachment]:
    yield from references_in(value)
    if isinstance(value, str) and value[:1] in {"[", "{"}:
        try:
            inside = json.loads(value)
        except (ValueError, RecursionError):
            return
        yield from references_in(inside)


# --- what an app calls ----------------------------------------------------------------------------


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
        attempt: Attempt, wake: Callable[[], None], *, is_encrypted: bool,
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
        self, *, stopped: Callable[[], bool] = never
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
