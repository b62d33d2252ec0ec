"""Downloads attachments by the cell that refers to one, resuming where the last try stopped."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Final

from lakesync.client.attachments.entries import AttachmentStatus
from lakesync.client.attachments.folder import disk
from lakesync.client.storage.app_table import quote
from lakesync.core.attachments import references_in
from lakesync.core.delta import check_row_id
from lakesync.errors import DamagedOnTheWay, NotFound, ValidationFailed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lakesync.client.attachments.folder import Folder
    from lakesync.client.storage.file import ClientFile
    from lakesync.core.attachments import Attachment
    from lakesync.ports import CarriesAttachments

_SEVERAL: Final = "the column refers to several attachments; say which by its reference"


class Fetcher:
    """Downloads the attachments of one client. Safe to use from several threads."""

    def __init__(self, file: ClientFile, folder: Folder) -> None:
        self._file = file
        self._folder = folder
        self._one_at_a_time = threading.Lock()

    def cell(self, table: str, row_id: str, column: str, reference: str) -> Attachment:
        """Return the attachment that a cell of this client's rows refers to.

        Raises:
            NotFound: there is no such cell, or it refers to none, or to others.
            ValidationFailed: it refers to several, and none is said.
        """
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
        """Return where a file is on this device, and note that it is used; None if it is not."""
        path = self._folder.file(file)
        if not path.is_file():
            return None
        with self._file.database.transaction():
            self._file.attachments.use(file)
        return path

    def download(
        self, carrier: CarriesAttachments, place: tuple[str, str, str], file: Attachment
    ) -> Path:
        """Download a file, unless it is there.

        Raises:
            DamagedOnTheWay: other bytes arrived; they are discarded.
            LakeSyncError: why it cannot be fetched now; bytes that have arrived stay for the next
                try.
        """
        with self._one_at_a_time:
            if (path := self.local(file)) is not None:
                return path
            with disk():
                start = self._folder.downloaded_bytes(file)
            if start < file.size_bytes or not file.size_bytes:
                request = carrier.ask_download(*place, file)
                pieces = carrier.receive_bytes(request, start)
                self._receive(file, pieces, start)
            return self._whole(file)

    def _receive(self, file: Attachment, pieces: Iterator[bytes], start: int) -> None:
        with disk():
            self._folder.append(file, pieces, start)

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
    """Yield what a cell refers to: the column of an app's table holds JSON as text."""
    yield from references_in(value)
    if isinstance(value, str) and value[:1] in {"[", "{"}:
        try:
            inside = json.loads(value)
        except (ValueError, RecursionError):
            return
        yield from references_in(inside)
