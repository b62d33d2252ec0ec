"""Attachments: which uploads a client is sent, and who may read the bytes of a file.

Rules of this module
    1. A file is stored once all of it is there, and the store itself has checked every byte against
       its reference: no request is signed for other bytes.
    2. A user can read a file only through a visible row that refers to it.
    3. No answer distinguishes a file that does not exist from one that the rules hide.

Laws G2-G5: ``docs/spec/attachments.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from lakesync.core.attachments import check_parts, checked_reference, references_in
from lakesync.core.delta import check_row_id, parse
from lakesync.core.gateway_identity import check_identity
from lakesync.core.merge import view
from lakesync.core.messages import Pull
from lakesync.core.names import check_identifier, check_table_name
from lakesync.errors import BodyTooLarge, NotFound, NotYetUploaded, ValidationFailed
from lakesync.gateway.filtered_reads import RuleFilter
from lakesync.ports import UploadState
from lakesync.wire.records import decode_row_state

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from lakesync.core.attachments import Attachment
    from lakesync.core.config import GatewayConfig
    from lakesync.core.delta import CanonicalJson
    from lakesync.core.merge import RowState
    from lakesync.ports import RowKey, SignedObjects, SignedRequest, StoredRow

ATTACHMENTS: Final = "attachments"
"""The prefix of the keys of attachments."""
PARTS_SIGNED_MAX: Final = 16
"""Parts that one answer lets a client send, 256 MiB: their addresses are valid for 15 minutes."""
UPLOAD_CHARS_MAX: Final = 1_024
"""Length of the store's id of an upload."""
_HIDDEN: Final = (
    "no row that you see refers to this attachment in that column; pull first: it may have changed"
)


class AttachmentRows(Protocol):
    """The reads of a gateway that attachments need: a part of `lakesync.ports.Buffer`."""

    def config(self, gateway: str) -> GatewayConfig:
        """Return the configuration in force."""
        ...

    def epoch(self, gateway: str) -> str:
        """Return the gateway's epoch; empty before its first commit."""
        ...

    def rows(self, gateway: str, rows: Iterable[RowKey]) -> dict[RowKey, StoredRow]:
        """Return rows as they are."""
        ...


class AttachmentService:
    """Answers clients that upload and download attachments of any gateway."""

    def __init__(self, buffer: AttachmentRows, objects: SignedObjects, *, bytes_max: int) -> None:
        self._buffer = buffer
        self._objects = objects
        self._bytes_max = bytes_max

    def upload(
        self,
        gateway: str,
        reference: object,
        parts: Sequence[object] = (),
        upload: str = "",
        epoch: str = "",
    ) -> UploadState:
        """Get the progress of an upload, and what to send next; end the upload once all is there.

        Send what it names and ask again, until the file is stored. Idempotent; an upload may be
        abandoned, or done by several clients at once. Cost: two to four requests of the store.

        Args:
            parts: the digests of its parts; none if it has one.
            epoch: the gateway that the file is meant for; empty if its client knows none.

        Raises:
            AnotherGateway: the file is meant for another gateway.
            ValidationFailed: the reference is malformed, or the parts do not match it.
            BodyTooLarge: files of this size are not accepted.
            GatewayDeleted: the gateway was deleted.
        """
        file = checked_reference(reference)
        if file.size_bytes > self._bytes_max:
            raise BodyTooLarge(
                f"an attachment has {self._bytes_max} bytes at the most", field="reference"
            )
        digests = check_parts(file, parts)
        if len(upload) > UPLOAD_CHARS_MAX:
            raise ValidationFailed("upload must be what the last answer gave", field="upload")
        self._buffer.config(gateway).check_not_deleted()
        if epoch:
            check_identity(epoch, self._buffer.epoch(gateway))
        key = object_key(gateway, file)
        if self._is_stored(key, file):
            return UploadState(stored=True, parts_stored=file.parts)
        if file.parts == 1:
            request = self._objects.sign_put(key, file.size_bytes, digests[0])
            return UploadState(stored=False, requests=(request,))
        return self._in_parts(key, file, digests, upload)

    def _in_parts(
        self, key: str, file: Attachment, digests: Sequence[str], upload: str
    ) -> UploadState:
        there = self._objects.parts(key, upload) if upload else None
        if there is None:
            upload, there = self._objects.begin_upload(key), {}
        missing = [number for number in range(1, file.parts + 1) if number not in there]
        if not missing:
            self._objects.end_upload(key, upload, there, digests)
            if self._is_stored(key, file):
                return UploadState(stored=True, parts_stored=file.parts)
            upload, missing = self._objects.begin_upload(key), [*range(1, file.parts + 1)]
        requests = tuple(
            self._objects.sign_part(
                key, upload, number, file.part_bytes(number), digests[number - 1]
            )
            for number in missing[:PARTS_SIGNED_MAX]
        )
        return UploadState(False, upload, requests, file.parts - len(missing))

    def download(
        self,
        gateway: str,
        claims: Mapping[str, Any],
        place: tuple[str, str, str],
        reference: object,
    ) -> SignedRequest:
        """Return the request that reads a file, to a caller who sees a row that refers to it.

        Cost: a read unit or two, for each 4 KB of the row; a request of the store.

        Args:
            place: table, row id and column of the cell that refers to the file.
            reference: which file; a cell of JSON may refer to several.

        Raises:
            ValidationFailed: a name or the reference is malformed.
            NotFound: the caller sees no such cell, or it refers to something else.
            NotYetUploaded: the cell refers to it, and its bytes are not there.
        """
        file = checked_reference(reference)
        table, row_id, column = place
        key = check_table_name(table, "table"), check_row_id(row_id)
        check_identifier(column, "column")
        config = self._buffer.config(gateway)
        config.check_not_deleted()
        stored = self._buffer.rows(gateway, [key]).get(key)
        seen = {} if stored is None else _seen(config, claims, key, decode_row_state(stored.state))
        value = seen.get(column)
        if value is None or file not in references_in(parse(value)):
            raise NotFound(_HIDDEN)
        name = object_key(gateway, file)
        if not self._is_stored(name, file):
            raise NotYetUploaded("the client that made this attachment has not uploaded it yet")
        return self._objects.sign_get(name, file.media_type)

    def _is_stored(self, key: str, file: Attachment) -> bool:
        return self._objects.size_of(key) == file.size_bytes


def object_key(gateway: str, file: Attachment) -> str:
    """Return the key of a file's object: below its gateway's own prefix."""
    return file_key(gateway, file.file_name)


def file_key(gateway: str, name: str) -> str:
    """Return the key of an object by `Attachment.file_name`."""
    return f"{ATTACHMENTS}/{gateway}/{name}"


def _seen(
    config: GatewayConfig, claims: Mapping[str, Any], key: RowKey, state: RowState
) -> Mapping[str, CanonicalJson]:
    """Return the columns of a row that a pull would show; none if it would not show the row."""
    table, _ = key
    rules = RuleFilter(config, Pull("", claims=claims))
    if not rules.sees(table, state):
        return {}
    return view(rules.viewer.shown_state(table, config.as_read(table, state))) or {}
