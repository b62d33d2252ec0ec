"""`DatabaseAdapter` and `Materialisable` on objects of a bucket.

A table is files of rows, files of history, and a head that names them (`heads`). A write reads the
files that its rows belong to, puts new ones and then the next head, which only one writer can make:
so it happens as a whole or not at all, whoever dies. For tables of some hundred thousand rows: a
row that changes has its file written anew.
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
        prefix: what all keys begin with; empty, or with a slash at its end.
        gateway: whose.
    """

    def __init__(self, objects: LakeAdapter, prefix: str, gateway: str) -> None:
        # Gateways are named without dots: so what flows keep of one is apart from its own.
        super().__init__(ObjectTables(objects, f"{prefix}{gateway.replace('/', '.')}/"))
