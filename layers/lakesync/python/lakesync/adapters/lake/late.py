"""An object store that is made by the first request that needs it.

Making S3's client imports the AWS SDK, which would take most of a cold start.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.ports import ObjectStore


class LateObjects:
    """`lakesync.ports.ObjectStore`, made at its first use.

    Args:
        make: makes the store; called once.
    """

    def __init__(self, make: Callable[[], ObjectStore]) -> None:
        self._store = cache(make)

    def put_object(self, key: str, body: bytes, content_type: str) -> None:
        """Store an object."""
        self._store().put_object(key, body, content_type)

    def get_object(self, key: str) -> bytes:
        """Return an object's bytes."""
        return self._store().get_object(key)

    def get_range(self, key: str, start: int, size: int) -> bytes:
        """Return some bytes of an object."""
        return self._store().get_range(key, start, size)

    def list_objects(self, prefix: str) -> list[str]:
        """Return the keys under a prefix, in order."""
        return self._store().list_objects(prefix)

    def delete_object(self, key: str) -> None:
        """Remove an object."""
        self._store().delete_object(key)
