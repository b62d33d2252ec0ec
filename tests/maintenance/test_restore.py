"""A new epoch begins beside others that change the gateway, and leaves it fit for use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from lakesync.buffer.memory_buffer import MemoryBuffer
from lakesync.core.layout import MAIN_LANE
from lakesync.maintenance.horizons import begin_epoch
from tests.support.builders import WALL_MS, at_ms, insert, push
from tests.support.gateways import GivenTime, administrator, pusher

if TYPE_CHECKING:
    from collections.abc import Callable

READS = ("config", "flush_state", "all_heads")


class Interrupted(MemoryBuffer):
    """Has something else done once, right behind a read."""

    def __init__(self, read: str) -> None:
        super().__init__()
        self.read = read
        self.between: Callable[[], object] | None = None

    def _then(self, read: str, answer: Any) -> Any:
        if read == self.read and self.between:
            between, self.between = self.between, None
            between()
        return answer

    def config(self, gateway: str) -> Any:
        return self._then("config", super().config(gateway))

    def flush_state(self, gateway: str) -> Any:
        return self._then("flush_state", super().flush_state(gateway))

    def all_heads(self, gateway: str) -> Any:
        return self._then("all_heads", super().all_heads(gateway))


@pytest.mark.law("B12")
@pytest.mark.parametrize("read", READS)
def test_gateway_is_writable_after_a_schema_is_saved_while_a_new_epoch_begins(
    read: str,
) -> None:
    buffer, time = Interrupted(read), GivenTime(WALL_MS)
    pusher(buffer, time_=time).push("g", push(insert(at=at_ms(1), n=1)))
    admin = administrator(buffer, time_=time)
    schema = {"table": "todos", "columns": [{"name": "n", "type": "number"}]}
    buffer.between = lambda: admin.register_schema("g", schema)

    epoch = begin_epoch(buffer, "g", wall_clock=lambda: WALL_MS + 1_000)

    main = buffer.all_heads("g")[MAIN_LANE]
    assert (main.epoch, main.config_version) == (epoch, buffer.config("g").version)
    assert admin.schemas("g").tables
    time.now_ms += 600_000
    receipt = pusher(buffer, time_=time).push("g", push(insert(at=at_ms(600_000), n=2)))
    assert receipt.accepted == 1
