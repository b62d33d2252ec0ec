"""A gateway that a vendor's server is polled into, by processes that may die at any step."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from lakesync.buffer.memory_buffer import MemoryBuffer
from lakesync.connectors import Storage
from lakesync.connectors.poll import Poll, Polled, Route
from lakesync.connectors.state import DeadLetters, Deletions, state_from
from lakesync.core.delta import Op, parse
from tests.support.gateways import GivenTime, pulled, pusher
from tests.support.lake import Killed, Objects

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from lakesync.connectors import Connector
    from lakesync.connectors.state import PollState
    from lakesync.core.messages import Push, PushReceipt

GATEWAY = "g"
NOW_MS = 1_800_000_000_000


class Vendor(Protocol):
    storage: Storage

    def connector(self, **more: Any) -> Connector: ...


class World:
    """Polls a vendor. Each call of `poll` is another process."""

    def __init__(self, vendor: Vendor, tables: Mapping[str, str], **settings: Any) -> None:
        self.vendor = vendor
        self.tables = tables
        self.settings = settings
        self.buffer = MemoryBuffer()
        self.time = GivenTime(NOW_MS)
        self.objects = _Dying(self)
        vendor.storage = Storage(self.objects, GATEWAY, "c")
        self.saved = b""
        self.steps_left = 1_000_000
        self.poll_ms = 1
        self._push = pusher(self.buffer, time_=self.time).push

    @property
    def state(self) -> PollState:
        return state_from(self.saved)

    def step(self) -> None:
        """Die here, if it is time."""
        self.steps_left -= 1
        if self.steps_left <= 0:
            raise Killed

    def push(self, push: Push) -> PushReceipt:
        """Push, and perhaps die before or after."""
        self.step()
        receipt = self._push(GATEWAY, push)
        self.step()
        return receipt

    def save(self, state: PollState, *, ends: bool = False) -> None:  # noqa: ARG002
        """Save, and perhaps die before."""
        self.step()
        self.saved = state.to_json()

    def poll(self, has_time: Callable[[], bool] = lambda: True) -> Polled:
        letters = DeadLetters(Storage(self.objects, GATEWAY, "c"))
        connector = self.vendor.connector(**self.settings)
        poll = Poll(
            "c", Route(connector, self.tables, self.push), letters=letters, save=self.save,
            deletions=Deletions(Storage(self.objects, GATEWAY, "c")),
            wall_clock=self.time.wall_clock,
        )  # fmt: skip
        self.time.sleep_ms(self.poll_ms)
        try:
            return poll.run(self.state, has_time)
        finally:
            connector.close()

    def poll_and_die(self, steps: Iterable[int]) -> None:
        """Poll in one process after another, each of which dies after so many steps."""
        for each in steps:
            self.steps_left = each
            with suppress(Killed):
                self.poll()
        self.steps_left = 1_000_000

    def poll_to_the_end(self) -> int:
        """Poll until a poll is done, waiting as asked; returns the seconds that were waited."""
        waited_s = 0
        for _ in range(100):
            polled = self.poll()
            if polled.status == "done":
                return waited_s
            waited_s += polled.wait_s
            self.time.sleep_ms(1000 * polled.wait_s)
        raise AssertionError("the poll has no end")

    def rows(self, table: str) -> dict[str, dict[str, Any]]:
        rows: dict[str, dict[str, Any]] = {}
        for delta in pulled(self.buffer, GATEWAY):
            if delta.table != self.tables[table]:
                continue
            if delta.op is Op.DELETE:
                rows.pop(delta.row_id, None)
            else:
                rows.setdefault(delta.row_id, {}).update(
                    {name: parse(value) for name, value in delta.columns}
                )
        return rows

    def deltas(self) -> int:
        """Return how many deltas a client had."""
        return len(pulled(self.buffer, GATEWAY))


class _Dying(Objects):
    """Objects at whose writes a process may die."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def put_object(self, key: str, body: bytes, content_type: str) -> None:
        """Store an object, and perhaps die before or after."""
        self._world.step()
        super().put_object(key, body, content_type)
        self._world.step()
