"""A client that was away for longer than deletions are remembered: what was deleted stays so."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lakesync.client import Client
from tests.client.support.world import check_sound
from tests.support.checkpoints import MINUTE_MS, Kept
from tests.support.gateways import GATEWAY

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lakesync.core.messages import Pull, PullPage, Push, PushReceipt


class Direct:
    """A transport straight into a gateway's services."""

    def __init__(self, gateway: Kept) -> None:
        self._gateway = gateway

    def push(self, push: Push) -> PushReceipt:
        return self._gateway.pushes.push(GATEWAY, push)

    def pull(self, pull: Pull) -> PullPage:
        return self._gateway.reader.pull(GATEWAY, pull)


class World:
    """A gateway that forgets, and two clients that know it from the beginning."""

    def __init__(self, folder: Path) -> None:
        self.gateway = Kept()
        self.away, self.home = (
            Client(
                folder / f"{name}.db",
                client_id=name,
                transport=Direct(self.gateway),
                wall_clock=self.clock,
                page_deltas=2,
            )
            for name in ("away", "home")
        )

    def clock(self) -> int:
        self.gateway.time.now_ms += 10
        return self.gateway.time.wall_clock()

    def forgets(self) -> None:
        """Let time pass until no deletion so far is remembered, nor in a checkpoint."""
        self._keeps()
        assert self.gateway.forgetter().forget(GATEWAY).rows
        self.home.insert("todos", "later", {"n": 1}).unwrap()
        self.home.sync().unwrap()
        self._keeps()

    def _keeps(self) -> None:
        for _ in range(2):
            self.gateway.flushed()
            self.gateway.build()
            self.gateway.trim()
            self.gateway.time.now_ms += MINUTE_MS


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    for row_id in ("r1", "r2", "r3"):
        world.home.insert("todos", row_id, {"title": f"old {row_id}", "n": 1}).unwrap()
    world.home.sync().unwrap()
    world.away.sync().unwrap()
    yield world
    world.away.close()
    world.home.close()


@pytest.mark.law("K16")
def test_a_client_away_past_the_horizon_loses_only_the_forgotten_row(
    world: World,
) -> None:
    world.home.delete("todos", "r1").unwrap()
    world.home.sync().unwrap()
    world.forgets()
    world.away.sync().unwrap()

    assert world.away.get("todos", "r1").unwrap() is None
    assert world.away.get("todos", "r2").unwrap() == {"title": "old r2", "n": 1}
    check_sound(world.away)


@pytest.mark.law("K16")
def test_a_row_inserted_again_after_being_forgotten_has_none_of_its_old_values(
    world: World,
) -> None:
    world.home.delete("todos", "r1").unwrap()
    world.home.sync().unwrap()
    world.forgets()
    world.home.insert("todos", "r1", {"title": "new"}).unwrap()
    world.home.sync().unwrap()
    world.away.update("todos", "r2", {"n": 7}).unwrap()
    world.away.sync().unwrap()

    assert world.away.get("todos", "r1").unwrap() == {"title": "new"}
    assert world.home.get("todos", "r2").unwrap() == {"title": "old r2", "n": 1}
    assert world.away.get("todos", "r2").unwrap() == {"title": "old r2", "n": 7}
    check_sound(world.away)


@pytest.mark.law("K16")
def test_an_old_edit_of_a_forgotten_row_is_quarantined_as_row_forgotten(
    world: World,
) -> None:
    world.away.update("todos", "r1", {"title": "made while away"}).unwrap()
    world.away.update("todos", "r2", {"title": "made while away"}).unwrap()
    world.home.delete("todos", "r1").unwrap()
    world.home.sync().unwrap()
    world.forgets()
    world.away.sync().unwrap()

    (entry,) = world.away.quarantined().unwrap()
    assert (entry.code, entry.delta.row_id) == ("ROW_FORGOTTEN", "r1")
    assert world.away.get("todos", "r2").unwrap() == {"title": "made while away", "n": 1}
    world.home.sync().unwrap()
    assert world.home.get("todos", "r1").unwrap() is None
    assert world.home.get("todos", "r2").unwrap() == {"title": "made while away", "n": 1}

    world.away.discard(entry.delta.delta_id).unwrap()
    assert world.away.get("todos", "r1").unwrap() is None
    check_sound(world.away)
