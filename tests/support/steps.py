"""Several programs over one buffer in memory, step by step: each call of the port is a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import greenlet

from lakesync.buffer.memory_buffer import MemoryBuffer
from lakesync.core.layout import MAIN_LANE
from lakesync.errors import Unavailable
from tests.support.builders import WALL_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from lakesync.core.clock import Stamp
    from lakesync.ports import Commit, Head

_STEPS_MAX = 20_000
_LOST = 13
"""Of so many choices one loses the answer of a commit."""


class Steps:
    """Lets programs take turns; numbers choose whose turn it is, and how much time passes."""

    def __init__(self, choices: Sequence[int]) -> None:
        self.now_ms = float(WALL_MS)
        self._choices = choices
        self._steps = 0
        self._hub = greenlet.getcurrent()
        self.chosen = 0
        """The number that chose the present step."""

    def wall_clock(self, ahead_ms: int = 0) -> Callable[[], int]:
        return lambda: int(self.now_ms) + ahead_ms

    def sleep_ms(self, milliseconds: float) -> None:
        """Let time pass, and others go on."""
        self.now_ms += milliseconds
        self.step()

    def step(self) -> None:
        if greenlet.getcurrent() is not self._hub:
            self._hub.switch()

    def run(self, programs: Sequence[Callable[[], object]], check: Callable[[], object]) -> None:
        running = [greenlet.greenlet(program) for program in programs]
        numbers = self._numbers()
        while running:
            self._steps += 1
            assert self._steps < _STEPS_MAX, "something goes round and round"
            self.chosen = next(numbers)
            task = running[self.chosen % len(running)]
            self.now_ms += (self.chosen // 16) ** 2
            task.switch()
            check()
            running = [task for task in running if not task.dead]

    def _numbers(self) -> Iterator[int]:
        yield from self._choices
        number = 0
        while True:  # one after the other
            number += 1
            yield number % 16


class SteppedBuffer(MemoryBuffer):
    """The buffer in memory; before each call others may go on. It keeps all commits in order."""

    def __init__(self, steps: Steps) -> None:
        super().__init__()
        self.commits: list[Commit] = []
        self._steps = steps

    def commit(self, commit: Commit) -> None:
        self._steps.step()
        is_new = commit.token not in self._gateways[commit.gateway].tokens
        super().commit(commit)
        if is_new:
            self.commits.append(commit)
            if self._steps.chosen % _LOST == _LOST - 1:
                raise Unavailable("the answer was lost")

    def heads(self, gateway: str, since: Stamp = 0, *, at_once: bool = False) -> dict[str, Head]:
        """Return heads; those that may be read beside the list, a step before it."""
        self._steps.step()
        before = self.all_heads(gateway)
        if at_once:
            self._steps.step()
        heads = super().heads(gateway, since)
        return with_earlier(heads, before, since) if at_once else heads

    def pause(self, tries: int) -> None:
        del tries
        self._steps.step()


def with_earlier(
    heads: dict[str, Head], before: Mapping[str, Head], since: Stamp
) -> dict[str, Head]:
    """Get heads as who reads them beside the list meets them: those of open lanes from before."""
    if not heads or since < heads[MAIN_LANE].lanes.quiet:
        return heads
    others = {lane: before[lane] for lane in heads if lane in before and lane != MAIN_LANE}
    return {MAIN_LANE: heads[MAIN_LANE], **others}


def _stepped(name: str) -> Callable[..., Any]:
    def call(self: SteppedBuffer, *args: Any, **kwargs: Any) -> Any:
        self._steps.step()
        return getattr(MemoryBuffer, name)(self, *args, **kwargs)

    return call


for _name in (
    "change_lanes", "close_lane", "config", "entries", "epoch", "lane_heads", "log_items", "marks",
    "raise_head", "rows_within", "save_config",
):  # fmt: skip
    setattr(SteppedBuffer, _name, _stepped(_name))
