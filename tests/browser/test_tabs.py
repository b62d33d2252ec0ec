"""Several tabs of one device: one owns the client, and may be closed or killed at any moment."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.core.delta import parse
from tests.support.gateways import pulled
from tests.support.local_gateway import GATEWAY, LocalGateway
from tests.support.waiting import waited

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import BrowserContext

    from lakesync.ports import Commit
    from tests.support.chromium import App

pytestmark = pytest.mark.browser

EDITS = 200
MANY = """([tab, count]) => {
  app.done = [];
  app.running = (async () => {
    for (let number = 0; number < count; number += 1) {
      const value = `${tab} ${number}`;
      const done = await app.client.insert("todos", `r${number % 7}`, { [`by${tab}`]: value });
      if (!done.ok) throw new Error(done.error.message);
      app.done.push(value);
    }
  })();
}"""


def logged(gateway: LocalGateway) -> Counter[Any]:
    """Return the values of the log, with how often each is in it."""
    return Counter(
        parse(text) for delta in pulled(gateway.buffer, GATEWAY) for _, text in delta.columns
    )


@pytest.mark.law("K6")
def test_tabs_show_what_each_of_them_writes_and_push_it_once(
    device: Callable[[], BrowserContext], tab: Callable[..., App], gateway: LocalGateway
) -> None:
    context = device()
    tabs = [tab(context).opened("page") for _ in range(3)]
    for number, one in enumerate(tabs):
        one.value("insert", "todos", f"r{number}", {"n": number})

    rows = {f"r{number}": {"n": number} for number in range(3)}
    assert waited(lambda: all(one.rows() == rows for one in tabs))
    assert waited(lambda: all(one.status["waiting"] == 3 for one in tabs))
    tabs[2].value("sync")
    assert waited(lambda: all(one.status["waiting"] == 0 for one in tabs))
    assert logged(gateway) == {0: 1, 1: 1, 2: 1}


@pytest.mark.law("K2", "K3")
@pytest.mark.parametrize("how", ["closed", "killed"])
def test_owner_that_goes_in_the_middle_of_a_push_loses_and_doubles_no_edit_of_any_tab(
    device: Callable[[], BrowserContext],
    tab: Callable[..., App],
    gateway: LocalGateway,
    kill: Callable[[App], None],
    how: str,
) -> None:
    context = device()
    owner, *others = tabs = [tab(context).opened("page") for _ in range(3)]
    for one in tabs:
        one.ask("connect")
    at_once = gateway.buffer.commit

    def slowly(commit: Commit) -> None:
        at_once(commit)
        time.sleep(0.3)

    gateway.buffer.commit = slowly  # type: ignore[method-assign]
    gateway.requests.clear()
    for number, one in enumerate(tabs):
        one.page.evaluate(MANY, [number, EDITS // 3 + 1])
    assert waited(lambda: f"POST /sync/{GATEWAY}/push" in gateway.requests)
    certain = set(owner.page.evaluate("app.done"))
    if how == "closed":
        owner.page.close()
    else:
        kill(owner)

    for one in others:
        one.page.evaluate("app.running")
        certain |= set(one.page.evaluate("app.done"))
    assert waited(lambda: all(one.status["waiting"] == 0 for one in others))
    gateway.buffer.commit = at_once  # type: ignore[method-assign]
    others[0].value("sync")

    counted = logged(gateway)
    assert set(counted.values()) == {1}, counted.most_common(3)
    assert certain <= set(counted)
    assert len(certain) >= 2 * (EDITS // 3)
    fresh = tab().opened("fresh")
    fresh.value("sync")
    assert others[0].rows() == others[1].rows() == fresh.rows()


def test_tab_that_is_opened_while_another_has_the_client_has_all_of_it(
    device: Callable[[], BrowserContext], tab: Callable[..., App]
) -> None:
    context = device()
    first = tab(context).opened("page")
    first.value("insert", "todos", "r1", {"n": 1})

    second = tab(context).opened("page")

    assert second.rows() == {"r1": {"n": 1}}
    assert second.status["waiting"] == 1
    first.page.close()
    second.value("update", "todos", "r1", {"n": 2})
    second.value("sync")
    assert second.status["waiting"] == 0
