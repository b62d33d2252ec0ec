"""What the work on one table of a destination needs, and what it is decided by."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from lakesync.core.claims import DeliveryPlace
from lakesync.delivery.images import Images
from lakesync.errors import Contention

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.adapters.database import PlacedDelta
    from lakesync.adapters.row_images import DestinationDatabase
    from lakesync.core.claims import Batch
    from lakesync.core.clock import Stamp
    from lakesync.core.config import GatewayConfig
    from lakesync.core.destinations import Destination
    from lakesync.core.schema import TableSchema
    from lakesync.ports import Buffer, ObjectStore

    ReadBatch = Callable[[bytes, Batch], list[PlacedDelta]]


@dataclass(frozen=True)
class Desk:
    """One table of one destination, and the stores."""

    buffer: Buffer
    objects: ObjectStore
    read_batch: ReadBatch
    database: DestinationDatabase
    gateway: str
    destination: Destination
    table: str

    @property
    def place(self) -> DeliveryPlace:
        """Where its claims lie."""
        return DeliveryPlace(self.gateway, self.destination.name, self.table)

    @cached_property
    def config(self) -> GatewayConfig:
        """The gateway's configuration."""
        return self.buffer.config(self.gateway)

    @cached_property
    def images(self) -> Images:
        """The table's rows, as the destination may see them."""
        return Images(self.buffer, self.gateway, self.destination, self.table)

    def schema(self) -> TableSchema | None:
        """Give the table's schema, as it is there."""
        return self.destination.schema_of(self.table, self.config.schemas.get(self.table))

    def mark(self) -> Stamp:
        """Give how far the table has come."""
        return self.database.mark(self.table).unwrap()

    def check_declared(self) -> None:
        """Refuse to go on for a destination that is no longer what is declared, or is paused.

        Raises:
            Contention: it was removed, declared anew or paused meanwhile.
        """
        if self.buffer.destinations(self.gateway).by_name.get(self.destination.name) != (
            self.destination
        ):
            raise Contention(f"the destination {self.destination.name} was changed meanwhile")
