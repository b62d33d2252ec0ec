"""`DatabaseAdapter` and `Materialisable` on objects of a bucket.

A table consists of files of rows, files of history, and a head that names them (`heads`). A write
reads the files of its rows, puts new files, and then puts the next head, which only one writer can
make. So a write is atomic, even if the writer dies. For tables of up to some hundred thousand rows:
changing a row rewrites its whole file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakesync.adapters.headed_database import HeadedDatabase
from lakesync.adapters.objects.writes import ObjectTables

if TYPE_CHECKING:
    from lakesync.adapters.lake.adapter import LakeAdapter


class ObjectsDatabase(HeadedDatabase):
    """One gateway's deltas and rows in one bucket. Not for several threads at once.

    Args:
        objects: the bucket.
        prefix: the prefix of all keys; empty, or ending with a slash.
        gateway: the gateway's id.
    """

    def __init__(self, objects: LakeAdapter, prefix: str, gateway: str) -> None:
        # Gateway names have no dots, so a flow's keys cannot collide with a gateway's.
        super().__init__(ObjectTables(objects, f"{prefix}{gateway.replace('/', '.')}/"))
