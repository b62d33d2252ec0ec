"""Ages of what a process remembers, measured by both of its clocks: never understated."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.ports import WallClock

Moment: TypeAlias = tuple[int, int]
"""The milliseconds of the wall clock and of the monotonic clock."""


class Ages:
    """Determines ages by two clocks.

    One clock alone could understate an age: the wall clock may be set back, and the monotonic clock
    may stop while the process is frozen.

    Args:
        wall_clock: the time.
        monotonic_ms: a clock that never steps; the wall clock if left out.
    """

    def __init__(
        self, wall_clock: WallClock, monotonic_ms: Callable[[], int] | None = None
    ) -> None:
        self._wall_clock = wall_clock
        self._monotonic_ms = monotonic_ms or wall_clock

    def now(self) -> Moment:
        """Return the present, from which the age of what happens now is measured."""
        return self._wall_clock(), self._monotonic_ms()

    def is_within(self, ms: int, then: Moment) -> bool:
        """Return whether something is younger than ``ms``; False if a clock went back."""
        return all(0 <= now - before < ms for now, before in zip(self.now(), then, strict=True))

    def ms_since(self, then: Moment) -> int:
        """Return how old something is, by the clock that shows the greater age."""
        return max(now - before for now, before in zip(self.now(), then, strict=True))
