"""Announces batches: to the lake, and to each declared destination that wants the table.

The steps of one batch, in this order; after a crash between any two of them, all are repeated:

    1. the rows are written               once, under a name made from their commits
       for each destination, the lake first:
    2. the claim is written               from here the batch waits for this destination
    3. the claim is announced             so that a process reads it at once

The list of destinations is read after the range is recorded: a destination that is declared later
is filled from where that range ends (law D8: ``docs/spec/delivery.md``). Where one is in the lake's
place, the lake has no claim of its tables (D20).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lakesync.core.claims import announcement
from lakesync.core.flushing import JSON
from lakesync.wire.batch_json import encode_batch

if TYPE_CHECKING:
    from lakesync.core.destinations import Destinations
    from lakesync.core.schema import TableSchema
    from lakesync.maintenance.batches import Batch
    from lakesync.ports import BatchEncoder, ObjectStore, Queue

_JSON: Final = "application/json"
_PARQUET: Final = "application/vnd.apache.parquet"


class Announcer:
    """Writes and announces batches. Idempotent, and safe to kill.

    Args:
        objects: the store of rows and claims.
        encoder: makes an object of rows.
        lake: the queue of the lake's claims.
        deliveries: the queue of the claims of declared destinations.
    """

    def __init__(
        self, objects: ObjectStore, encoder: BatchEncoder, lake: Queue, deliveries: Queue
    ) -> None:
        self._objects = objects
        self._encoder = encoder
        self._lake = lake
        self._deliveries = deliveries

    def announce(
        self, batch: Batch, schema: TableSchema | None, destinations: Destinations
    ) -> None:
        """Write a batch, and claim it for the lake and each destination that it goes to."""
        if batch.form == JSON:
            body = encode_batch(batch.gateway, batch.table, batch.after, batch.last, batch.rows)
            self._objects.put_object(batch.object_key, body, _JSON)
        else:
            body = self._encoder.encode(batch.rows, batch.columns)
            self._objects.put_object(batch.object_key, body, _PARQUET)
        claim = batch.claim(schema, len(body)).encode()
        if destinations.in_lake(batch.table):
            self._claim(batch, batch.claim_key, claim, self._lake)
        for destination in destinations.wanting(batch.table):
            self._claim(batch, batch.delivery_key(destination.name), claim, self._deliveries)

    def _claim(self, batch: Batch, key: str, claim: bytes, queue: Queue) -> None:
        self._objects.put_object(key, claim, _JSON)
        queue.send(announcement(key, batch.object_key))
