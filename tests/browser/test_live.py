"""Pages that hear of each other at once, by a socket; that are offline, and equal soon after."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.waiting import waited

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import BrowserContext

    from tests.support.chromium import App, Site

pytestmark = pytest.mark.browser

SHOWN_S_MAX = 1.0
EQUAL_S_MAX = 5.0
EDITS = 5


@pytest.fixture
def live(
    device: Callable[[], BrowserContext], tab: Callable[..., App], site: Site
) -> Callable[[str, BrowserContext | None], App]:
    """Return a tab at each call whose client is connected, by a socket."""

    def opened(client: str, context: BrowserContext | None = None) -> App:
        app = tab(context or device()).opened(client, socketUrl=site.gateway.socket_url)
        app.ask("connect")
        assert waited(lambda: app.status["isLive"])
        return app

    return opened


@pytest.mark.law("K6")
def test_edit_is_on_another_screen_within_a_second(live: Callable[..., App]) -> None:
    writer, reader = live("writer"), live("reader")
    reader.page.evaluate("app.show({ table: 'todos' }, 'title')")
    spent_s: list[float] = []
    for number in range(EDITS):
        title = f"Buy milk {number}"
        begun_s = time.monotonic()
        writer.value("insert", "todos", "r1", {"title": title})
        reader.page.wait_for_function(
            "(title) => document.querySelector('li')?.textContent === title", arg=title
        )
        spent_s.append(time.monotonic() - begun_s)

    assert statistics.median(spent_s) < SHOWN_S_MAX, spent_s


@pytest.mark.law("K2", "K6")
def test_devices_that_were_both_offline_are_equal_within_seconds(
    device: Callable[[], BrowserContext], live: Callable[..., App]
) -> None:
    contexts = device(), device()
    laptop, phone = live("laptop", contexts[0]), live("phone", contexts[1])
    laptop.value("insert", "todos", "r1", {"title": "Buy milk", "n": 0})
    assert waited(lambda: phone.rows() == {"r1": {"title": "Buy milk", "n": 0}})
    for context in contexts:
        context.set_offline(True)
    laptop.value("update", "todos", "r1", {"title": "by the laptop"})
    phone.value("update", "todos", "r1", {"n": 1})
    for number in range(10):
        laptop.value("insert", "todos", f"l{number}", {"n": number})
        phone.value("insert", "todos", f"p{number}", {"n": number})

    for context in contexts:
        context.set_offline(False)

    def are_equal() -> bool:
        rows: dict[str, Any] = laptop.rows()
        return len(rows) == 21 and rows == phone.rows()

    assert waited(are_equal, EQUAL_S_MAX)
    assert laptop.rows()["r1"] == {"title": "by the laptop", "n": 1}
    assert waited(lambda: laptop.status["waiting"] == phone.status["waiting"] == 0)
