"""Objects in memory: for tests, and the shortest example of a `LakeAdapter`."""

from __future__ import annotations

import hashlib
import threading
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from lakesync.adapters.lake.adapter import (
    PAGE_KEYS_MAX,
    ObjectHead,
    ObjectPage,
    check_key,
    check_page,
)
from lakesync.errors import NotFound

if TYPE_CHECKING:
    from collections.abc import Iterable


class MemoryAdapter:
    """`lakesync.adapters.lake.adapter.LakeAdapter` in memory."""

    def __init__(self) -> None:
        self._objects: dict[str, tuple[bytes, datetime]] = {}
        self._lock = threading.Lock()

    def put_object(self, key: str, body: bytes, content_type: str) -> None:
        """Store an object."""
        del content_type
        check_key(key)
        self._objects[key] = (bytes(body), datetime.now(UTC))

    def put_new_object(self, key: str, body: bytes, content_type: str) -> bool:
        """Store an object unless there is one."""
        with self._lock:
            if key in self._objects:
                return False
            self.put_object(key, body, content_type)
            return True

    def get_object(self, key: str) -> bytes:
        """Return an object's bytes."""
        return self._one(key)[0]

    def get_range(self, key: str, start: int, size: int) -> bytes:
        """Return some bytes of an object."""
        body = self.get_object(key)
        if start >= len(body):
            raise NotFound(f"the object {key} ends before {start}")
        return body[start : start + size]

    def head_object(self, key: str) -> ObjectHead:
        """Return the description of an object."""
        body, modified_at = self._one(key)
        return ObjectHead(key, len(body), hashlib.sha256(body).hexdigest(), modified_at)

    def list_objects(self, prefix: str) -> list[str]:
        """Return the keys under a prefix, in order."""
        return sorted((key for key in self._objects if key.startswith(prefix)), key=str.encode)

    def list_page(self, prefix: str, after: str = "", keys_max: int = PAGE_KEYS_MAX) -> ObjectPage:
        """Return some objects under a prefix."""
        check_page(keys_max)
        behind = [key for key in self.list_objects(prefix) if key.encode() > after.encode()]
        return ObjectPage(
            tuple(self.head_object(key) for key in behind[:keys_max]), len(behind) > keys_max
        )

    def delete_object(self, key: str) -> None:
        """Remove an object."""
        self._objects.pop(key, None)

    def delete_objects(self, keys: Iterable[str]) -> None:
        """Remove objects."""
        for key in keys:
            self.delete_object(key)

    def _one(self, key: str) -> tuple[bytes, datetime]:
        if key not in self._objects:
            raise NotFound(f"there is no object {key}")
        return self._objects[key]
