"""One gateway's tables in a bucket: each is a folder, and a separate list has its name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakesync.adapters.headed import HeadedTables
from lakesync.adapters.objects.heads import Heads
from lakesync.adapters.objects.table import ObjectTable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lakesync.adapters.lake.adapter import LakeAdapter


class ObjectTables(HeadedTables):
    """The tables of one gateway.

    Args:
        objects: the bucket.
        prefix: the prefix of the gateway's keys.
    """

    def __init__(self, objects: LakeAdapter, prefix: str) -> None:
        super().__init__()
        self._objects = objects
        self._prefix = prefix

    def opened(self, table: str) -> tuple[Heads, ObjectTable]:
        """Return the heads and the files of a table, be it there or not."""
        prefix = f"{self._prefix}{table}/"
        return Heads(self._objects, prefix), ObjectTable(self._objects, prefix)

    def names(self) -> Iterator[str]:
        """Return the names of the tables that there may be."""
        keys = self._objects.list_objects(f"{self._prefix}.tables/")
        return (key.rpartition("/")[2] for key in keys)

    def begin(self, table: str) -> None:
        """Have a table named that is not there yet. Safe to repeat."""
        self._objects.put_object(f"{self._prefix}.tables/{table}", b"", "text/plain")
