"""One keeper's tables in a catalogue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakesync.adapters.headed import HeadedTables
from lakesync.materialise.database.faults import asking
from lakesync.materialise.database.pair import made, table_names
from lakesync.materialise.database.table import LakeTable

if TYPE_CHECKING:
    from lakesync.core.schema import TableSchema
    from lakesync.materialise.database.place import LakePlace


class IcebergTables(HeadedTables):
    """The tables of one gateway, or of one of its flows.

    Args:
        place: where they are.
        keeper: whose.
        history_ms: how old history may be that is kept; None keeps all.
    """

    def __init__(self, place: LakePlace, keeper: str, history_ms: int | None) -> None:
        super().__init__()
        self._place = place
        self._keeper = keeper
        self._history_ms = history_ms
        self._schemas: dict[str, TableSchema | None] | None = None
        """Kept until something is written: every table asks for it."""

    def opened(self, table: str) -> tuple[LakeTable, LakeTable]:
        """Return the heads and the files of a table, whether it exists or not."""
        one = LakeTable(self._place, self._keeper, table, self._history_ms, self._look_again)
        return one, one

    def names(self) -> list[str]:
        """Return the names of the existing tables."""
        with asking():
            return table_names(self._place, self._keeper)

    def begin(self, table: str) -> None:
        """Make a table that does not exist yet. Idempotent."""
        with asking():
            made(self._place, self._keeper, table)
        self._look_again()

    def schemas(self) -> dict[str, TableSchema | None]:
        """Return the existing tables, with their newest schemas."""
        if self._schemas is None:
            self._schemas = super().schemas()
        return self._schemas

    def forget(self) -> None:
        """Forget what was read."""
        super().forget()
        self._look_again()

    def _look_again(self) -> None:
        self._schemas = None
