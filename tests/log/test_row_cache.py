"""What a warm process remembers is bounded, also while one push is answered."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lakesync.buffer.memory_buffer import MemoryBuffer
from lakesync.log import row_cache
from lakesync.wire.records import encode_row_state
from tests.support.builders import WALL_MS, at_ms, delete, insert, push, update
from tests.support.gateways import GivenTime, pusher

if TYPE_CHECKING:
    from lakesync.gateway.push import PushService
    from lakesync.ports import Commit

GATEWAY = "g"
ROW_BYTES = 4_000
BYTES_MAX = 40 * ROW_BYTES


class Watched(MemoryBuffer):
    """Tells at each commit how much its pusher remembers."""

    service: PushService | None = None

    def __init__(self) -> None:
        super().__init__()
        self.most = 0

    def commit(self, commit: Commit) -> None:
        """Commit, and look."""
        if self.service is not None:
            rows = self.service._committer._row_cache._gateways[GATEWAY].rows.values()
            states = [state for state, _ in rows]
            self.most = max(self.most, sum(len(encode_row_state(state)) for state in states))
        super().commit(commit)


@pytest.fixture
def buffer(monkeypatch: pytest.MonkeyPatch) -> Watched:
    """Return a buffer with 400 rows of `ROW_BYTES`, and memory for 40 of them."""
    buffer = Watched()
    service = pusher(buffer, time_=GivenTime(WALL_MS))
    rows = [insert(f"r{number}", at=at_ms(1), text="x" * ROW_BYTES) for number in range(400)]
    assert service.push(GATEWAY, push(*rows)).accepted == 400
    monkeypatch.setattr(row_cache, "BYTES_REMEMBERED_MAX", BYTES_MAX)
    monkeypatch.setattr(row_cache, "READ_BYTES_MAX", BYTES_MAX // 3)
    return buffer


@pytest.mark.law("B9")
def test_push_to_many_large_rows_stays_within_the_row_cache_limit(buffer: Watched) -> None:
    buffer.service = pusher(buffer, time_=GivenTime(WALL_MS))
    edits = [update(f"r{number}", at=at_ms(2), n=number) for number in range(400)]

    receipt = buffer.service.push(GATEWAY, push(*edits))

    assert (receipt.accepted, receipt.outcomes) == (400, ())
    assert 0 < buffer.most <= BYTES_MAX
    again = pusher(buffer, time_=GivenTime(WALL_MS)).push(GATEWAY, push(*edits))
    assert (again.accepted, len(again.outcomes)) == (400, 400)


@pytest.mark.law("B9")
def test_atomic_push_reads_all_its_rows_and_the_next_push_evicts_them(buffer: Watched) -> None:
    buffer.service = service = pusher(buffer, time_=GivenTime(WALL_MS))
    gone = [delete(f"r{number}", at=at_ms(2)) for number in range(90)]

    assert service.push(GATEWAY, push(*gone, atomic=True)).accepted == 90
    assert service.push(GATEWAY, push(update("r99", at=at_ms(2), n=1))).accepted == 1
    buffer.most = 0
    assert service.push(GATEWAY, push(update("r98", at=at_ms(2), n=1))).accepted == 1
    assert buffer.most <= BYTES_MAX
