"""A commit that is just happening may show its head first: nothing is lost, doubled or missed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lakesync.core.clock import STAMP_MAX
from lakesync.core.messages import Pull
from lakesync.errors import Contention, LakeSyncError, Unavailable
from lakesync.wire.records import decode_row_state
from tests.support.builders import WALL_MS, at_ms, insert, push, update
from tests.support.gateways import GivenTime, administrator, deltas_of, pulled, puller, pusher
from tests.support.lagging import LaggingBuffer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lakesync.core.clock import Stamp
    from lakesync.ports import Head

GATEWAY = "g"
EVENTS = {"table": "events", "append": True, "columns": [{"name": "n", "type": "integer"}]}


@pytest.fixture
def buffer() -> LaggingBuffer:
    return LaggingBuffer()


@pytest.fixture
def _all_in_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """No entry is so small that it stays in its lane's head, where it shows with it."""
    monkeypatch.setattr("lakesync.log.push_parts.RECENT_BYTES_MAX", 0)


@pytest.mark.law("B3")
@pytest.mark.parametrize("lag", [1, 2, 3, 5])
def test_row_state_read_too_early_is_not_written_back(buffer: LaggingBuffer, lag: int) -> None:
    time = GivenTime(WALL_MS + 1_000)
    theirs = insert(at=at_ms(5), client="other", a=1, b=1)
    mine = update(at=at_ms(6), b=2)
    pusher(buffer, time_=time).push(GATEWAY, push(theirs, client="other"))
    buffer.lag = lag

    assert pusher(buffer, time_=time).push(GATEWAY, push(mine)).accepted == 1
    buffer.lag = 0

    state = decode_row_state(buffer.rows(GATEWAY, [("todos", "r1")])["todos", "r1"].state)
    assert {name: register[2] for name, register in state.columns.items()} == {
        "a": b"1",
        "b": b"2",
    }
    assert pulled(buffer, GATEWAY) == [theirs, mine]


@pytest.mark.law("B3")
@pytest.mark.parametrize("lag", [1, 2, 3])
def test_warm_process_that_reads_too_early_loses_no_columns(
    buffer: LaggingBuffer, lag: int
) -> None:
    time = GivenTime(WALL_MS + 1_000)
    warm, other = pusher(buffer, time_=time), pusher(buffer, seed=1, time_=time)
    warm.push(GATEWAY, push(insert(at=at_ms(1), a=0)))
    other.push(GATEWAY, push(update(at=at_ms(2), client="o", b=1), client="o"))
    buffer.lag = lag

    warm.push(GATEWAY, push(update(at=at_ms(3), c=2)))
    buffer.lag = 0

    state = decode_row_state(buffer.rows(GATEWAY, [("todos", "r1")])["todos", "r1"].state)
    assert sorted(state.columns) == ["a", "b", "c"]


@pytest.mark.law("A1")
@pytest.mark.parametrize("lag", [1, 2, 3])
def test_append_mark_read_too_early_duplicates_no_event(buffer: LaggingBuffer, lag: int) -> None:
    time = GivenTime(WALL_MS + 1_000)
    administrator(buffer, time_=time).register_schema(GATEWAY, EVENTS)
    event = insert(at=at_ms(1), table="events", n=1)
    pusher(buffer, time_=time).push(GATEWAY, push(event))
    buffer.lag = lag

    receipt = pusher(buffer, seed=1, time_=time).push(GATEWAY, push(event))

    assert receipt.accepted == 1
    assert pulled(buffer, GATEWAY) == [event]


@pytest.mark.law("A1", "A4")
@pytest.mark.parametrize("lag", [1, 2, 3, 4, 5, 6])
def test_append_mark_read_too_early_after_a_move_duplicates_no_event(
    buffer: LaggingBuffer, lag: int
) -> None:
    """The new shard's mark is nobody's yet: no condition proves what was read of the old one's."""
    time = GivenTime(WALL_MS + 1_000)
    service = administrator(buffer, time_=time)
    service.register_schema(GATEWAY, EVENTS)
    event = insert(at=at_ms(1), table="events", n=1)
    pusher(buffer, time_=time).push(GATEWAY, push(event))
    service.place_table(GATEWAY, "events", "hot")
    buffer.lag = lag

    receipt = pusher(buffer, seed=1, time_=time).push(GATEWAY, push(event))

    assert receipt.accepted == 1
    assert pulled(buffer, GATEWAY) == [event]


