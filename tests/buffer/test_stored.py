"""What a release stores, another reads: bytes that were kept."""

from __future__ import annotations

import json
from base64 import b64decode
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest

from lakesync.buffer import item_format
from lakesync.buffer.requests import transact
from lakesync.buffer.table_calls import entries_of, head_of
from lakesync.compat import follower_progress
from lakesync.compat.follower_progress import Follower, Position, Resend
from lakesync.core.config import READS, GatewayConfig, config_from_json, config_to_json
from lakesync.core.layout import (
    ONE_LANE,
    SHARDS_MAX,
    LaneCount,
    Lanes,
    Layout,
    lanes_from_text,
)
from lakesync.core.merge import AppendMark
from lakesync.core.rules import Bucket, Claim, Filter, Omission, SyncRules
from lakesync.core.schema import Column, TableSchema, check_delta
from lakesync.core.visibility import Viewer
from lakesync.errors import UpgradeRequired
from lakesync.ports import Commit, Head, LaneCommit, LogEntry
from lakesync.wire import lakesync_pb2 as pb
from lakesync.wire.log_entries import decode_chunk, deflate, encode_chunk, inflate
from tests.support.builders import insert
from tests.support.repository import ROOT

KEPT: dict[str, str] = json.loads((ROOT / "tests/golden/stored.json").read_text())
"""Written as base64 by this release."""
CONFIG = GatewayConfig(
    7,
    MappingProxyType({"todos": TableSchema("todos", (Column("title", "string"),), version=3)}),
    Layout(MappingProxyType({"todos": "hot"}), 2, frozenset({"warm"})),
    SyncRules(5, (Bucket("own", frozenset({"todos"}), (Filter("title", "eq", Claim(("sub",))),)),)),
    tables=MappingProxyType({"notes": frozenset({"body"}), "tags": frozenset()}),
    tombstone_horizons=MappingProxyType({"notes": 1 << 60}),
    strict=True,
)
MARK = AppendMark(1 << 60, ((5, 1), (1 << 60, (1 << 48) - 1)), 2)
ENTRIES = (
    LogEntry(1 << 60, b"one run", 2, frozenset({"notes", "todos"}), 107, 1 << 59),
    LogEntry((1 << 60) + 9, b"another", 1, frozenset({"todos"}), 114, 1 << 60, b"rows"),
)
"""The first is behind entries of 100 bytes."""
LANES = Lanes(
    MappingProxyType({"main": LaneCount(2, 5), "hot": LaneCount(0, 1)}), 12, 1 << 59, 1 << 40
)
HEAD = Head(
    commit=(1 << 60) + 20,
    config_version=7,
    epoch="0f00000000000000",
    logged_bytes=114,
    flushed_bytes=90,
    oldest_unflushed=1 << 60,
    last_logged=(1 << 60) + 9,
    recent=ENTRIES,
    is_closed=True,
    trimmed=1 << 58,
    lanes=LANES,
)
FOLLOWER = Follower(7, Position(5), scope="s", resend=(Resend("todos", "r1", 9),), replaced=("{}",))


def kept(name: str) -> bytes:
    return b64decode(KEPT[name])


def follower_of(data: bytes) -> Follower | None:
    return follower_progress.unpack(inflate(data))


def body_of(data: bytes) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(inflate(data))
    return body


