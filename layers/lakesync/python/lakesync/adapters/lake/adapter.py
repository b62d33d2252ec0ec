"""Object stores as source and destination: the interface, and what passes through it.

A `LakeAdapter` is a `lakesync.ports.ObjectStore`, which is all that the engine needs of S3, with
operations for applications that keep their own data there: metadata, bounded pages, bulk removal,
and a conditional put that overwrites nothing. Your own adapter must pass
`lakesync.testing.lake_contract`.

`LateObjects` is made by the first request that needs it: making S3's client imports the AWS SDK,
which would take most of a cold start.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from lakesync.errors import ValidationFailed
from lakesync.ports import ObjectStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import datetime

PAGE_KEYS_MAX: Final = 1_000
"""Objects of one page, as S3 has it."""
KEY_BYTES_MAX: Final = 1_024
"""Bytes of a key, as S3 has it."""


@dataclass(frozen=True, slots=True)
class ObjectHead:
    """What is known of an object without reading it."""

    key: str
    size_bytes: int
    etag: str
    """Changes with the content; means nothing else."""
    modified_at: datetime


@dataclass(frozen=True, slots=True)
class ObjectPage:
    """Some of the objects under a prefix, in the order of their keys' bytes."""

    objects: tuple[ObjectHead, ...]
    has_more: bool


@runtime_checkable
class LakeAdapter(ObjectStore, Protocol):
    """Objects under keys in one bucket.

    Every operation may be repeated after any error. Errors are `lakesync.errors.AdapterFailed` and
    its subclasses (unreachable, refused, timed out, throttled), and those that are named.
    """

    def put_new_object(self, key: str, body: bytes, content_type: str) -> bool:
        """Store an object unless there is one; returns whether it was stored.

        Of any number of concurrent callers exactly one gets True. A retry after an error may find
        the caller's own object, and then returns False.

        Raises:
            lakesync.errors.AdapterRefused: the store has no such operation.
        """
        ...

    def head_object(self, key: str) -> ObjectHead:
        """Return the description of an object.

        Raises:
            lakesync.errors.NotFound: there is none.
        """
        ...

    def list_page(self, prefix: str, after: str = "", keys_max: int = PAGE_KEYS_MAX) -> ObjectPage:
        """Return objects under a prefix whose keys come behind ``after``.

        Raises:
            lakesync.errors.ValidationFailed: more than `PAGE_KEYS_MAX` are asked for, or none.
        """
        ...

    def delete_objects(self, keys: Iterable[str]) -> None:
        """Remove objects; missing ones are ignored.

        After an error some may have been removed.
        """
        ...


def check_page(keys_max: int) -> None:
    """Refuse an invalid page size.

    Raises:
        ValidationFailed: it is out of range.
    """
    if not 1 <= keys_max <= PAGE_KEYS_MAX:
        raise ValidationFailed(
            f"ask for 1 to {PAGE_KEYS_MAX} objects at a time, not {keys_max}", field="keys_max"
        )


def check_key(key: str) -> None:
    """Refuse a key under which no object can be stored.

    Raises:
        ValidationFailed: it is empty or too long.
    """
    if not 1 <= len(key.encode()) <= KEY_BYTES_MAX:
        raise ValidationFailed(f"a key has 1 to {KEY_BYTES_MAX} bytes", field="key")


class LateObjects:
    """`lakesync.ports.ObjectStore`, made at its first use.

    Args:
        make: makes the store; called once.
    """

    def __init__(self, make: Callable[[], ObjectStore]) -> None:
        self._store = cache(make)

    def put_object(self, key: str, body: bytes, content_type: str) -> None:
        self._store().put_object(key, body, content_type)

    def get_object(self, key: str) -> bytes:
        return self._store().get_object(key)

    def get_range(self, key: str, start: int, size: int) -> bytes:
        return self._store().get_range(key, start, size)

    def list_objects(self, prefix: str) -> list[str]:
        return self._store().list_objects(prefix)

    def delete_object(self, key: str) -> None:
        self._store().delete_object(key)


_LEVEL: Final = 1


def file_of(lines: Iterable[bytes]) -> bytes:
    return gzip.compress(b"".join(b"%b\n" % line for line in lines), _LEVEL, mtime=0)


def lines_in(body: bytes) -> list[bytes]:
    return gzip.decompress(body).splitlines()
