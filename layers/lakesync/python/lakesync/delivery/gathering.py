"""When what waits for a table is written: now, or once enough is gathered.

Law D15: ``docs/spec/delivery.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakesync.core.claims import claimed_last, parse_claim
from lakesync.errors import LakeSyncError
from lakesync.ports import DeliveryState

if TYPE_CHECKING:
    from lakesync.core.claims import DeliveryPlace
    from lakesync.core.pace import Pace
    from lakesync.ports import DeliveryStates, ObjectStore


def next_write_in_ms(
    states: DeliveryStates,
    objects: ObjectStore,
    place: DeliveryPlace,
    pace: Pace,
    now_ms: int,
) -> int | None:
    """Give in how long a table is written to; None if nothing waits for it.

    A filling, and what an administrator asks for, is not gathered.
    """
    if not pace.gather_ms:
        return 0
    keys = objects.list_objects(place.prefix)
    state = state_of(states, place)
    if not keys:
        return 0 if state.error else None
    wait_ms = state.wrote_ms + pace.gather_ms - now_ms
    if wait_ms <= 0 or not all(map(claimed_last, keys)):
        return 0
    return 0 if _deltas(objects, keys) >= pace.deltas else wait_ms


def state_of(states: DeliveryStates, place: DeliveryPlace) -> DeliveryState:
    """Give how the delivery of a table stands; as if nothing was done yet, if nothing is noted."""
    noted = states.delivery_states(place.gateway, place.destination)
    return noted.get(place.table, DeliveryState())


def _deltas(objects: ObjectStore, keys: list[str]) -> int:
    """Give how many deltas claims have; none of one that is no claim, or was just applied."""
    deltas = 0
    for key in keys:
        try:
            deltas += parse_claim(key, objects.get_object(key)).deltas
        except LakeSyncError:
            continue
    return deltas
