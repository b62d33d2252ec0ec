"""What a scenario counts: answers with their latencies, within the time that is measured."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lakesync.errors import LakeSyncError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.scale.world import World


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that a share of all values does not exceed; 0 if there are none."""
    if not values:
        return 0.0
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]


@dataclass
class Answers:
    """Answers to requests of one kind, that came after a moment."""

    world: World
    from_ms: float = 0
    latencies_ms: list[float] = field(default_factory=list)
    by_caller: Counter[int] = field(default_factory=Counter)
    """Successes by who asked."""
    errors: Counter[str] = field(default_factory=Counter)
    """Refusals by their codes."""
    _waiting: dict[int, float] = field(default_factory=dict)
    """Since when who waits, by number of the request."""
    _asked: int = 0

    def ask(
        self, caller: int, request: Callable[[], object], *, again_after_ms: float | None = None
    ) -> None:
        """Make a request and count its answer.

        Args:
            caller: who asks.
            request: what is asked.
            again_after_ms: how long to wait until a refused request is made again, which then
                counts as one with what it took in all; None to leave it at that.
        """
        self._asked += 1
        number, begun_ms = self._asked, self.world.now_ms()
        self._waiting[number] = begun_ms
        while True:
            try:
                request()
            except LakeSyncError as error:
                if self.world.now_ms() >= self.from_ms:
                    self.errors[error.code] += 1
                if again_after_ms is None:
                    break
                self.world.sleep_ms(again_after_ms)
            else:
                if self.world.now_ms() >= self.from_ms:
                    self.latencies_ms.append(self.world.now_ms() - begun_ms)
                    self.by_caller[caller] += 1
                break
        del self._waiting[number]

    @property
    def count(self) -> int:
        """Successes."""
        return len(self.latencies_ms)

    @property
    def waiting(self) -> int:
        """Requests that are not answered yet."""
        return len(self._waiting)

    @property
    def refused(self) -> int:
        """Refusals."""
        return sum(self.errors.values())

    def percentile_ms(self, share: float) -> float:
        """Return the latency that a share does not exceed; who still waits has waited so far."""
        now_ms = self.world.now_ms()
        waiting = [now_ms - since_ms for since_ms in self._waiting.values()]
        return percentile([*self.latencies_ms, *waiting], share)
