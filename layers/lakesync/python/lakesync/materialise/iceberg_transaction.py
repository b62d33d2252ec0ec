"""A transaction on an Iceberg table that computes its metadata only once.

PyIceberg copies a table's metadata and applies the staged changes on every access. A commit makes
two dozen accesses, and each takes longer the more snapshots the table has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pyiceberg.table import Transaction

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.update import TableUpdate


class _Looked(NamedTuple):
    """The input of the computed metadata, and the result."""

    base: TableMetadata
    staged: tuple[TableUpdate, ...]
    metadata: TableMetadata


class StagedTransaction(Transaction):
    """PyIceberg's, with metadata that are computed again only after more is staged.

    The metadata given out are never modified: staging makes new ones.
    """

    def __init__(self, table: Table) -> None:
        super().__init__(table)
        self._looked: _Looked | None = None

    @property
    def table_metadata(self) -> TableMetadata:
        """The table's metadata, with what is staged."""
        looked, base, staged = self._looked, self._table.metadata, self._updates
        if looked is None or looked.base is not base or looked.staged is not staged:
            looked = self._looked = _Looked(base, staged, super().table_metadata)
        return looked.metadata
