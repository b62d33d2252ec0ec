"""How much of the log fits into heads, so that a reader of many shards pays two read units. Pure.

The main lane's head is read alone, for one unit. The heads of the other shards' first lanes, open
or closed, are in one item collection. One query reads them, and DynamoDB adds up their sizes before
it rounds to 4 KB, so they share one unit. What their names and stamps leave of it is room for
entries, the same for each head, and none where there are many. The room follows from the layout
alone, which all writers of a configuration know, so no state is kept for it. A head may be too
full, because there were fewer shards or an older release wrote it; the next commit to its lane
empties it.

In a transaction a head costs two write units for each started KB. The main lane's head lists the
lanes of all shards; entries get what is left of its last KB.

Law B18: ``docs/spec/commit.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lakesync.core.layout import DEFAULT_SHARD, MAIN_LANE
from lakesync.errors import ValidationFailed

if TYPE_CHECKING:
    from lakesync.core.layout import Layout
    from lakesync.ports import Head

READ_UNIT_BYTES: Final = 4_096
"""Bytes that one unit of a consistent read covers."""
WRITE_UNIT_BYTES: Final = 1_024
"""Bytes of an item that one write unit covers; a transaction takes two units for them."""
HEAD_BYTES: Final = 66
"""A head without entries and names: three stamps, two counts up to 10 GB, the version of the
configuration up to 9,999, and the names of attributes."""
_MAIN_HEAD_BYTES: Final = 11
"""What the main lane's head has in addition, without the epoch and the list of lanes: the name of
the epoch, and how far the log is trimmed; its key is shorter."""
_EDIT_BYTES: Final = 160
"""Approximate size of a small edit in a head, used to estimate the cost of its push."""
_FULL_HEAD_BYTES: Final = 5 * _EDIT_BYTES
"""Approximate size of the entries in a head whose room is not shared."""


def first_heads_bytes(gateway: str, layout: Layout) -> int:
    """Get the size of all shards' first heads without entries; the main lane's is not counted."""
    shards = layout.shards()
    names = sum(map(len, shards)) - len(DEFAULT_SHARD)
    return (len(shards) - 1) * (HEAD_BYTES + len(gateway)) + names


def with_table_placed(gateway: str, layout: Layout, table: str, shard: str) -> Layout:
    """Return the layout with one table moved, in which a pull still reads two units.

    Raises:
        ValidationFailed: it is no shard name, there would be too many shards, or their heads would
            exceed their read unit.
    """
    placed = layout.moved(table, shard)
    before, after = (first_heads_bytes(gateway, one) for one in (layout, placed))
    if after > max(before, READ_UNIT_BYTES):
        raise ValidationFailed(
            f"the heads of {len(placed.shards())} shards with such names take {after:,} bytes, and "
            f"a pull reads {READ_UNIT_BYTES:,} of them for one unit: give the shard a shorter "
            "name, or put the table into a shard that is there",
            field="shard",
        )
    return placed


def room_bytes(gateway: str, lane: str, layout: Layout, main: Head) -> int | None:
    """Return the size that entries may have in a lane's head, as they are stored.

    Args:
        gateway: the gateway's id.
        lane: the lane.
        layout: the gateway's.
        main: the main lane's head.

    Returns:
        None where there is one shard: then heads have their full room.
    """
    others = len(layout.shards()) - 1
    if not others:
        return None
    if lane != MAIN_LANE:
        return _shared_bytes(gateway, layout)
    bare = HEAD_BYTES + _MAIN_HEAD_BYTES + len(gateway) + len(lane) + len(main.epoch)
    return -(bare + len(main.lanes.to_text())) % WRITE_UNIT_BYTES


def pull_units(gateway: str, layout: Layout) -> int:
    """Return the most read units of a pull without news, while shards have one lane each."""
    size = first_heads_bytes(gateway, layout)
    return 1 + -(-size // READ_UNIT_BYTES)


def push_units(gateway: str, shard: str, layout: Layout) -> float:
    """Return the approximate write units of a push of one small edit: head, row and entry."""
    room = _FULL_HEAD_BYTES
    if shard != DEFAULT_SHARD:
        room = min(room, _shared_bytes(gateway, layout))
    return round(4 + 2 / (1 + room // _EDIT_BYTES), 1)


def _shared_bytes(gateway: str, layout: Layout) -> int:
    left = READ_UNIT_BYTES - first_heads_bytes(gateway, layout)
    return max(left, 0) // (len(layout.shards()) - 1)
