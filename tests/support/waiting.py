"""Waiting for what another thread, process or deployed function does.

How long something takes says nothing on a machine that does much else beside the tests. So these
are bounds for what never comes: no test that passes waits so long, and none asserts a duration by
them. What a law says of time is asserted of given clocks, or of the moment at which a request
began.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE_S: Final = 120.0
"""For what a thread or a process of this machine does."""
DEPLOYED_S: Final = 900.0
"""For what functions, queues and runs of jobs on the local stack do."""


def waited(ready: Callable[[], object], seconds_max: float = PATIENCE_S) -> bool:
    """Wait until something is so; returns whether it came to be."""
    ends_s = time.monotonic() + seconds_max
    while not ready():
        if time.monotonic() > ends_s:
            return bool(ready())
        time.sleep(0.01)
    return True


def answered(
    read: Callable[[], Any], wanted: Callable[[Any], bool], *, every_s: float = 0.3
) -> Any:
    """Ask the deployed stack until its answer is as wanted; returns that answer."""
    ends_s = time.monotonic() + DEPLOYED_S
    while not wanted(answer := read()):
        assert time.monotonic() < ends_s, answer
        time.sleep(every_s)
    return answer


def drained(waiting: Callable[[], object]) -> None:
    """Wait until nothing waits any more on the deployed stack."""
    answered(waiting, lambda left: not left)
