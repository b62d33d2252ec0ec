"""The steps of an erasure behind the gateway's own: batches, declared destinations, connectors.

Each step reports what it waits for, and may be repeated. Batches are erased first, because fillings
read them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakesync.connectors.erasing import erase as erase_from_connectors
from lakesync.core.claims import CLAIMS, STAGING
from lakesync.core.plural import plural
from lakesync.errors import Conflict
from lakesync.maintenance.destination_erasure import ask_destinations, set_aside, undelivered

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lakesync.cli.session import Session
    from lakesync.ports import (
        Buffer,
        ConnectorStore,
        ObjectStore,
        Queue,
        RowKey,
        WallClock,
    )


def outlets(session: Session) -> tuple[ConnectorStore, Queue]:
    """Return the stack's connectors, and the queue that wakes deliveries."""
    from lakesync.adapters.lake.sqs import SqsQueue
    from lakesync.buffer.connectors import DynamoConnectors

    aws = session.aws
    queue = SqsQueue(aws.output("DeliverQueueUrl"), aws.client("sqs"))
    return DynamoConnectors(aws.output("BufferTable"), aws.dynamo()), queue


class Steps:
    """Erases rows of one table from the stores that received them from the log, or sent them.

    Args:
        buffer: stores the declarations.
        objects: stores batches, claims, and connectors' state.
        store: the connectors.
        queue: wakes deliveries.
        gateway: whose.
        keys: the rows.
        wall_clock: the time.
    """

    def __init__(
        self,
        buffer: Buffer,
        objects: ObjectStore,
        store: ConnectorStore,
        queue: Queue,
        gateway: str,
        keys: Sequence[RowKey],
        *,
        wall_clock: WallClock,
    ) -> None:
        self._buffer = buffer
        self._objects = objects
        self._store = store
        self._queue = queue
        self._gateway = gateway
        self._keys = keys
        self._table = keys[0][0]
        self._wall_clock = wall_clock
        self.destinations: list[str] | None = None
        """The destinations that were requested to erase; None before the request."""

    def go_on(self) -> str:
        """Do all steps that are possible now; return what they wait for, empty once all is done.

        Raises:
            Conflict: claims were set aside that need the batches.
        """
        return self._batches() or self._destinations() or self._connectors()

    def _batches(self) -> str:
        """Remove the table's staged batches, once all destinations have applied them."""
        if names := undelivered(self._objects, self._gateway, self._table):
            return f"the destinations {', '.join(names)} to take its batches"
        if self._objects.list_objects(f"{CLAIMS}{self._gateway}/{self._table}/"):
            return "the lake to take its batches"
        if failed := set_aside(self._objects, self._gateway, self._table):
            raise Conflict(
                f"{plural(len(failed), 'claim')} of {self._table} could not succeed and need its "
                f"batches, the first is {failed[0]}: put them back (lakesync replay claims, or "
                "lakesync destinations replay), or delete them to give their batches up"
            )
        for key in self._objects.list_objects(f"{STAGING}{self._gateway}/{self._table}/"):
            self._objects.delete_object(key)
        return ""

    def _destinations(self) -> str:
        if self.destinations is None:
            declared = self._buffer.destinations(self._gateway)
            rows = [row for _, row in self._keys]
            self.destinations = ask_destinations(
                declared, self._objects, self._queue, self._gateway, self._table, rows
            )
        names = undelivered(self._objects, self._gateway, self._table)
        return f"the destinations {', '.join(names)} to erase them" if names else ""

    def _connectors(self) -> str:
        names = erase_from_connectors(
            self._store, self._objects, self._gateway, self._keys, self._wall_clock
        )
        return f"the connectors {', '.join(names)} to end their polls" if names else ""
