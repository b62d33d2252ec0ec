"""lakesync.log.lanes: what entries may take in heads, so that many shards are read cheaply."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.units import item_bytes
from lakesync.buffer import item_format
from lakesync.buffer.caller import DynamoCaller
from lakesync.buffer.dynamo import DynamoBuffer
from lakesync.core.clock import STAMP_MAX, stamp
from lakesync.core.gateway_identity import new_epoch, restored_at
from lakesync.core.layout import MAIN_LANE, SHARDS_MAX, LaneCount, Lanes, Layout
from lakesync.log.lanes import (
    HEAD_BYTES,
    READ_UNIT_BYTES,
    WRITE_UNIT_BYTES,
    first_heads_bytes,
    pull_units,
    push_units,
    room_bytes,
)
from lakesync.ports import Head
from tests.support.builders import WALL_MS
from tests.support.commits import Writer
from tests.support.modelled import LockedModel

if TYPE_CHECKING:
    from collections.abc import Mapping

GATEWAY = "g"
EPOCH = new_epoch("a")
RESTORED = restored_at(EPOCH, stamp(WALL_MS))
_names = st.text("abcdefgh_", min_size=1, max_size=32).map(lambda name: f"s{name}"[:32])


def layout_of(*shards: str) -> Layout:
    """Return a layout with a table in each shard."""
    return Layout(MappingProxyType({f"t{n}": shard for n, shard in enumerate(shards)}))


def head_item(gateway: str, lane: str, epoch: str = "") -> Mapping[str, Mapping[str, str]]:
    """Return the item of a head as large as it is without entries."""
    pk, sk = item_format.head_key(gateway, lane)
    item = {"pk": {"S": pk}, "sk": {"S": sk}, "v": {"N": "9999"}, "i": {"B": ""}}
    item |= {name: {"N": str(stamp(WALL_MS) + 12_345)} for name in ("c", "l", "o")}
    item |= {name: {"N": "9999999999"} for name in ("lb", "fb")}
    return item | ({"e": {"S": epoch}} if epoch else {})


@pytest.mark.law("B18")
@given(
    shards=st.lists(_names, min_size=1, max_size=SHARDS_MAX - 1, unique=True),
    gateway_chars=st.integers(1, 64),
)
def test_full_heads_cost_the_predicted_read_units(shards: list[str], gateway_chars: int) -> None:
    gateway, layout = "g" * gateway_chars, layout_of(*shards)
    main = Head(epoch=RESTORED)
    rooms = [room_bytes(gateway, shard, layout, main) for shard in shards]
    bare = [item_bytes(head_item(gateway, shard)) for shard in shards]

    assert sum(bare) == first_heads_bytes(gateway, layout)
    assert len(set(rooms)) == 1
    full = sum(bare) + sum(room or 0 for room in rooms)
    assert 1 + -(-full // READ_UNIT_BYTES) == pull_units(gateway, layout)
    assert 4 < push_units(gateway, shards[0], layout) <= 6
    # No room is left over that all of them could have.
    assert full > READ_UNIT_BYTES - len(shards)


@pytest.mark.law("B18")
def test_written_head_takes_at_most_the_counted_bytes() -> None:
    model = LockedModel()
    caller = DynamoCaller("us-east-1", credentials=lambda: ("key", "secret", None), send=model)
    buffer = DynamoBuffer("lakesync-buffer", caller)
    writer = Writer(buffer, GATEWAY, config_version=9_999, stamp=stamp(WALL_MS))
    writer.write(MAIN_LANE)
    for records in (b"r" * 1_000, b"r"):
        commit = writer.prepare("side", at=writer.stamp + 1, records=records)
        buffer.commit(replace(commit, epoch=RESTORED))
        buffer.note_flushed(GATEWAY, "side", commit.stamp, 1_000)

    (item,) = [
        item for item, _ in model.dynamo.items._collections[f"{GATEWAY}|heads|0"].items.values()
    ]
    counted = HEAD_BYTES + len(GATEWAY) + len("side")
    assert {"o", "fb", "lb", "l"} <= set(item)
    assert item_bytes(item) <= counted


@pytest.mark.law("B18")
@pytest.mark.parametrize("epoch", [EPOCH, RESTORED])
@pytest.mark.parametrize("shard_chars", [2, 10, 32])
def test_main_lanes_head_has_the_rest_of_its_write_unit_as_room(
    shard_chars: int, epoch: str
) -> None:
    shards = [f"s{n}".ljust(shard_chars, "_") for n in range(10, 10 + SHARDS_MAX - 1)]
    lanes = Lanes(
        MappingProxyType({shard: LaneCount(1, 1) for shard in ("main", *shards)}),
        changes=99,
        quiet=STAMP_MAX,
        paused_until_ms=WALL_MS,
    )
    main = Head(epoch=epoch, lanes=lanes)
    room = room_bytes(GATEWAY, MAIN_LANE, layout_of(*shards), main)
    assert room is not None

    bare = {
        **head_item(GATEWAY, MAIN_LANE, epoch),
        "t": {"N": str(stamp(WALL_MS) + 1)},
        "ln": {"S": lanes.to_text()},
    }
    assert item_bytes(bare) + room == WRITE_UNIT_BYTES * -(-item_bytes(bare) // WRITE_UNIT_BYTES)
    assert room > 0


@pytest.mark.law("B18")
def test_heads_of_a_gateway_with_one_shard_have_their_full_room() -> None:
    assert room_bytes(GATEWAY, MAIN_LANE, Layout(), Head()) is None
    assert room_bytes(GATEWAY, "main.7", Layout(), Head()) is None
    assert pull_units(GATEWAY, Layout()) == 1
