"""Attachments: files that are named by their content, and the text that names one in a row.

    attachment:<key>:<digest>:<bytes>:<media type>

- *key*: 32 random hexadecimal digits. A client that was never shown a reference cannot name its
  file, even if it knows the content's digest.
- *digest*: SHA-256 of the content. For a file longer than `PART_BYTES` it is the SHA-256 of the
  concatenated digests of its parts, so a store that checks each part has checked the whole file.

Each reference has exactly one spelling. Laws G1 and G2: ``docs/spec/attachments.md``.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lakesync.errors import ValidationFailed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SCHEME: Final = "attachment:"
"""The prefix of every reference."""
PART_BYTES: Final = 16_777_216
"""Length of every part of a file but the last: what is sent again if a connection breaks."""
PARTS_MAX: Final = 320
"""Parts of one file."""
ATTACHMENT_BYTES_MAX: Final = PART_BYTES * PARTS_MAX
"""One file: 5 GiB, whatever a deployment allows."""
REFERENCE_CHARS_MAX: Final = 256
"""Length of a reference."""
_TYPE: Final = r"[a-z0-9][a-z0-9!#$&^_.+-]{0,62}"
_MEDIA_TYPE: Final = re.compile(f"{_TYPE}/{_TYPE}")
_KEY: Final = re.compile("[0-9a-f]{32}")
_DIGEST: Final = re.compile("[0-9a-f]{64}")
_REFERENCE: Final = re.compile(
    f"{SCHEME}({_KEY.pattern}):({_DIGEST.pattern}):(0|[1-9][0-9]{{0,9}}):({_MEDIA_TYPE.pattern})"
)
_WANTED: Final = f"{SCHEME}<32 hex digits>:<64 hex digits>:<bytes>:<media type>"


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file by its reference. ``str`` gives the reference: the value of a text column."""

    key: str
    digest: str
    size_bytes: int
    media_type: str

    def __str__(self) -> str:
        return f"{SCHEME}{self.key}:{self.digest}:{self.size_bytes}:{self.media_type}"

    @property
    def parts(self) -> int:
        """How many parts the file has: at least one."""
        return max(1, -(-self.size_bytes // PART_BYTES))

    def part_start(self, number: int) -> int:
        """Return the offset of a part in the file; the first part is number 1."""
        return (number - 1) * PART_BYTES

    def part_bytes(self, number: int) -> int:
        """Return the length of a part."""
        return min(PART_BYTES, self.size_bytes - self.part_start(number))

    @property
    def file_name(self) -> str:
        """The name under which a gateway and a client store its bytes."""
        return f"{self.key}-{self.digest}-{self.size_bytes}"


def checked_media_type(text: object) -> str:
    """Return a media type in small letters.

    Raises:
        ValidationFailed: it is none.
    """
    name = text.lower() if isinstance(text, str) else ""
    if not _MEDIA_TYPE.fullmatch(name):
        raise ValidationFailed(
            f"media_type must be one such as image/jpeg, without parameters, not {text!r:.80}",
            field="media_type",
        )
    return name


def attachment(key: str, digest: str, size_bytes: int, media_type: str) -> Attachment:
    """Make an attachment from its fields.

    Raises:
        ValidationFailed: one of them is malformed.
    """
    return checked_reference(str(Attachment(key, digest, size_bytes, media_type.lower())))


def reference_of(text: object) -> Attachment | None:
    """Return the attachment that a value refers to; None if it is not a reference."""
    # A cheap check first: most values are not references.
    if not isinstance(text, str) or not text.startswith(SCHEME):
        return None
    match = _REFERENCE.fullmatch(text)
    if match is None or int(match[3]) > ATTACHMENT_BYTES_MAX or len(text) > REFERENCE_CHARS_MAX:
        return None
    return Attachment(match[1], match[2], int(match[3]), match[4])


def checked_reference(text: object) -> Attachment:
    """Return the attachment that a text refers to.

    Raises:
        ValidationFailed: it is not a reference.
    """
    known = reference_of(text)
    if known is None:
        raise ValidationFailed(
            f"a reference is {_WANTED}, of {ATTACHMENT_BYTES_MAX} bytes at the most",
            field="reference",
        )
    return known


def references_in(value: object) -> Iterator[Attachment]:
    """Yield the attachments that a column's value refers to: a reference, or JSON with references.

    Args:
        value: parsed JSON: dictionaries, lists, texts and so on.
    """
    left = [value]
    while left:
        each = left.pop()
        if isinstance(each, list):
            left += each
        elif isinstance(each, dict):
            left += each.values()
        elif (known := reference_of(each)) is not None:
            yield known


class Digester:
    """Computes the digest of a file while the file is read."""

    def __init__(self) -> None:
        self._part = hashlib.sha256()
        self._room = PART_BYTES
        self._ended: list[bytes] = []
        self.size_bytes = 0

    def update(self, content: bytes) -> None:
        """Add the next bytes of the file."""
        view = memoryview(content)
        self.size_bytes += len(view)
        while view:
            if not self._room:
                self._ended.append(self._part.digest())
                self._part, self._room = hashlib.sha256(), PART_BYTES
            piece = view[: self._room]
            self._part.update(piece)
            self._room -= len(piece)
            view = view[len(piece) :]

    def part_digests(self) -> tuple[str, ...]:
        """Return the digests of the parts; that of the last part covers the bytes so far."""
        return tuple(part.hex() for part in (*self._ended, self._part.digest()))

    def digest(self) -> str:
        """Return the digest of the bytes so far."""
        return digest_of_parts(self.part_digests())


def digest_of_parts(digests: Sequence[str]) -> str:
    """Return the digest of a file from those of its parts, in hexadecimal."""
    if len(digests) == 1:
        return digests[0]
    return hashlib.sha256(bytes.fromhex("".join(digests))).hexdigest()


def check_parts(known: Attachment, digests: Sequence[object]) -> tuple[str, ...]:
    """Return the digests of an attachment's parts, checked against the attachment's digest.

    They may be left out for a file of one part.

    Raises:
        ValidationFailed: they do not match.
    """
    if not digests and known.parts == 1:
        return (known.digest,)
    are_digests = all(isinstance(each, str) and _DIGEST.fullmatch(each) for each in digests)
    if not are_digests or len(digests) != known.parts:
        raise ValidationFailed(
            f"parts must be the {known.parts} SHA-256 digests of the file's parts of {PART_BYTES} "
            "bytes, in hexadecimal",
            field="parts",
        )
    parts = tuple(map(str, digests))
    if digest_of_parts(parts) != known.digest:
        raise ValidationFailed("parts are not those of the reference's digest", field="parts")
    return parts
