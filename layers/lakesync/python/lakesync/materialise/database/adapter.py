"""`DatabaseAdapter` and `Materialisable` on Iceberg tables, in any catalogue.

Each table is a state table and a changes table, laid out as those of a stack's lake are: so the
lake itself is read as what somebody else keeps here. A write puts its history first; the commit of
the state table, which names that, is the write. For tables of some hundred thousand rows: a row
that changes has its file written anew. Laws P1-P3, P14: ``docs/spec/databases.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakesync.adapters.headed_database import HeadedDatabase
from lakesync.materialise.database.plain import PlainTable
from lakesync.materialise.database.tables import IcebergTables

if TYPE_CHECKING:
    from lakesync.materialise.database.place import LakePlace


class IcebergDatabase(HeadedDatabase):
    """One gateway's deltas and rows in one catalogue. Not for several threads at once.

    Args:
        place: which catalogue, and where in it.
        gateway: whose.
        history_ms: how old history may be that is kept; None keeps all.
    """

    def __init__(self, place: LakePlace, gateway: str, *, history_ms: int | None = None) -> None:
        super().__init__(IcebergTables(place, gateway, history_ms))
        self._place = place

    def snapshots_of(self, name: str) -> PlainTable:
        """Give a table that others write; `lakesync.adapters.snapshots.HasSnapshots`."""
        return PlainTable(self._place, name)
