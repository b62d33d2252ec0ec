"""Attachments of a `MemoryGateway`: by the gateway's own code, with the bytes in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lakesync.adapters.attachments.memory import MemorySignedObjects
from lakesync.core.attachments import ATTACHMENT_BYTES_MAX
from lakesync.gateway.attachments import AttachmentService

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from lakesync.core.attachments import Attachment
    from lakesync.gateway.attachments import AttachmentRows
    from lakesync.ports import SignedRequest, UploadState


class MemoryAttachments:
    """The attachments of one gateway in memory."""

    def __init__(self, rows: AttachmentRows) -> None:
        self.objects = MemorySignedObjects()
        self.service = AttachmentService(rows, self.objects, bytes_max=ATTACHMENT_BYTES_MAX)


class CarriesInMemory:
    """`lakesync.ports.CarriesAttachments` to a gateway in the same process.

    Args:
        attachments: gives the service, and raises if no request may arrive now.
        gateway: the gateway's name.
        claims: gives the claims of the client's token.
    """

    def __init__(
        self,
        attachments: Callable[[], MemoryAttachments],
        gateway: str,
        claims: Callable[[], Mapping[str, Any]],
    ) -> None:
        self._attachments = attachments
        self._gateway_name = gateway
        self._claims = claims

    def ask_upload(
        self, reference: Attachment, parts: Sequence[str], upload: str, epoch: str = ""
    ) -> UploadState:
        """Ask how far an upload is, and for what is to be sent next."""
        service = self._attachments().service
        return service.upload(self._gateway_name, str(reference), list(parts), upload, epoch)

    def ask_download(
        self, table: str, row_id: str, column: str, reference: Attachment
    ) -> SignedRequest:
        """Ask for what reads an attachment that a cell refers to."""
        service, place = self._attachments().service, (table, row_id, column)
        return service.download(self._gateway_name, self._claims(), place, str(reference))

    def send_bytes(self, request: SignedRequest, content: bytes) -> None:
        """Store the bytes."""
        self._attachments().objects.send_bytes(request, content)

    def receive_bytes(self, request: SignedRequest, start: int) -> Iterator[bytes]:
        """Yield the bytes, piece by piece; it ends early when the gateway goes offline."""
        for piece in self._attachments().objects.receive_bytes(request, start):
            self._attachments()
            yield piece
