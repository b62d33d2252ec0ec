"""lakesync.client.http_transport: the same pages, sooner."""

from __future__ import annotations

import threading

import pytest

from lakesync.client import http_transport
from lakesync.client.http_transport import ReadAhead, following
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


def test_read_ahead_returns_each_page_once_and_in_order(gateway: Gateway) -> None:
    reader, pull, cursors = ReadAhead(gateway), Pull("c"), []
    while True:
        page = reader.pull(pull)
        cursors.append(page.cursor)
        if not page.has_more:
            break
        pull = following(pull, page)

    assert cursors == [1, 2, 3, 4, 5]
    assert gateway.asked == [0, 1, 2, 3, 4]


def test_read_ahead_requests_the_next_page_before_it_is_pulled(gateway: Gateway) -> None:
    reader = ReadAhead(gateway)
    reader.pull(Pull("c"))
    gateway.answered.clear()
    reader.wait()

    assert gateway.asked == [0, 1]


def test_a_pull_other_than_the_one_read_ahead_gets_its_own_page(gateway: Gateway) -> None:
    reader = ReadAhead(gateway)
    reader.pull(Pull("c"))

    assert reader.pull(Pull("c", since=3, scope="other")).cursor == 4


def test_a_refusal_while_reading_ahead_is_raised_when_its_page_is_pulled(gateway: Gateway) -> None:
    gateway.fails_at = 1
    reader = ReadAhead(gateway)
    page = reader.pull(Pull("c"))

    with pytest.raises(CursorExpired):
        reader.pull(following(Pull("c"), page))
    gateway.fails_at = 0
    assert reader.pull(following(Pull("c"), page)).cursor == 2


def test_a_page_read_ahead_too_long_ago_is_requested_again(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("lakesync.client.http_transport.time.monotonic", lambda: now[0])
    reader = ReadAhead(gateway)
    page = reader.pull(Pull("c"))
    reader._ahead.join()  # type: ignore[union-attr]
    now[0] = http_transport.AGE_S_MAX + 1

    assert reader.pull(following(Pull("c"), page)).cursor == 2
    assert gateway.asked[:3] == [0, 1, 1]


@pytest.mark.parametrize("error", [Unreachable("no network"), KeyError("a bug")], ids=repr)
def test_what_fails_while_reading_ahead_is_raised_when_its_page_is_pulled(error: Exception) -> None:
    def fetch(pull: Pull) -> PullPage:
        if pull.since:
            raise error
        return PullPage((), 0, 7, has_more=True)

    ahead = ReadAhead(fetch)
    first = ahead.pull(Pull("a"))

    with pytest.raises(type(error), match=str(error)):
        ahead.pull(following(Pull("a"), first))
