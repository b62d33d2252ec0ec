"""Announces batches: to the lake, and to each declared destination that wants the table.

The steps, in this order; after a crash between any two of them, all are repeated:

       of each batch in turn:
    1. the rows are written               once, under a name made from their commits
    2. the lake's claim is written        from here the batch waits for the lake
       for each destination:
    3. its claim is written               from here the batch waits for this destination
    4. its claim is announced             so that a process reads it at once
       when all batches are claimed:
    5. the lake's claims are announced    in one message, so that one process does all of them

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
    from collections.abc import Iterable, Mapping

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
        self,
        batches: Iterable[Batch],
        schemas: Mapping[str, TableSchema],
        destinations: Destinations,
    ) -> None:
        """Write batches of a gateway, and claim them for the lake and their destinations."""
        in_lake = []
        for batch in batches:
            claim = self._written(batch, schemas.get(batch.table))
            if destinations.in_lake(batch.table):
                self._objects.put_object(batch.claim_key, claim, _JSON)
                in_lake.append(batch)
            for destination in destinations.wanting(batch.table):
                key = batch.delivery_key(destination.name)
                self._objects.put_object(key, claim, _JSON)
                self._deliveries.send(announcement(key, batch.object_key))
        if in_lake:
            first, *others = in_lake
            more = [batch.claim_key for batch in others]
            self._lake.send(announcement(first.claim_key, first.object_key, more=more))

    def _written(self, batch: Batch, schema: TableSchema | None) -> bytes:
        """Write a batch's rows; returns its claim."""
        if batch.form == JSON:
            body = encode_batch(batch.gateway, batch.table, batch.after, batch.last, batch.rows)
            self._objects.put_object(batch.object_key, body, _JSON)
        else:
            body = self._encoder.encode(batch.rows, batch.columns)
            self._objects.put_object(batch.object_key, body, _PARQUET)
        return batch.claim(schema, len(body)).encode()
