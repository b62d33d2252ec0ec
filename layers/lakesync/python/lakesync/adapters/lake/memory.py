"""Objects in memory, plain and by signed addresses: for tests.

`MemoryAdapter` is the shortest example of a `LakeAdapter`. `MemorySignedObjects` keeps attachments:
it checks what S3 checks.
"""

from __future__ import annotations

import hashlib
import threading
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from lakesync.adapters.lake.adapter import (
    PAGE_KEYS_MAX,
    ObjectHead,
    ObjectPage,
    check_key,
    check_page,
)
from lakesync.errors import AdapterFailed, DamagedOnTheWay, NotFound, ValidationFailed
from lakesync.ports import SignedRequest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


class MemoryAdapter:
    """`lakesync.adapters.lake.adapter.LakeAdapter` in memory."""

    def __init__(self) -> None:
        self._objects: dict[str, tuple[bytes, datetime]] = {}
        self._lock = threading.Lock()

    def put_object(self, key: str, body: bytes, content_type: str) -> None:
        del content_type
        check_key(key)
        self._objects[key] = (bytes(body), datetime.now(UTC))

    def put_new_object(self, key: str, body: bytes, content_type: str) -> bool:
        with self._lock:
            if key in self._objects:
                return False
            self.put_object(key, body, content_type)
            return True

    def get_object(self, key: str) -> bytes:
        return self._one(key)[0]

    def get_range(self, key: str, start: int, size: int) -> bytes:
        body = self.get_object(key)
        if start >= len(body):
            raise NotFound(f"the object {key} ends before {start}")
        return body[start : start + size]

    def head_object(self, key: str) -> ObjectHead:
        body, modified_at = self._one(key)
        return ObjectHead(key, len(body), hashlib.sha256(body).hexdigest(), modified_at)

    def list_objects(self, prefix: str) -> list[str]:
        return sorted((key for key in self._objects if key.startswith(prefix)), key=str.encode)

    def list_page(self, prefix: str, after: str = "", keys_max: int = PAGE_KEYS_MAX) -> ObjectPage:
        check_page(keys_max)
        behind = [key for key in self.list_objects(prefix) if key.encode() > after.encode()]
        return ObjectPage(
            tuple(self.head_object(key) for key in behind[:keys_max]), len(behind) > keys_max
        )

    def delete_object(self, key: str) -> None:
        self._objects.pop(key, None)

    def delete_objects(self, keys: Iterable[str]) -> None:
        for key in keys:
            self.delete_object(key)

    def _one(self, key: str) -> tuple[bytes, datetime]:
        if key not in self._objects:
            raise NotFound(f"there is no object {key}")
        return self._objects[key]


# --- by signed addresses --------------------------------------------------------------------------


_PIECE_BYTES: Final = 65_536


@dataclass(frozen=True, slots=True)
class _Signed:
    """What an address was signed for."""

    key: str
    reads: bool = False
    upload: str = ""
    part: int = 0
    size_bytes: int = 0
    digest: str = ""


@dataclass(slots=True)
class _Upload:
    key: str
    parts: dict[int, bytes] = field(default_factory=dict)


class MemorySignedObjects:
    """`lakesync.ports.SignedObjects` in memory, and what its signed requests do."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._signed: dict[str, _Signed] = {}
        self._uploads: dict[str, _Upload] = {}
        self.objects: dict[str, bytes] = {}
        """What is stored, by key."""

    def size_of(self, key: str) -> int | None:
        content = self.objects.get(key)
        return None if content is None else len(content)

    def sign_put(self, key: str, size_bytes: int, digest: str) -> SignedRequest:
        return self._sign(_Signed(key, size_bytes=size_bytes, digest=digest))

    def begin_upload(self, key: str) -> str:
        upload = uuid4().hex
        self._uploads[upload] = _Upload(key)
        return upload

    def parts(self, key: str, upload: str) -> Mapping[int, str] | None:
        known = self._uploads.get(upload)
        if known is None or known.key != key:
            return None
        return {number: _digest(content) for number, content in known.parts.items()}

    def sign_part(
        self, key: str, upload: str, number: int, size_bytes: int, digest: str
    ) -> SignedRequest:
        return self._sign(_Signed(key, False, upload, number, size_bytes, digest))

    def end_upload(
        self, key: str, upload: str, tags: Mapping[int, str], digests: Sequence[str]
    ) -> None:
        with self._lock:
            known = self._uploads.get(upload)
            if key in self.objects or known is None or known.key != key:
                return
            for number, digest in enumerate(digests, 1):
                if tags.get(number) != digest or _digest(known.parts[number]) != digest:
                    raise AdapterFailed(f"part {number} of {key} has other content")
            self.objects[key] = b"".join(known.parts[n] for n in range(1, len(digests) + 1))
            del self._uploads[upload]

    def sign_get(self, key: str, media_type: str) -> SignedRequest:
        del media_type
        return self._sign(_Signed(key, reads=True))

    def _sign(self, signed: _Signed) -> SignedRequest:
        url = f"memory:{uuid4().hex}"
        self._signed[url] = signed
        return SignedRequest(url, {}, signed.part or 1)

    # --- what a network would bring

    def send_bytes(self, request: SignedRequest, content: bytes) -> None:
        """Store what a request sends, if it is what was signed.

        Raises:
            DamagedOnTheWay: it is other bytes.
            ValidationFailed: the address was signed for something else.
        """
        signed = self._signed.get(request.url)
        if signed is None or signed.reads:
            raise ValidationFailed("this address was not signed for that request request")
        if len(content) != signed.size_bytes or _digest(content) != signed.digest:
            raise DamagedOnTheWay("the bytes received are not those that were signed; try again")
        with self._lock:
            if not signed.upload:
                self.objects.setdefault(signed.key, content)
            elif (known := self._uploads.get(signed.upload)) is not None:
                known.parts[signed.part] = content

    def receive_bytes(self, request: SignedRequest, start: int) -> Iterator[bytes]:
        """Yield the bytes that a request reads, from a place on.

        Raises:
            ValidationFailed: the address was signed for something else.
            NotFound: the object is gone.
        """
        signed = self._signed.get(request.url)
        if signed is None or not signed.reads:
            raise ValidationFailed("this address was not signed for that request request")
        content = self.objects.get(signed.key)
        if content is None:
            raise NotFound("the attachment is gone")
        for place in range(start, len(content), _PIECE_BYTES):
            yield content[place : place + _PIECE_BYTES]


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
