"""`DatabaseAdapter` and `Materialisable` on Iceberg tables, in any catalogue.

Each table is a state table and a changes table, laid out like those of a stack's lake, so the lake
itself can be read in the same way. A write puts its history first. The commit of the state table
names that history, and is the write. Intended for tables of some hundred thousand rows: changing a
row rewrites its file. Laws P1-P3, P14: ``docs/spec/databases.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakesync.adapters.headed_database import HeadedDatabase
from lakesync.materialise.database.plain import PlainTable
from lakesync.materialise.database.tables import IcebergTables

if TYPE_CHECKING:
    from lakesync.materialise.database.place import LakePlace


class IcebergDatabase(HeadedDatabase):
    """One gateway's deltas and rows in one catalogue. Not thread-safe.

    Args:
        place: the catalogue, and the place in it.
        gateway: whose.
        history_ms: the greatest age of history that is kept; None keeps all.
    """

    def __init__(self, place: LakePlace, gateway: str, *, history_ms: int | None = None) -> None:
        super().__init__(IcebergTables(place, gateway, history_ms))
        self._place = place

    def snapshots_of(self, name: str) -> PlainTable:
        """Return a table that others write; `lakesync.adapters.snapshots.HasSnapshots`."""
        return PlainTable(self._place, name)
