"""Which gateways have something to flush."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lakesync.ports import FlushStates, GatewaySlice

DUE_HEADS_MAX: Final = 1_000
"""Heads of one slice of those that are due: 100 KB of an index, and a hundred calls of a queue."""


def due_slices(buffer: FlushStates, place: str = "") -> Iterator[GatewaySlice]:
    """Yield the gateways that have something to flush, slice by slice, each gateway once.

    The cost depends on what is unflushed: idle gateways are not read.

    Raises:
        LakeSyncError: the buffer cannot be read now.
    """
    given: set[str] = set()
    while True:
        due = buffer.unflushed(place, DUE_HEADS_MAX)
        fresh = [gateway for gateway in due.gateways if gateway not in given]
        given.update(fresh)
        yield due._replace(gateways=tuple(fresh))
        if not due.place:
            return
        place = due.place


def due_gateways(buffer: FlushStates) -> list[str]:
    """Return all gateways that have something to flush; see `due_slices`."""
    return [gateway for due in due_slices(buffer) for gateway in due.gateways]
