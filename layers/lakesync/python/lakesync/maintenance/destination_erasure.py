"""Asks declared destinations to erase rows, and tells which have not done so yet.

The erasure is requested after the rows' deletions were delivered. A destination that is paused or
down keeps its claim, and erases the rows later. Law E9: ``docs/spec/erasure.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakesync.core.deliveries import (
    CLAIMS_FAILED,
    DELIVERIES_FAILED,
    DeliveryPlace,
    announcement,
    deliveries_of,
    delivery_place,
    erasure_name,
    erasure_to_json,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lakesync.core.destinations import Destinations
    from lakesync.ports import ObjectStore, Queue


def ask_destinations(
    declared: Destinations,
    objects: ObjectStore,
    queue: Queue,
    gateway: str,
    table: str,
    row_ids: Sequence[str],
) -> list[str]:
    """Ask each destination of the table; returns their names. Idempotent, and safe to kill."""
    names = [one.name for one in declared.wanting(table)]
    body = erasure_to_json(row_ids).encode()
    for name in names:
        place = DeliveryPlace(gateway, name, table)
        objects.put_object(place.prefix + erasure_name(row_ids), body, "application/json")
        queue.send(announcement(place.prefix))
    return names


def undelivered(objects: ObjectStore, gateway: str, table: str) -> list[str]:
    """Return the destinations with waiting claims of a table, erasures included, in order."""
    places = map(delivery_place, objects.list_objects(deliveries_of(gateway)))
    return sorted({place.destination for place in places if place.table in {table, ""}})


def set_aside(objects: ObjectStore, gateway: str, table: str) -> list[str]:
    """Return the claims of a table that failed permanently: they still need its batches."""
    lake = objects.list_objects(f"{CLAIMS_FAILED}{gateway}/{table}/")
    others = objects.list_objects(f"{DELIVERIES_FAILED}{gateway}/")
    return [*lake, *(key for key in others if key.split("/")[3:-1] == [table])]
