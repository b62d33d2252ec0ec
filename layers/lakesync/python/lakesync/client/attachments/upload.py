"""Uploads the attachments of one client, part by part.

Rules of this module
    1. The parts that the gateway reports missing are sent; no record of sent parts is kept here. So
       an upload that is interrupted at any point resumes with the first part that did not arrive.
    2. The database's lock is never held while waiting for the network.
    3. An attachment that fails does not stop the others from being uploaded.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lakesync.client.attachments.entries import AttachmentStatus
from lakesync.client.attachments.folder import disk
from lakesync.errors import (
    AnotherGateway,
    AuthFailed,
    DamagedOnTheWay,
    FileCorrupt,
    InternalError,
    LakeSyncError,
    NotOffered,
    Retry,
    Unreachable,
)
from lakesync.ports import CarriesAttachments

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.client.attachments.entries import AttachmentEntry
    from lakesync.client.attachments.folder import Folder
    from lakesync.client.live.status import Activity
    from lakesync.client.storage.file import ClientFile
    from lakesync.ports import Transport

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
        """Return the transport, if it carries attachments.

        Raises:
            NotOffered: it does not.
        """
        if not isinstance(self._transport, CarriesAttachments):
            raise NotOffered("this transport carries no attachments: use HttpTransport")
        return self._transport

    def upload(self, stopped: Callable[[], bool]) -> UploadSummary:
        """Upload all waiting attachments, or until stopped.

        Raises:
            LakeSyncError: why some attachments still wait; its ``done`` is an `UploadSummary`.
        """
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
        """Upload an attachment; False if it was stopped before the end."""
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
        """Note a refusal for good; returns whether it is one."""
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