@pytest.mark.law("B8")
@pytest.mark.usefixtures("_all_in_the_log")
def test_page_waits_for_an_entry_whose_head_is_visible(buffer: LaggingBuffer) -> None:
    time = GivenTime(WALL_MS + 1_000)
    deltas = [insert(f"r{number}", at=at_ms(number), n=1) for number in range(3)]
    service = pusher(buffer, time_=time)
    for delta in deltas:
        service.push(GATEWAY, push(delta))
    buffer.lag = 3

    page = puller(buffer).pull(GATEWAY, Pull("r"))

    assert deltas_of(page) == deltas
    assert not page.has_more


@pytest.mark.law("B8")
@pytest.mark.usefixtures("_all_in_the_log")
def test_entry_that_stays_invisible_fails_the_pull_and_is_not_skipped(
    buffer: LaggingBuffer,
) -> None:
    service = pusher(buffer, time_=GivenTime(WALL_MS + 1_000))
    first, second = (insert(f"r{number}", at=at_ms(number), n=1) for number in range(2))
    service.push(GATEWAY, push(first))
    reader = puller(buffer)
    cursor = reader.pull(GATEWAY, Pull("r")).cursor
    service.push(GATEWAY, push(second))
    buffer.lag = 1_000

    with pytest.raises(Contention):
        reader.pull(GATEWAY, Pull("r", since=cursor))

    buffer.lag = 0
    assert deltas_of(reader.pull(GATEWAY, Pull("r", since=cursor))) == [second]


@pytest.mark.law("B8")
@pytest.mark.usefixtures("_all_in_the_log")
def test_invisible_entry_in_the_middle_of_the_log_is_detected(buffer: LaggingBuffer) -> None:
    service = pusher(buffer, time_=GivenTime(WALL_MS + 1_000))
    deltas = [insert(f"r{number}", at=at_ms(number), n=1) for number in range(3)]
    service.push(GATEWAY, push(deltas[0]))
    service.push(GATEWAY, push(deltas[1]))
    hidden = buffer.hidden
    service.push(GATEWAY, push(deltas[2]))
    buffer.hidden, buffer.lag = hidden, 2

    assert deltas_of(puller(buffer).pull(GATEWAY, Pull("r"))) == deltas


@pytest.mark.law("B8")
@pytest.mark.usefixtures("_all_in_the_log")
def test_every_lane_is_complete_below_the_end_of_a_page(buffer: LaggingBuffer) -> None:
    time = GivenTime(WALL_MS + 1_000)
    administrator(buffer, time_=time).place_table(GATEWAY, "notes", "side")
    service = pusher(buffer, time_=time)
    reader = puller(buffer)
    deltas = [
        insert("a", at=at_ms(1), table="todos", n=1),
        insert("b", at=at_ms(2), table="notes", n=1),
        insert("c", at=at_ms(3), table="todos", n=1),
    ]
    for count, delta in enumerate(deltas, 1):
        time.now_ms += 5
        service.push(GATEWAY, push(delta))
        buffer.lag = 4
        page = reader.pull(GATEWAY, Pull("r", at_least=STAMP_MAX))
        assert deltas_of(page) == deltas[:count]


def test_unavailable_store_fails_push_and_pull_with_an_error() -> None:
    class Away(LaggingBuffer):
        is_away = False

        def heads(
            self, gateway: str, since: Stamp = 0, *, at_once: bool = False
        ) -> dict[str, Head]:
            if self.is_away:
                raise Unavailable("throttled")
            return super().heads(gateway, since, at_once=at_once)

        def lane_heads(self, gateway: str, lanes: Sequence[str]) -> dict[str, Head]:
            if self.is_away:
                raise Unavailable("throttled")
            return super().lane_heads(gateway, lanes)

    time, buffer = GivenTime(WALL_MS), Away()
    pusher(buffer, time_=time).push(GATEWAY, push(insert(at=at_ms(1), n=1)))
    buffer.is_away = True
    for table in ("todos", "new"):
        began_ms = time.now_ms
        again = push(insert(at=at_ms(2), n=1, table=table))
        with pytest.raises(LakeSyncError) as result:
            pusher(buffer, time_=time).push(GATEWAY, again)

        assert result.value.status == 503
        assert time.now_ms - began_ms >= (8_000 if table == "todos" else 1)
    with pytest.raises(LakeSyncError):
        puller(buffer).pull(GATEWAY, Pull("r"))
