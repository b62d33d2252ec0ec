"""Where the bytes of attachments are: what the gateway asks of the store that signs addresses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lakesync.core.attachments import Attachment


@dataclass(frozen=True, slots=True)
class SignedRequest:
    """A request that whoever has it may make, for a while, and no other."""

    url: str
    headers: Mapping[str, str]
    """Which have to be sent exactly so: they are signed."""
    part: int = 1
    """Which part of the file it sends."""


@dataclass(frozen=True, slots=True)
class UploadState:
    """How far an upload is, and what is to be sent next."""

    stored: bool
    """All of the file is there, and is what its reference names."""
    upload: str = ""
    """What the upload in parts is known by: sent back when its next parts are asked for."""
    requests: tuple[SignedRequest, ...] = ()
    """Parts to send; then ask again."""
    parts_stored: int = 0
    """Parts that are there."""


class SignedObjects(Protocol):
    """A store of objects that signs requests for others to make.

    An object that is there is never replaced. Keys and digests are checked by the caller. Methods
    raise `lakesync.errors` when the store refuses or is away; all of them are safe to repeat.
    """

    def size_of(self, key: str) -> int | None:
        """Give the bytes of an object; None if there is none."""
        ...

    def sign_put(self, key: str, size_bytes: int, digest: str) -> SignedRequest:
        """Sign the request that stores an object, of this length and SHA-256 and no other."""
        ...

    def begin_upload(self, key: str) -> str:
        """Begin an upload in parts."""
        ...

    def parts(self, key: str, upload: str) -> Mapping[int, str] | None:
        """Give the parts that are there, by number, with what the store knows each by.

        None if there is no such upload of this object: it has ended, or never was.
        """
        ...

    def sign_part(
        self, key: str, upload: str, number: int, size_bytes: int, digest: str
    ) -> SignedRequest:
        """Sign the request that stores a part, of this length and SHA-256 and no other."""
        ...

    def end_upload(
        self, key: str, upload: str, tags: Mapping[int, str], digests: Sequence[str]
    ) -> None:
        """Make an object of all parts, each of which has its SHA-256."""
        ...

    def sign_get(self, key: str, media_type: str) -> SignedRequest:
        """Sign the request that reads an object, any ``Range`` of it."""
        ...


@runtime_checkable
class CarriesAttachments(Protocol):
    """What a client's `Transport` may do besides: bring files to the gateway, and fetch them."""

    def ask_upload(self, reference: Attachment, parts: Sequence[str], upload: str) -> UploadState:
        """Ask how far an upload is, and for what is to be sent next. Safe to repeat."""
        ...

    def ask_download(
        self, table: str, row_id: str, column: str, reference: Attachment
    ) -> SignedRequest:
        """Ask for what reads an attachment that a cell refers to."""
        ...

    def send_bytes(self, request: SignedRequest, content: bytes) -> None:
        """Make a signed request that stores bytes; what was there already is no error."""
        ...

    def receive_bytes(self, request: SignedRequest, start: int) -> Iterator[bytes]:
        """Make a signed request that reads bytes from a place on, piece by piece."""
        ...
