"""What every buffer promises of followers: what was saved last is read, and is nobody else's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lakesync.core.clock import STAMP_MAX
from lakesync.ports import Follower

if TYPE_CHECKING:
    from lakesync.ports import Buffer

HELD = Follower(
    read_from=1, since=2, page_until=3, proved=4, given_until=STAMP_MAX, holds_rows=True,
    expired=True, followed=True, more=True, scope="s",
    eyes='{"teams":["x"]}', replaced=("{}", '{"a":1}'), again_until=6,
    owed=(("todos", "r|1"), ("t", "\U0001f600")), owed_pages=1,
)  # fmt: skip


def test_who_was_never_seen_is_unknown(buffer: Buffer, gateway: str) -> None:
    assert buffer.follower(gateway, "c1") is None


@pytest.mark.parametrize("follower", [Follower(), HELD])
def test_what_was_saved_is_read(buffer: Buffer, gateway: str, follower: Follower) -> None:
    buffer.save_follower(gateway, "c1", follower)

    assert buffer.follower(gateway, "c1") == follower


def test_whoever_saves_last_is_believed(buffer: Buffer, gateway: str) -> None:
    buffer.save_follower(gateway, "c1", HELD)
    buffer.save_follower(gateway, "c1", Follower())

    assert buffer.follower(gateway, "c1") == Follower()


@pytest.mark.parametrize("client", ["c|1", "|", "follower", "\U0001f600" * 32])
def test_followers_are_apart_by_gateway_and_client(
    buffer: Buffer, gateway: str, client: str
) -> None:
    buffer.save_follower(gateway, client, HELD)

    assert buffer.follower(gateway, "c1") is None
    assert buffer.follower(f"{gateway}x", client) is None
    assert buffer.follower(gateway, client) == HELD


def test_a_follower_is_no_trace_of_a_gateway(buffer: Buffer, gateway: str) -> None:
    buffer.save_follower(gateway, "c1", HELD)

    assert gateway not in buffer.gateways()
