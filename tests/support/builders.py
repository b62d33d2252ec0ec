"""Deltas and pushes in one line, for tests that say what matters and leave out the rest.

Stamps are small numbers where a test only cares about their order::

    insert(title="Buy milk", at=1)
    update("r2", done=True, at=7, client="phone")
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakesync.core.clock import stamp
from lakesync.core.delta import Op, make_delta
from lakesync.core.messages import Push

if TYPE_CHECKING:
    from lakesync.core.clock import Stamp
    from lakesync.core.delta import Delta

WALL_MS = 1_700_000_000_000
"""A wall-clock time to count from: 2023-11-14 22:13:20 UTC."""

ROW = "r1"
TABLE = "todos"
CLIENT = "c1"


def at_ms(offset_ms: int, counter: int = 0) -> Stamp:
    """Return a real stamp, some milliseconds after `WALL_MS`."""
    return stamp(WALL_MS + offset_ms, counter)


def insert(
    row: str = ROW, *, at: Stamp = 1, client: str = CLIENT, table: str = TABLE, **columns: object
) -> Delta:
    """Make an INSERT; the columns are keywords."""
    return make_delta(Op.INSERT, table, row, columns, client_id=client, hlc=at)


def update(
    row: str = ROW, *, at: Stamp = 1, client: str = CLIENT, table: str = TABLE, **columns: object
) -> Delta:
    """Make an UPDATE; the columns are keywords."""
    return make_delta(Op.UPDATE, table, row, columns, client_id=client, hlc=at)


def delete(row: str = ROW, *, at: Stamp = 1, client: str = CLIENT, table: str = TABLE) -> Delta:
    return make_delta(Op.DELETE, table, row, client_id=client, hlc=at)


def push(*deltas: Delta, client: str = CLIENT, seen: Stamp = 0, atomic: bool = False) -> Push:
    """Make a push of readable deltas, numbered from 0."""
    return Push(client, tuple(enumerate(deltas)), last_seen_hlc=seen, atomic=atomic)
