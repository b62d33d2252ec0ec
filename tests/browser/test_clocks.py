"""Clocks that are wrong or jump, timers that hardly run: the page goes on, and loses nothing."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests.support.waiting import waited

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import BrowserContext

    from tests.support.chromium import App, Site

pytestmark = pytest.mark.browser

MINUTE_MS = 60_000
DAY_MS = 86_400_000


@pytest.mark.law("K4", "K10")
@pytest.mark.parametrize("wrong_ms", [MINUTE_MS, -DAY_MS])
def test_last_write_wins_although_the_page_has_a_wrong_clock(
    device: Callable[[], BrowserContext], tab: Callable[..., App], wrong_ms: int
) -> None:
    wrong = device()
    wrong.clock.install(time=time.time() + wrong_ms / 1000)
    page, other = tab(wrong).opened("page"), tab().opened("other")
    for app in (page, other):  # each learns the time from its first receipt
        app.value("insert", "todos", "r0", {"by": "either"})
        app.value("sync")

    page.value("insert", "todos", "r1", {"by": "page"})
    page.value("sync")
    other.value("sync")
    other.value("update", "todos", "r1", {"by": "other"})
    other.value("sync")
    page.value("sync")
    assert page.rows()["r1"] == other.rows()["r1"] == {"by": "other"}

    page.value("update", "todos", "r1", {"by": "page"})
    page.value("sync")
    other.value("sync")
    assert page.rows()["r1"] == other.rows()["r1"] == {"by": "page"}
    assert page.status["quarantined"] == page.status["waiting"] == 0


@pytest.mark.law("K10")
def test_edits_of_a_page_whose_clock_was_wrong_before_it_was_ever_online_arrive(
    device: Callable[[], BrowserContext], tab: Callable[..., App]
) -> None:
    ahead, behind = device(), device()
    ahead.clock.install(time=time.time() + MINUTE_MS / 1000)
    behind.clock.install(time=time.time() - DAY_MS / 1000)
    pages = tab(ahead).opened("ahead"), tab(behind).opened("behind")
    for page, row in zip(pages, ("r1", "r2"), strict=True):
        page.value("insert", "todos", row, {"n": 1})
        page.value("update", "todos", row, {"n": 2})

    for page in (*pages, *pages):
        page.value("sync")

    assert pages[0].rows() == pages[1].rows() == {"r1": {"n": 2}, "r2": {"n": 2}}
    for page in pages:
        assert page.status["quarantined"] == page.status["waiting"] == 0


def test_page_that_slept_for_a_week_syncs_soon_after_it_wakes(
    device: Callable[[], BrowserContext], tab: Callable[..., App], site: Site
) -> None:
    laptop = device()
    laptop.clock.install()
    page, other = tab(laptop).opened("page"), tab().opened("other")
    page.ask("connect")
    assert waited(lambda: page.status["hasSynced"])
    laptop.set_offline(True)
    page.value("insert", "todos", "r1", {"n": 1})
    page.page.wait_for_timeout(300)

    site.gateway.ahead_ms = 7 * DAY_MS
    site.token = lambda client: site.gateway.token(client, exp=int(time.time()) + 700_000)  # type: ignore[method-assign]
    other.value("insert", "todos", "r2", {"n": 2})
    other.value("sync")
    laptop.clock.fast_forward(7 * DAY_MS)
    laptop.set_offline(False)

    assert waited(lambda: page.rows() == {"r1": {"n": 1}, "r2": {"n": 2}}, 10)
    assert waited(lambda: page.status["waiting"] == 0, 10)
    other.value("sync")
    assert other.rows() == page.rows()


def test_page_in_the_background_whose_timers_were_stopped_goes_on_when_it_is_shown(
    device: Callable[[], BrowserContext], tab: Callable[..., App]
) -> None:
    context = device()
    page, other = tab(context).opened("page"), tab().opened("other")
    page.ask("connect")
    assert waited(lambda: page.status["hasSynced"])
    page.value("insert", "todos", "r1", {"n": 1})
    devtools = context.new_cdp_session(page.page)
    devtools.send("Page.setWebLifecycleState", {"state": "frozen"})
    other.value("insert", "todos", "r2", {"n": 2})
    other.value("sync")
    time.sleep(1)

    devtools.send("Page.setWebLifecycleState", {"state": "active"})

    assert waited(lambda: page.rows() == {"r1": {"n": 1}, "r2": {"n": 2}}, 20)
    assert waited(lambda: page.status["waiting"] == 0, 10)
    other.value("sync")
    assert other.rows() == page.rows()


SLOW_TIMERS = """
const real = globalThis.setTimeout;
globalThis.setTimeout = (body, ms = 0, ...given) => real(body, Math.max(ms, 1000), ...given);
"""


def test_page_whose_timers_run_once_a_second_at_most_loses_nothing(
    device: Callable[[], BrowserContext], tab: Callable[..., App]
) -> None:
    context = device()
    context.add_init_script(SLOW_TIMERS)
    page, other = tab(context).opened("page"), tab().opened("other")
    page.ask("connect")
    for number in range(20):
        page.value("insert", "todos", f"r{number}", {"n": number})

    assert waited(lambda: page.status["waiting"] == 0, 20)
    other.value("sync")
    assert other.rows() == page.rows()
    assert len(other.rows()) == 20
