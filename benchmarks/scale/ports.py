"""What the model needs of its surroundings: time."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class Clock(Protocol):
    """Time, given or simulated."""

    def now_ms(self) -> float:
        """Return the time in milliseconds."""
        ...

    def sleep_ms(self, milliseconds: float) -> None:
        """Let the caller wait."""
        ...

    def later(self, milliseconds: float, act: Callable[[], object]) -> None:
        """Do something after a while, whatever becomes of the caller."""
        ...


class OneCaller:
    """`Clock` of a single caller, whose sleeping alone lets time pass."""

    def __init__(self) -> None:
        self._now_ms = 0.0
        self._number = 0
        self._queue: list[tuple[float, int, Callable[[], object]]] = []

    def now_ms(self) -> float:
        """Return the time in milliseconds."""
        return self._now_ms

    def sleep_ms(self, milliseconds: float) -> None:
        """Let time pass, and what is due happen."""
        until_ms = self._now_ms + milliseconds
        while self._queue and self._queue[0][0] <= until_ms:
            self._now_ms, _, act = heapq.heappop(self._queue)
            act()
        self._now_ms = until_ms

    def later(self, milliseconds: float, act: Callable[[], object]) -> None:
        """Do something once that much time has passed."""
        self._number += 1
        heapq.heappush(self._queue, (self._now_ms + milliseconds, self._number, act))
