"""A transaction on an Iceberg table that works out once what it changes.

PyIceberg copies a table's metadata and applies what is staged whenever somebody looks at it, which
a commit does two dozen times: as long as the table has snapshots, each time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pyiceberg.table import Transaction

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.update import TableUpdate


class _Looked(NamedTuple):
    """What the metadata were worked out of, and what they are."""

    base: TableMetadata
    staged: tuple[TableUpdate, ...]
    metadata: TableMetadata


class StagedTransaction(Transaction):
    """PyIceberg's, whose metadata are worked out again only when more is staged.

    Nobody changes metadata that he was given: what is staged makes new ones.
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