def later(body: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return a document as a later release may write it."""
    return body | {"added": {"deep": [1]}, **more}


@pytest.mark.law("B14")
def test_this_release_writes_the_kept_bytes() -> None:
    written = {
        "configuration": item_format.pack_config(CONFIG),
        "mark": item_format.pack_mark(MARK),
        "follower": deflate(follower_progress.pack(FOLLOWER)),
        "log chunk": encode_chunk(ENTRIES),
        "lanes": deflate(LANES.to_text().encode()),
    }
    assert {name: inflate(data) for name, data in written.items()} == {
        name: inflate(kept(name)) for name in written
    }


@pytest.mark.law("B14")
def test_this_release_reads_the_kept_bytes() -> None:
    assert item_format.unpack_config(kept("configuration")) == CONFIG
    assert item_format.unpack_mark(kept("mark")) == MARK
    assert follower_of(kept("follower")) == FOLLOWER
    assert decode_chunk(kept("log chunk")) == ENTRIES
    assert lanes_from_text(inflate(kept("lanes")).decode()) == LANES


@pytest.mark.law("B14")
def test_head_with_entries_is_read() -> None:
    item = json.loads(kept("head"))

    assert head_of(item) == HEAD
    bare = {name: item[name] for name in ("pk", "sk", "c")}
    assert head_of(bare) == Head(commit=HEAD.commit, lanes=ONE_LANE)
    assert head_of(item | {"added": {"S": "by a later release"}}) == HEAD


@pytest.mark.law("B14")
def test_entries_in_a_head_are_written_as_the_kept_bytes() -> None:
    before = replace(HEAD, recent=ENTRIES[:1], commit=1 << 60)
    part = LaneCommit(before, ENTRIES[1])
    commit = Commit("g", ENTRIES[1].stamp, 7, {"main": part}, {}, "token", epoch=HEAD.epoch)

    in_head, _ = transact("buffer", commit)
    moved, _ = transact("buffer", replace(commit, lanes={"main": replace(part, chunk=ENTRIES)}))

    (update,) = json.loads(in_head)["TransactItems"]
    written = update["Update"]["ExpressionAttributeValues"][":i"]["B"]
    item = json.loads(kept("head"))
    assert inflate(b64decode(written)) == inflate(b64decode(item["i"]["B"]))
    update, put = json.loads(moved)["TransactItems"]
    assert ":i" not in update["Update"]["ExpressionAttributeValues"]
    assert entries_of(put["Put"]["Item"]) == ENTRIES
    assert put["Put"]["Item"]["sk"] == {"S": "1000000000000009"}


@pytest.mark.law("B14")
def test_chunks_and_lanes_of_a_later_release_are_read() -> None:
    chunk = pb.LogChunk.FromString(inflate(kept("log chunk")))
    added = chunk.SerializeToString() + bytes([0xF8, 0x07, 0x01])  # field 127 = 1

    assert decode_chunk(deflate(added)) == ENTRIES
    assert lanes_from_text(LANES.to_text() + ";added;more") == LANES
    assert lanes_from_text("") == ONE_LANE


@pytest.mark.law("B14")
def test_fields_of_a_later_release_are_kept_in_a_changed_configuration() -> None:
    body = later(body_of(kept("configuration")))
    body["schemas"] = [later(schema) for schema in body["schemas"]]
    body["rules"]["buckets"][0]["added"] = 1
    read = config_from_json(body)

    assert read == CONFIG
    assert config_to_json(replace(read, version=8)) == body | {"version": 8}
    again = replace(read.schemas["todos"], version=4)
    declared = replace(read, schemas=MappingProxyType({"todos": again}), rules=SyncRules(6, ()))
    written = config_to_json(declared)
    assert "added" not in written["schemas"][0]
    assert written["rules"] == {"version": 6, "buckets": []}


@pytest.mark.law("B14")
def test_marks_and_followers_of_a_later_release_are_read() -> None:
    longer = deflate(inflate(kept("mark")) + b"more")
    assert item_format.unpack_mark(longer) == MARK
    added = deflate(json.dumps(later(body_of(kept("follower")))).encode())
    assert follower_of(added) == FOLLOWER


@pytest.mark.law("B14")
def test_stored_configuration_is_not_validated_again() -> None:
    """Each of these is refused where it comes in by some release."""
    body = body_of(kept("configuration"))
    body["schemas"][0] |= {"table": "to dos", "primaryKey": ["gone"]}
    body["schemas"][0]["columns"] *= 2
    body["layout"] = {f"t{number}": f"S {number}" for number in range(SHARDS_MAX)}
    body["rules"]["buckets"] *= 2
    odd = [
        {"column": "", "op": "near", "value": 3},
        {"column": "x", "op": "in", "value": []},
    ]
    body["rules"]["buckets"][0] = {"name": "", "tables": ["gone"], "filters": odd}
    read = config_from_json(body)

    assert read.schemas["to dos"].primary_key == ("gone",)
    assert len(read.layout.shards()) > SHARDS_MAX
    check_delta(read.schemas["to dos"], insert(title="t"))
    seen = Viewer(read.rules, {"sub": "ann"})
    assert not seen.sees("gone", {"x": b"3", "": b"3"})
    assert seen.sees("todos", {"title": b'"ann"'})


@pytest.mark.law("B14")
def test_unreadable_format_of_a_later_release_raises_upgrade_required() -> None:
    config = later(body_of(kept("configuration")), format=READS + 1)
    follower = later(body_of(kept("follower")), format=READS + 1)
    mark = bytes([READS + 1]) + inflate(kept("mark"))[1:]
    chunk = pb.LogChunk.FromString(inflate(kept("log chunk")))
    chunk.format = READS + 1

    for read, data in (
        (item_format.unpack_config, json.dumps(config).encode()),
        (follower_of, json.dumps(follower).encode()),
        (item_format.unpack_mark, mark),
        (decode_chunk, chunk.SerializeToString()),
    ):
        with pytest.raises(UpgradeRequired, match="later release"):
            read(deflate(data))


@pytest.mark.law("B14", "V12")
def test_omissions_are_read_back_from_the_stored_configuration() -> None:
    omission = Omission(frozenset({"title"}), frozenset({"todos"}))
    omitting = replace(CONFIG, rules=replace(CONFIG.rules, omit=(omission,)))
    body = config_to_json(omitting)

    assert config_from_json(body) == omitting
