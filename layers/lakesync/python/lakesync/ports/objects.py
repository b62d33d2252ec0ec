"""Objects and queues: how data leaves the buffer, and where attachments' bytes are stored.

The store of attachments signs addresses, to which clients send the bytes themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lakesync.core.attachments import Attachment
    from lakesync.core.clock import Stamp

# --- objects, queues and batches ------------------------------------------------------------------


class ObjectStore(Protocol):
    """Objects under keys: S3, or a dictionary in tests."""

    def put_object(self, key: str, body: bytes, content_type: str) -> None:
        """Store an object; storing the same again changes nothing."""
        ...

    def get_object(self, key: str) -> bytes:
        """Return an object's bytes.

        Raises:
            lakesync.errors.NotFound: it does not exist.
        """
        ...

    def get_range(self, key: str, start: int, size: int) -> bytes:
        """Return ``size`` bytes of an object from an offset on, fewer if it ends before.

        Raises:
            lakesync.errors.NotFound: the object does not exist, or ends before the offset.
        """
        ...

    def list_objects(self, prefix: str) -> list[str]:
        """Return the keys under a prefix, in order."""
        ...

    def delete_object(self, key: str) -> None:
        """Remove an object; idempotent."""
        ...


class Queue(Protocol):
    """Messages to the next stage, delivered at least once."""

    def send(self, body: str) -> None:
        """Send a message; when this returns it is durable."""
        ...


class BatchEncoder(Protocol):
    """One table's deltas as the bytes of one object."""

    def encode(self, rows: Sequence[BatchRow], columns: Mapping[str, str]) -> bytes:
        """Return the object; the same rows give the same bytes.

        Args:
            rows: the deltas in commit order.
            columns: the name in the object of each column that occurs.
        """
        ...


@dataclass(frozen=True, slots=True)
class BatchRow:
    """One delta in a batch for the lake."""

    commit: Stamp
    ordinal: int
    """Its place in the commit."""
    op: str
    row_id: str
    client_id: str
    hlc: Stamp
    delta_id: str
    columns: tuple[tuple[str, bytes], ...]


# --- attachments ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SignedRequest:
    """A request that its bearer may make for a limited time, and no other request."""

    url: str
    headers: Mapping[str, str]
    """Headers that must be sent exactly so: they are signed."""
    part: int = 1
    """Which part of the file it sends."""


@dataclass(frozen=True, slots=True)
class UploadState:
    """The progress of an upload, and what is to be sent next."""

    stored: bool
    """The whole file is stored, and matches its reference."""
    upload: str = ""
    """The id of the upload in parts: sent back when its next parts are requested."""
    requests: tuple[SignedRequest, ...] = ()
    """Requests for parts to send; then ask again."""
    parts_stored: int = 0
    """The number of stored parts."""


class SignedObjects(Protocol):
    """A store of objects that signs requests for others to make.

    An existing object is never replaced. Keys and digests are checked by the caller. Methods raise
    `lakesync.errors` when the store refuses or cannot be reached; all of them are idempotent.
    """

    def size_of(self, key: str) -> int | None:
        """Return the bytes of an object; None if there is none."""
        ...

    def sign_put(self, key: str, size_bytes: int, digest: str) -> SignedRequest:
        """Sign the request that stores an object of exactly this length and SHA-256."""
        ...

    def begin_upload(self, key: str) -> str:
        """Begin an upload in parts."""
        ...

    def parts(self, key: str, upload: str) -> Mapping[int, str] | None:
        """Return the stored parts, by number, with the store's id of each.

        None if there is no such upload of this object: it has ended, or never existed.
        """
        ...

    def sign_part(
        self, key: str, upload: str, number: int, size_bytes: int, digest: str
    ) -> SignedRequest:
        """Sign the request that stores a part of exactly this length and SHA-256."""
        ...

    def end_upload(
        self, key: str, upload: str, tags: Mapping[int, str], digests: Sequence[str]
    ) -> None:
        """Make an object from all parts, each with its SHA-256."""
        ...

    def sign_get(self, key: str, media_type: str) -> SignedRequest:
        """Sign the request that reads an object, any ``Range`` of it."""
        ...


@runtime_checkable
class CarriesAttachments(Protocol):
    """What a client's `Transport` may also do: bring files to the gateway, and fetch them."""

    def ask_upload(
        self, reference: Attachment, parts: Sequence[str], upload: str, epoch: str = ""
    ) -> UploadState:
        """Ask for the progress of an upload, and what to send next. Idempotent.

        Args:
            reference: names the file.
            parts: the digests of its parts.
            upload: what the last answer gave.
            epoch: the gateway's, as far as the client knows it; another one refuses.
        """
        ...

    def ask_download(
        self, table: str, row_id: str, column: str, reference: Attachment
    ) -> SignedRequest:
        """Ask for the request that reads an attachment to which a cell refers."""
        ...

    def send_bytes(self, request: SignedRequest, content: bytes) -> None:
        """Make a signed request that stores bytes; it is no error if they are stored already."""
        ...

    def receive_bytes(self, request: SignedRequest, start: int) -> Iterator[bytes]:
        """Make a signed request that reads bytes from an offset on, piece by piece."""
        ...
