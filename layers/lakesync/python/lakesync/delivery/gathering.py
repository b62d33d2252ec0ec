"""When waiting batches of a table are written: now, or once enough is gathered.

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
    """Return the time until a table is written; None if nothing waits for it.

    Fillings and requests of an administrator are not gathered.
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
    """Return the state of a table's delivery; the initial state if none is stored."""
    noted = states.delivery_states(place.gateway, place.destination)
    return noted.get(place.table, DeliveryState())


def _deltas(objects: ObjectStore, keys: list[str]) -> int:
    """Return the number of deltas of claims; 0 for a malformed claim, or one just applied."""
    deltas = 0
    for key in keys:
        try:
            deltas += parse_claim(key, objects.get_object(key)).deltas
        except LakeSyncError:
            continue
    return deltas
