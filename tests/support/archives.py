"""Archives of history in tests: what is in them, and processes that die or meet others there."""

from __future__ import annotations

import base64
import gzip
import json
from typing import TYPE_CHECKING, Any

from lakesync.adapters.database import PlacedDelta, Position
from lakesync.adapters.history_archive import HistoryArchive
from lakesync.adapters.lake.memory import MemoryAdapter

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.lake import Life

WRITES = ("put_object", "put_new_object", "delete_objects", "forget_history", "put_rows")
"""The writes of archiving and erasing, to a bucket and to a database."""


def archive_on(objects: Any) -> HistoryArchive:
    return HistoryArchive(objects, "", "acme/warehouse/1")


class Dying:
    """A database or a bucket of a process that dies before its n-th write, or right behind it."""

    def __init__(self, port: Any, life: Life) -> None:
        self._port, self._life = port, life

    def __getattr__(self, name: str) -> Any:
        act = getattr(self._port, name)
        return self._life.step(act) if name in WRITES else act


class Meeting(MemoryAdapter):
    """A bucket where somebody else does something once, before a process's n-th operation."""

    def __init__(self, at: int, other: Callable[[MemoryAdapter], object]) -> None:
        super().__init__()
        self._left, self._other = at, other
        self.is_begun = False
        """Whether operations are counted."""

    @property
    def has_met(self) -> bool:
        return self._left < 0

    def _meet(self) -> None:
        if self.is_begun and self._left >= 0:
            self._left -= 1
            if self._left < 0:
                self._other(self)

    def put_object(self, key: str, body: bytes, content_type: str) -> None:
        self._meet()
        super().put_object(key, body, content_type)

    def put_new_object(self, key: str, body: bytes, content_type: str) -> bool:
        """Store an object unless there is one."""
        self._meet()
        if key in self._objects:
            return False
        super().put_object(key, body, content_type)
        return True

    def get_object(self, key: str) -> bytes:
        self._meet()
        return super().get_object(key)

    def list_objects(self, prefix: str) -> list[str]:
        self._meet()
        return super().list_objects(prefix)

    def delete_objects(self, keys: Any) -> None:
        self._meet()
        super().delete_objects(list(keys))


def everything(archive: Any, table: str, deltas_max: int = 3) -> list[PlacedDelta]:
    """Return all history of an archive, or of a database, read in pages."""
    since, read = Position(), list[PlacedDelta]()
    while True:
        page = archive.query_deltas_since(table, since, deltas_max).unwrap()
        read += page.deltas
        if since == page.position:
            return read
        since = page.position


def stored_text(objects: MemoryAdapter) -> bytes:
    """Return all that a bucket has, keys too, as nobody packed or encoded it."""
    found = [key.encode() for key in objects.list_objects("")]
    for key in objects.list_objects(""):
        body = objects.get_object(key)
        text = gzip.decompress(body) if key.endswith(".gz") else body
        found.append(text)
        if key.endswith(".gz"):
            found += [base64.b64decode(json.loads(line)[1]) for line in text.splitlines()]
    return b"\n".join(found)
