"""Where tables are: the catalogue that lists them, and the prefix of their databases' names."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from lakesync.core.names import flow_database, lake_database
from lakesync.materialise.database.faults import asking

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyiceberg.catalog import Catalog


@dataclass(frozen=True)
class LakePlace:
    """A catalogue, opened on first use."""

    open_catalogue: Callable[[], Catalog]
    prefix: str
    """The prefix of the names of databases."""
    warehouse: str = ""
    """Where tables are made; empty if the catalogue decides."""

    @cached_property
    def catalogue(self) -> Catalog:
        """The catalogue.

        Raises:
            LakeSyncError: it cannot be opened.
        """
        with asking():
            return self.open_catalogue()

    def database(self, keeper: str) -> str:
        """Return the catalogue's database of a gateway, or of one of its flows."""
        name = flow_database if "/" in keeper else lake_database
        return name(self.prefix, keeper)

    def made_at(self, database: str, name: str) -> dict[str, Any]:
        """Return the arguments by which PyIceberg places a new table."""
        return {"location": f"{self.warehouse}/{database}/{name}"} if self.warehouse else {}
