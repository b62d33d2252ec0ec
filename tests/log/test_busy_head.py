"""A head that another transaction is just writing to: whoever changes a gateway tries again."""

from __future__ import annotations

from typing import Any

from lakesync.buffer.memory_buffer import MemoryBuffer
from lakesync.maintenance.horizons import begin_epoch
from lakesync.ports import HeadBusy
from tests.support.builders import WALL_MS, at_ms, insert, push
from tests.support.gateways import GivenTime, pusher


class Busy(MemoryBuffer):
    """Refuses the next writes of heads as DynamoDB does while a transaction is at one."""

    refusals = 2

    def save_config(self, *arguments: Any, **named: Any) -> None:
        """Put a configuration in force."""
        self._refuse()
        super().save_config(*arguments, **named)

    def begin_epoch(self, *arguments: Any, **named: Any) -> None:
        """Begin an epoch."""
        self._refuse()
        super().begin_epoch(*arguments, **named)

    def _refuse(self) -> None:
        self.refusals -= 1
        if self.refusals >= 0:
            raise HeadBusy("another transaction writes to a head")


def test_push_of_a_new_table_is_accepted_although_its_head_was_busy() -> None:
    buffer = Busy()

    receipt = pusher(buffer, time_=GivenTime(WALL_MS)).push("g", push(insert(at=at_ms(1), n=1)))

    assert (receipt.accepted, buffer.refusals < 0) == (1, True)


def test_new_epoch_begins_although_the_head_was_busy() -> None:
    buffer = Busy()
    pusher(buffer, time_=GivenTime(WALL_MS)).push("g", push(insert(at=at_ms(1), n=1)))
    buffer.refusals = 2

    assert begin_epoch(buffer, "g", wall_clock=lambda: WALL_MS + 1_000)
    assert buffer.refusals < 0
