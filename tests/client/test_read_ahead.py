"""lakesync.client.download.read_ahead: the same pages, sooner."""

from __future__ import annotations

import threading

import pytest

from lakesync.client.download import read_ahead
from lakesync.client.download.read_ahead import ReadAhead, following
from lakesync.core.messages import Pull, PullPage
from lakesync.errors import CursorExpired, Unreachable

LAST = 5


class Gateway:
    """Answers with pages whose cursors count up, and remembers what was asked."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.fails_at = 0
        self.answered = threading.Event()

    def __call__(self, pull: Pull) -> PullPage:
        self.asked.append(pull.since)
        self.answered.set()
        if self.fails_at and pull.since == self.fails_at:
            raise CursorExpired("void")
        return PullPage((), 0, pull.since + 1, has_more=pull.since + 1 < LAST, scope="*")


@pytest.fixture
def gateway() -> Gateway:
    return Gateway()


def test_all_pages_come_each_once_and_in_order(gateway: Gateway) -> None:
    reader, pull, cursors = ReadAhead(gateway), Pull("c"), []
    while True:
        page = reader.pull(pull)
        cursors.append(page.cursor)
        if not page.has_more:
            break
        pull = following(pull, page)

    assert cursors == [1, 2, 3, 4, 5]
    assert gateway.asked == [0, 1, 2, 3, 4]


def test_the_next_page_is_asked_for_before_its_reader_does(gateway: Gateway) -> None:
    reader = ReadAhead(gateway)
    reader.pull(Pull("c"))
    gateway.answered.clear()
    reader.wait()

    assert gateway.asked == [0, 1]


def test_who_asks_for_something_else_is_given_that(gateway: Gateway) -> None:
    reader = ReadAhead(gateway)
    reader.pull(Pull("c"))

    assert reader.pull(Pull("c", since=3, scope="other")).cursor == 4


def test_a_refusal_comes_when_the_page_is_asked_for(gateway: Gateway) -> None:
    gateway.fails_at = 1
    reader = ReadAhead(gateway)
    page = reader.pull(Pull("c"))

    with pytest.raises(CursorExpired):
        reader.pull(following(Pull("c"), page))
    gateway.fails_at = 0
    assert reader.pull(following(Pull("c"), page)).cursor == 2


def test_an_answer_that_waited_long_is_asked_for_again(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("lakesync.client.download.read_ahead.time.monotonic", lambda: now[0])
    reader = ReadAhead(gateway)
    page = reader.pull(Pull("c"))
    reader._ahead.join()  # type: ignore[union-attr]
    now[0] = read_ahead.AGE_S_MAX + 1

    assert reader.pull(following(Pull("c"), page)).cursor == 2
    assert gateway.asked[:3] == [0, 1, 1]


def test_a_fault_of_the_network_is_one_of_the_page_that_was_asked_for() -> None:
    def down(pull: Pull) -> PullPage:
        if pull.since:
            raise Unreachable("no network")
        return PullPage((), 0, 1, has_more=True)

    reader = ReadAhead(down)
    page = reader.pull(Pull("c"))
    with pytest.raises(Unreachable):
        reader.pull(following(Pull("c"), page))


def test_what_no_fetch_should_raise_is_raised_where_the_page_is_asked_for() -> None:
    def fetch(pull: Pull) -> PullPage:
        if pull.since:
            raise KeyError("a bug")
        return PullPage((), 0, 7, has_more=True)

    ahead = ReadAhead(fetch)
    first = ahead.pull(Pull("a"))

    with pytest.raises(KeyError, match="a bug"):
        ahead.pull(following(Pull("a"), first))
