"""A gateway that is restored, or whose log is trimmed: a page reads it again, and is reloaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.local_gateway import GATEWAY, LocalGateway
from tests.support.operators import backed_up, trim

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.chromium import App, Site

pytestmark = pytest.mark.browser

ROWS = 40
PAGE = 5
"""Deltas of a page of the log: reading everything takes several."""


def reloaded(app: App, **options: Any) -> App:
    app.page.reload()
    app.page.wait_for_function("globalThis.app?.isReady")
    return app.opened("page", **options)


def stop_after(app: App, pages: int) -> None:
    """Let the network of a page fail once so many pages were pulled."""
    pulled = 0

    def hear(route: Any) -> None:
        nonlocal pulled
        pulled += 1
        if pulled > pages:
            route.abort()
        else:
            route.continue_()

    app.page.route(f"**/sync/{GATEWAY}/pull", hear)


def filled(other: App) -> dict[str, Any]:
    """Write rows on another device; returns them."""
    rows = {f"r{number:02}": {"n": number} for number in range(ROWS)}
    other.value("transaction", [["insert", "todos", row, each] for row, each in rows.items()])
    other.value("sync")
    return rows


@pytest.mark.law("K12", "K13")
@pytest.mark.parametrize("pages", [0, 2])
def test_edits_that_a_restore_lost_come_back_although_the_page_is_reloaded_meanwhile(
    tab: Callable[..., App], gateway: LocalGateway, pages: int
) -> None:
    page, other = tab().opened("page", pageDeltas=PAGE), tab().opened("other")
    rows = filled(other)
    page.value("sync")
    restore = backed_up(gateway)
    page.value("update", "todos", "r01", {"n": "lost, and pushed again"})
    page.value("insert", "todos", "new", {"n": "the same"})
    page.value("sync")
    other.value("update", "todos", "r02", {"n": "lost for good"})
    other.value("sync")
    other.ask("close")
    page.value("insert", "todos", "waiting", {"n": "not pushed yet"})
    restore()

    stop_after(page, pages)
    page.ask("sync")
    page.page.unroute_all()
    reloaded(page, pageDeltas=PAGE).value("sync")

    expected = rows | {
        "r01": {"n": "lost, and pushed again"},
        "new": {"n": "the same"},
        "waiting": {"n": "not pushed yet"},
    }
    assert page.rows() == expected
    assert page.status["waiting"] == page.status["quarantined"] == 0
    third = tab().opened("third")
    third.value("sync")
    assert third.rows() == expected


@pytest.mark.law("K14", "K16")
@pytest.mark.parametrize("pages", [0, 2])
def test_page_behind_a_trimmed_log_reads_a_snapshot_and_goes_on_after_a_reload(
    tab: Callable[..., App], gateway: LocalGateway, site: Site, pages: int
) -> None:
    page, other = tab().opened("page", pageDeltas=PAGE), tab().opened("other")
    rows = filled(other)
    page.value("sync")
    page.value("update", "todos", "r01", {"mine": True})
    other.value("update", "todos", "r02", {"n": "changed"})
    other.value("delete", "todos", "r03")
    other.value("sync")
    trim(gateway, "todos")

    stop_after(page, pages)
    page.ask("sync", "pull")
    page.page.unroute_all()
    reloaded(page, pageDeltas=PAGE).value("sync")

    del rows["r03"]
    rows["r01"] |= {"mine": True}
    rows["r02"] = {"n": "changed"}
    assert page.rows() == rows
    assert page.status["waiting"] == 0
    other.value("sync")
    assert other.rows() == rows
