"""Who loses a race waits before it tries again, each time longer."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from lakesync.core.layout import Placement
from lakesync.errors import Contention
from lakesync.log.read_barrier import ReadBarrier, read_all
from lakesync.maintenance import restore
from lakesync.ports import HeadMoved
from tests.support.builders import WALL_MS, at_ms, insert, push
from tests.support.gateways import GivenTime, administrator, pusher
from tests.support.lagging import LaggingBuffer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lakesync.ports import Head

GATEWAY = "g"


class Patient(LaggingBuffer):
    """Counts how often it is waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses: list[int] = []
        self.version = 0
        time = GivenTime(WALL_MS)
        pusher(self, time_=time).push(GATEWAY, push(insert(at=at_ms(1), n=1)))
        self.pauses.clear()

    def pause(self, tries: int) -> None:
        """Note how often."""
        self.pauses.append(tries)

    def heads(self, gateway: str, shards: Sequence[str]) -> dict[str, Head]:
        """Give the heads, maybe as of another configuration."""
        found = super().heads(gateway, shards)
        if not self.version:
            return found
        return {shard: replace(head, config_version=99) for shard, head in found.items()}


@pytest.mark.law("B8")
def test_a_commit_that_is_becoming_visible_is_waited_for() -> None:
    buffer = Patient()
    log = ReadBarrier(buffer).raise_heads(GATEWAY)
    buffer.lag = 4
    assert len(list(read_all(buffer, log, (0, log.top), 10))) == 1
    assert buffer.pauses == [1, 2, 3, 4]

    buffer.lag = 99
    with pytest.raises(Contention):
        list(read_all(buffer, log, (0, log.top), 10))
    assert buffer.pauses[4:] == list(range(1, len(buffer.pauses) - 3))


def test_a_configuration_that_keeps_changing_is_waited_for() -> None:
    buffer = Patient()
    buffer.version = 99

    with pytest.raises(Contention):
        ReadBarrier(buffer).raise_heads(GATEWAY)
    assert buffer.pauses == list(range(1, 20))


def test_heads_that_keep_moving_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = Patient()
    columns = [{"name": "n", "type": "json"}]
    admin = administrator(buffer, time_=GivenTime(WALL_MS))
    admin.register_schema(GATEWAY, {"table": "notes", "columns": columns})
    admin.place_table(GATEWAY, "notes", Placement("side"))
    pusher(buffer, time_=GivenTime(WALL_MS)).push(GATEWAY, push(insert("r2", at=at_ms(2))))
    monkeypatch.setattr(buffer, "raise_head", lambda *_: False)

    with pytest.raises(Contention):
        ReadBarrier(buffer).raise_heads(GATEWAY)
    assert buffer.pauses == list(range(1, 20))


def test_an_epoch_that_cannot_begin_is_tried_again_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    buffer = Patient()

    def moved(*_: object) -> None:
        raise HeadMoved({})

    monkeypatch.setattr(buffer, "begin_epoch", moved)
    with pytest.raises(Contention):
        restore.begin_epoch(buffer, GATEWAY, wall_clock=lambda: WALL_MS)
    assert buffer.pauses == list(range(1, 10))
