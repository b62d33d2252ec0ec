"""Decides which batches are too large for a function, and are delivered by a Spark job instead.

Both ask this module before each write of a table, so the waiting batches decide who makes the next
write. Two that ask at different moments may both begin: the second one to write notices the other's
write, and begins again. Law D17: ``docs/spec/delivery.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lakesync.core.claims import (
    DELIVERIES,
    DeliveryPlace,
    claimed_last,
    delivery_place,
    parse_claim,
)
from lakesync.core.pace import Pace
from lakesync.delivery.gathering import state_of
from lakesync.errors import LakeSyncError, ValidationFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from lakesync.core.claims import Batch
    from lakesync.core.destinations import Destination
    from lakesync.delivery.desk import Desk
    from lakesync.ports import Buffer, DeliveryState, ObjectStore

LARGE_DELTAS_MAX: Final = 2_000_000
"""Deltas of one write by the job, unless one batch has more."""
LARGE_PACE: Final = Pace(deltas=LARGE_DELTAS_MAX)
"""How the job takes batches: it does not gather, as its work is always large."""


def is_large(
    destination: Destination,
    state: DeliveryState,
    table: str,
    batches: Iterable[Batch],
    deltas_min: int,
) -> bool:
    """Return whether the waiting batches of a table of a destination are the job's work.

    Where filters decide, rows are read from the buffer instead of deltas: this is the function's
    work, however many there are. So is the next try after a failure: what the job cannot do,
    perhaps for lack of a permission, continues as it would without the job.

    Args:
        destination: the destination.
        state: the result of the last work on the table.
        table: the table of the batches.
        batches: those that wait.
        deltas_min: from how many deltas on; 0 for never.
    """
    if not deltas_min or state.error:
        return False
    if destination.kind != "bigquery" or destination.is_filtered(table):
        return False
    return sum(batch.deltas for batch in batches) >= deltas_min


@dataclass(frozen=True, slots=True)
class JobRuns:
    """How the function hands over what is too large for it: by a run of the job."""

    deltas_min: int
    start: Callable[[], None]
    """Starts a run, if none is running."""

    def take(self, desk: Desk, batches: Sequence[Batch]) -> bool:
        """Have a run take the waiting batches, if they are large; tell whether they are."""
        if not self.deltas_min or desk.destination.kind != "bigquery":
            return False  # nothing is read for tables that this does not concern
        state = state_of(desk.buffer, desk.place)
        if not is_large(desk.destination, state, desk.table, batches, self.deltas_min):
            return False
        self.start()
        return True


def large_places(buffer: Buffer, objects: ObjectStore, deltas_min: int) -> list[DeliveryPlace]:
    """Return the tables with so many waiting deltas that they are the job's work, and nothing else.

    A table that has to be filled, or with rows to be erased or retried, is the function's first.
    """
    waiting: dict[DeliveryPlace, list[str]] = {}
    for key in objects.list_objects(DELIVERIES):
        try:
            waiting.setdefault(delivery_place(key), []).append(key)
        except ValidationFailed:
            continue  # not a claim of ours
    return [
        place
        for place, keys in waiting.items()
        if place.table and _is_job_s(buffer, objects, place, keys, deltas_min)
    ]


def _is_job_s(
    buffer: Buffer,
    objects: ObjectStore,
    place: DeliveryPlace,
    keys: Sequence[str],
    deltas_min: int,
) -> bool:
    destination = buffer.destinations(place.gateway).by_name.get(place.destination)
    if destination is None or destination.paused or destination.kind != "bigquery":
        return False
    if not destination.wants(place.table) or not all(map(claimed_last, keys)):
        return False
    batches = []
    for key in keys:
        try:
            batches.append(parse_claim(key, objects.get_object(key)))
        except LakeSyncError:
            continue  # applied meanwhile, or malformed, which the work on the table handles
    return is_large(destination, state_of(buffer, place), place.table, batches, deltas_min)
