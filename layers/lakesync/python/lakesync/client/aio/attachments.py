"""`AsyncAttachments`: what `Attachments` offers, awaited."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakesync.client.aio.editor import answered

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from lakesync.client.aio.threads import Threads
    from lakesync.client.attachments.api import Attachments
    from lakesync.client.attachments.entries import AttachmentEntry
    from lakesync.client.attachments.folder import Source
    from lakesync.client.attachments.upload import UploadSummary
    from lakesync.core.attachments import Attachment
    from lakesync.errors import LakeSyncError
    from lakesync.result import Result


class AsyncAttachments:
    """As `Attachments`."""

    def __init__(self, attachments: Attachments, threads: Threads) -> None:
        self._attachments = attachments
        self._threads = threads

    async def add(
        self, source: Source, *, media_type: str = ""
    ) -> Result[Attachment, LakeSyncError]:
        """As `Attachments.add`."""
        return await answered(
            self._threads.write(lambda: self._attachments.add(source, media_type=media_type))
        )

    async def fetch(
        self, table: str, row_id: str, column: str, reference: str | Attachment = ""
    ) -> Result[Path, LakeSyncError]:
        """As `Attachments.fetch`."""
        return await answered(
            self._threads.sync(lambda _: self._attachments.fetch(table, row_id, column, reference))
        )

    async def path(self, reference: str | Attachment) -> Result[Path | None, LakeSyncError]:
        """As `Attachments.path`."""
        return await answered(self._threads.write(lambda: self._attachments.path(reference)))

    async def pending(self) -> Result[list[AttachmentEntry], LakeSyncError]:
        """As `Attachments.pending`."""
        return await answered(self._threads.read(self._attachments.pending))

    async def refused(self) -> Result[list[AttachmentEntry], LakeSyncError]:
        """As `Attachments.refused`."""
        return await answered(self._threads.read(self._attachments.refused))

    async def retry(self, reference: str | Attachment) -> Result[AttachmentEntry, LakeSyncError]:
        """As `Attachments.retry`."""
        return await answered(self._threads.write(lambda: self._attachments.retry(reference)))

    async def discard(self, reference: str | Attachment) -> Result[AttachmentEntry, LakeSyncError]:
        """As `Attachments.discard`."""
        return await answered(self._threads.write(lambda: self._attachments.discard(reference)))

    async def upload(
        self, *, stopped: Callable[[], bool] = lambda: False
    ) -> Result[UploadSummary, LakeSyncError]:
        """As `Attachments.upload`; ``stopped`` is asked on another thread."""
        return await answered(
            self._threads.sync(
                lambda given_up: self._attachments.upload(stopped=lambda: given_up() or stopped())
            )
        )

    async def evict(self, keep_bytes: int = 0) -> Result[int, LakeSyncError]:
        """As `Attachments.evict`."""
        return await answered(self._threads.write(lambda: self._attachments.evict(keep_bytes)))
