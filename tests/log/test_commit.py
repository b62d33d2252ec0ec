"""A commit is visible within a minute of its stamp, or is given up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lakesync.buffer.memory_buffer import MemoryBuffer
from lakesync.core.clock import VISIBLE_MS_MAX, stamp_ms
from lakesync.errors import Unavailable
from lakesync.log.lanes import Limits
from tests.support.builders import WALL_MS, at_ms, insert, push
from tests.support.gateways import GivenTime, pusher

if TYPE_CHECKING:
    from lakesync.ports import Commit

GATEWAY = "g"


@pytest.mark.law("B4", "B11")
def test_commit_that_the_store_refuses_too_long_is_retried_with_a_new_stamp() -> None:
    time = GivenTime(WALL_MS)
    late: list[int] = []

    class Away(MemoryBuffer):
        def commit(self, commit: Commit) -> None:
            late.append(int(time.now_ms) - stamp_ms(commit.stamp))
            if time.now_ms < WALL_MS + 3 * VISIBLE_MS_MAX:
                time.now_ms += 5_000
                raise Unavailable("throttled")
            super().commit(commit)

    service = pusher(Away(), time_=time, limits=Limits(commit_deadline_ms=4 * VISIBLE_MS_MAX))

    assert service.push(GATEWAY, push(insert(at=at_ms(1), n=1))).accepted == 1
    assert max(late) <= VISIBLE_MS_MAX // 2
    assert sum(ms == 0 for ms in late) > 3
