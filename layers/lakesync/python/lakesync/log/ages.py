"""Ages of what a process remembers, by both of its clocks: never understated."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.ports import WallClock

Moment: TypeAlias = tuple[int, int]
"""The milliseconds that the wall clock and the monotonic one showed."""


class Ages:
    """Tells ages by two clocks.

    By either alone things could be remembered for longer: one steps back, the other may stand still
    while the process is frozen.

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
        """Give the present, to ask for the age of what happens now."""
        return self._wall_clock(), self._monotonic_ms()

    def is_within(self, ms: int, then: Moment) -> bool:
        """Tell whether something is younger than ``ms``; it is not if a clock went back."""
        return all(0 <= now - before < ms for now, before in zip(self.now(), then, strict=True))

    def ms_since(self, then: Moment) -> int:
        """Give how old something is, by the clock that shows more."""
        return max(now - before for now, before in zip(self.now(), then, strict=True))
