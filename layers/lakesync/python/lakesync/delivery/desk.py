"""What the work on one table of a destination needs, and what it is decided by."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from lakesync.adapters.database import TableBatch
from lakesync.core.claims import DeliveryPlace
from lakesync.core.clock import VISIBLE_MS_MAX, stamp_ms
from lakesync.delivery.images import Images
from lakesync.errors import Contention

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lakesync.adapters.database import PlacedDelta
    from lakesync.adapters.row_images import DestinationDatabase
    from lakesync.core.claims import Batch
    from lakesync.core.clock import Stamp
    from lakesync.core.config import GatewayConfig
    from lakesync.core.destinations import Destination
    from lakesync.core.schema import TableSchema
    from lakesync.ports import Buffer, ObjectStore, WallClock

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
    wall_clock: WallClock

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
        return Images(self.buffer, self.gateway, self.destination, self.table, self.visible_in_ms)

    def schema(self) -> TableSchema | None:
        """Give the table's schema, as it is there."""
        return self.destination.schema_of(self.table, self.config.schemas.get(self.table))

    def mark(self) -> Stamp:
        """Give how far the table has come."""
        return self.database.mark(self.table).unwrap()

    def deltas_of(self, batch: Batch) -> list[PlacedDelta]:
        """Read a batch's deltas.

        Raises:
            NotFound: its object is gone.
            ValidationFailed: its object is none of this batch.
        """
        return self.read_batch(self.objects.get_object(batch.object_key), batch)

    def put_deltas(self, batch: Batch, deltas: Sequence[PlacedDelta]) -> int:
        """Give the destination the deltas of a batch that it may see; returns how many are new."""
        shown = [one for one in deltas if self.images.shows_event(one.delta)]
        schema = self.destination.schema_of(self.table, batch.schema)
        taken = TableBatch(self.table, batch.after, batch.last, shown, schema)
        return self.database.insert_deltas(taken).unwrap().deltas

    def visible_in_ms(self, commit: Stamp) -> int:
        """Give in how long a commit is surely visible in all its parts; 0 if it is."""
        return max(0, stamp_ms(commit) + VISIBLE_MS_MAX - self.wall_clock())

    def check_declared(self) -> None:
        """Refuse to go on for a destination that is no longer what is declared, or is paused.

        Raises:
            Contention: it was removed, declared anew or paused meanwhile.
        """
        if self.buffer.destinations(self.gateway).by_name.get(self.destination.name) != (
            self.destination
        ):
            raise Contention(f"the destination {self.destination.name} was changed meanwhile")
