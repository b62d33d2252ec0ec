"""How much of the log lies in heads, so that who reads many shards pays two read units. Pure.

The main lane's head is read by itself, for one unit. The heads of the other shards' first lanes,
open or closed, lie in one item collection: one query reads them, and DynamoDB adds up their sizes
before it rounds to 4 KB. So they share one unit: what their names and stamps leave of it is room
for entries, the same for each, and none where there are many. The layout alone decides, which all
writers of a configuration see alike, so no state is kept of it. A head that is too full, since
there were fewer shards or an older release wrote it, is emptied by the next commit to its lane.

In a transaction a head costs two write units for each KB that it begins. The main lane's lists the
lanes of all shards; entries have what that leaves of its last KB.

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
"""What a consistent read gives for one unit."""
WRITE_UNIT_BYTES: Final = 1_024
"""What a unit writes of an item; in a transaction, two units."""
HEAD_BYTES: Final = 66
"""A head without entries and names: three stamps, two counts up to 10 GB, the version of the
configuration up to 9,999, and the names of attributes."""
EPOCH_BYTES: Final = 17
"""What a head has beside in a buffer that was restored."""
_MAIN_HEAD_BYTES: Final = 10
"""What the main lane's has beside, without the list of lanes: how far the log is trimmed, and a key
that is shorter."""
_AN_EPOCH: Final = "any"
_EDIT_BYTES: Final = 160
"""About what a small edit takes in a head, so that a push of it can be priced."""
_FULL_HEAD_BYTES: Final = 5 * _EDIT_BYTES
"""About what lies in a head where its room is not shared."""


def first_heads_bytes(gateway: str, layout: Layout, epoch: str = "") -> int:
    """Give what the heads of all shards' first lanes but the main one take without entries."""
    shards = layout.shards()
    names = sum(map(len, shards)) - len(DEFAULT_SHARD)
    return (len(shards) - 1) * (_bare_bytes(epoch) + len(gateway)) + names


def with_table_placed(gateway: str, layout: Layout, table: str, shard: str) -> Layout:
    """Give the layout with one table placed anew, in which a pull reads two units as before.

    Raises:
        ValidationFailed: it is no shard name, there would be too many shards, or their heads would
            take more than the read unit that is for them, in a restored buffer at the latest.
    """
    placed = layout.moved(table, shard)
    before, after = (first_heads_bytes(gateway, one, _AN_EPOCH) for one in (layout, placed))
    if after > max(before, READ_UNIT_BYTES):
        raise ValidationFailed(
            f"the heads of {len(placed.shards())} shards with such names take {after:,} bytes, and "
            f"a pull reads {READ_UNIT_BYTES:,} of them for one unit: give the shard a shorter name, "
            "or put the table into a shard that is there",
            field="shard",
        )
    return placed


def room_bytes(gateway: str, lane: str, layout: Layout, main: Head) -> int | None:
    """Give what entries may take in a lane's head, as they are stored.

    Args:
        gateway: whose.
        lane: the lane.
        layout: the gateway's.
        main: the main lane's head.

    Returns:
        None where there is one shard: then heads have the room that they always have.
    """
    others = len(layout.shards()) - 1
    if not others:
        return None
    if lane != MAIN_LANE:
        return _shared_bytes(gateway, layout, main.epoch)
    bare = _bare_bytes(main.epoch) + _MAIN_HEAD_BYTES + len(gateway) + len(lane)
    return -(bare + len(main.lanes.to_text())) % WRITE_UNIT_BYTES


def pull_units(gateway: str, layout: Layout, epoch: str) -> int:
    """Give what a pull that brings nothing reads at the most, while shards have one lane each."""
    size = first_heads_bytes(gateway, layout, epoch)
    return 1 + -(-size // READ_UNIT_BYTES)


def push_units(gateway: str, shard: str, layout: Layout, epoch: str) -> float:
    """Give about what a push of one small edit to a shard writes: its head, its row, its entry."""
    room = _FULL_HEAD_BYTES
    if shard != DEFAULT_SHARD:
        room = min(room, _shared_bytes(gateway, layout, epoch))
    return round(4 + 2 / (1 + room // _EDIT_BYTES), 1)


def _shared_bytes(gateway: str, layout: Layout, epoch: str) -> int:
    left = READ_UNIT_BYTES - first_heads_bytes(gateway, layout, epoch)
    return max(left, 0) // (len(layout.shards()) - 1)


def _bare_bytes(epoch: str) -> int:
    return HEAD_BYTES + (EPOCH_BYTES if epoch else 0)
