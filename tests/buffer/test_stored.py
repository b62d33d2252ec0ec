"""What one release stored, another reads: bytes that were kept, of before and of now."""

from __future__ import annotations

import json
from base64 import b64decode
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest

from lakesync.buffer import pack
from lakesync.compat import follower_state
from lakesync.compat.follower_state import Follower, Position, Resend
from lakesync.core.append import AppendMark
from lakesync.core.config import GatewayConfig, config_from_json, config_to_json
from lakesync.core.layout import Layout, Placement
from lakesync.core.rules import Bucket, Claim, Filter, SyncRules
from lakesync.core.schema import Column, TableSchema, check_delta
from lakesync.core.stored import FORMAT
from lakesync.core.visibility import Viewer
from lakesync.errors import InternalError
from tests.support.builders import insert
from tests.support.repository import ROOT

KEPT: dict[str, str] = json.loads((ROOT / "tests/golden/stored.json").read_text())
"""Written as base64: by the release before what is now the latest field of each, and by this."""
BEFORE = GatewayConfig(
    7,
    MappingProxyType({"todos": TableSchema("todos", (Column("title", "string"),), version=3)}),
    Layout(MappingProxyType({"todos": Placement("hot", 4)}), frozenset({"warm"}), 2),
    SyncRules(5, (Bucket("own", frozenset({"todos"}), (Filter("title", "eq", Claim(("sub",))),)),)),
)
NOW = replace(
    BEFORE,
    tables=MappingProxyType({"notes": frozenset({"body"}), "tags": frozenset()}),
    tombstone_horizons=MappingProxyType({"notes": 1 << 60}),
    strict=True,
)
MARK = AppendMark(1 << 60, ((5, 1), (1 << 60, (1 << 48) - 1)), 2)
FOLLOWER = Follower(7, Position(5), scope="s", resend=(Resend("todos", "r1", 9),), replaced=("{}",))


def kept(name: str) -> bytes:
    return b64decode(KEPT[name])


def follower_of(data: bytes) -> Follower | None:
    return follower_state.unpack(pack.inflate(data))


def body_of(data: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(pack.inflate(data))
    return found


def later(body: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Give a document as a later release may write it."""
    return body | {"added": {"deep": [1]}, **more}


@pytest.mark.law("B14")
def test_what_this_release_writes_is_what_is_kept() -> None:
    written = {
        "configuration": pack.pack_config(NOW),
        "mark": pack.pack_mark(MARK),
        "follower": pack.deflate(follower_state.pack(FOLLOWER)),
    }
    assert {name: pack.inflate(data) for name, data in written.items()} == {
        name: pack.inflate(kept(f"{name}, now")) for name in written
    }


@pytest.mark.law("B14")
def test_this_release_reads_both() -> None:
    assert pack.unpack_config(kept("configuration, before")) == BEFORE
    assert pack.unpack_config(kept("configuration, now")) == NOW
    assert pack.unpack_mark(kept("mark, now")) == MARK
    assert follower_of(kept("follower, before")) == replace(FOLLOWER, scope="")
    assert follower_of(kept("follower, now")) == FOLLOWER


@pytest.mark.law("B14")
def test_what_a_later_release_added_is_kept_while_this_one_changes_the_rest() -> None:
    body = later(body_of(kept("configuration, now")))
    body["schemas"] = [later(schema) for schema in body["schemas"]]
    body["rules"]["buckets"][0]["added"] = 1
    read = config_from_json(body)

    assert read == NOW
    assert config_to_json(replace(read, version=8)) == body | {"version": 8}
    again = replace(read.schemas["todos"], version=4)
    declared = replace(read, schemas=MappingProxyType({"todos": again}), rules=SyncRules(6, ()))
    written = config_to_json(declared)
    assert "added" not in written["schemas"][0]
    assert written["rules"] == {"version": 6, "buckets": []}


@pytest.mark.law("B14")
def test_marks_and_followers_of_a_later_release_are_read() -> None:
    longer = pack.deflate(pack.inflate(kept("mark, now")) + b"more")
    assert pack.unpack_mark(longer) == MARK
    added = pack.deflate(json.dumps(later(body_of(kept("follower, now")))).encode())
    assert follower_of(added) == FOLLOWER


@pytest.mark.law("B14")
def test_nothing_that_is_stored_is_checked_again() -> None:
    """Each of these is refused where it comes in by some release."""
    body = body_of(kept("configuration, now"))
    body["schemas"][0] |= {"table": "to dos", "primaryKey": ["gone"]}
    body["schemas"][0]["columns"] *= 2
    body["layout"] = {f"t{number}": [f"S {number}", 99] for number in range(9)}
    body["rules"]["buckets"] *= 2
    odd = [
        {"column": "", "op": "near", "value": 3},
        {"column": "x", "op": "in", "value": []},
    ]
    body["rules"]["buckets"][0] = {"name": "", "tables": ["gone"], "filters": odd}
    read = config_from_json(body)

    assert read.schemas["to dos"].primary_key == ("gone",)
    assert len(read.layout.shards()) > 32
    check_delta(read.schemas["to dos"], insert(title="t"))
    seen = Viewer(read.rules, {"sub": "ann"})
    assert not seen.sees("gone", {"x": b"3", "": b"3"})
    assert seen.sees("todos", {"title": b'"ann"'})


@pytest.mark.law("B14")
def test_what_only_a_later_release_can_read_says_so() -> None:
    config = later(body_of(kept("configuration, now")), format=FORMAT + 1)
    follower = later(body_of(kept("follower, now")), format=FORMAT + 1)
    mark = bytes([FORMAT + 1]) + pack.inflate(kept("mark, now"))[1:]

    for read, data in (
        (pack.unpack_config, json.dumps(config).encode()),
        (follower_of, json.dumps(follower).encode()),
        (pack.unpack_mark, mark),
    ):
        with pytest.raises(InternalError, match="later release"):
            read(pack.deflate(data))
