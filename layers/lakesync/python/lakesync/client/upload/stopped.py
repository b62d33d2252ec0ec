"""When edits that were stopped on their way to the gateway are pushed again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

STOPPED_MS_MIN: Final = 15_000
"""How long an edit waits that something on the way stops, while others go on; doubled each time."""
STOPPED_MS_MAX: Final = 300_000
"""The longest such wait, unless the app syncs after `SyncLoop.wake`."""


class Stopped:
    """Spaces the tries, each of which costs requests: not kept over restarts.

    Args:
        now_ms: the device's clock.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._wait_ms = 0
        self._since_ms = 0

    def is_due(self) -> bool:
        """Return whether it is time to try again; also when the clock was set back."""
        return not 0 <= self._now_ms() - self._since_ms < self._wait_ms

    def tried(self, number: int) -> None:
        """Note that all of them were tried, and how many were stopped again."""
        doubled_ms = min(max(STOPPED_MS_MIN, 2 * self._wait_ms), STOPPED_MS_MAX)
        self._wait_ms = doubled_ms if number else 0
        self._since_ms = self._now_ms()

    def hurry(self) -> None:
        """Let them be tried at once: the network may be another one."""
        self._wait_ms = 0
