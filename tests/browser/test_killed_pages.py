"""A page that is killed at any point of an edit, a push or a pull: nothing is lost or doubled."""

from __future__ import annotations

import os
import signal
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import Error

from lakesync.core.delta import parse
from tests.support.builders import push, update
from tests.support.chromium import PAGES, App, Site, launched_in
from tests.support.gateways import pulled, pusher, real_wall_clock
from tests.support.local_gateway import GATEWAY, LocalGateway
from tests.support.waiting import waited

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from playwright.sync_api import Browser, BrowserContext, Playwright

pytestmark = pytest.mark.browser

POINTS = 50
OWN = ("r1", "r2", "r3")
"""Rows that the page writes, each time all of them in one transaction."""
OTHERS = tuple(f"s{number}" for number in range(8))
"""Rows that another device writes."""
EPISODE = """async ([number, rows]) => {
  const done = await app.transaction(rows.map((row) => ["insert", "todos", row, {n: number}]));
  if (!done.ok) throw new Error(done.error.message);
  points.say(`edited/${number}`);
  const synced = await app.client.sync();
  if (!synced.ok) throw new Error(synced.error.message);
}"""


class Killed:
    """A device whose page is killed again and again."""

    def __init__(self, browser: Browser, context: BrowserContext, site: Site) -> None:
        self.context, self.site = context, site
        self.said: set[str] = set()
        self._processes: set[int] = set()
        self._asked = browser.new_browser_cdp_session()
        context.add_init_script(path=PAGES / "killed.js")
        site.answers["/kill"] = self._kill
        site.answers["/said/"] = self._hear

    def page(self) -> App:
        """Open the client in a new page, once the browser knows that the last one is gone."""
        assert waited(lambda: not (self._processes & self._renderers()))
        app = App(self.context.new_page(), self.site).opened("page")
        self._processes = self._renderers()
        return app

    def _renderers(self) -> set[int]:
        found = self._asked.send("SystemInfo.getProcessInfo")["processInfo"]
        return {each["id"] for each in found if each["type"] == "renderer"}

    def _kill(self, *_: object) -> Any:
        for process in self._processes:
            os.kill(process, signal.SIGKILL)
        return 200, {}, b""

    def _hear(self, path: str, _: bytes) -> Any:
        self.said.add(path.removeprefix("/said/"))
        return 200, {}, b""

    def episode(self, app: App, number: int, point: int) -> int | None:
        """Edit and sync; returns how many points it has, none if it was killed before."""
        app.page.evaluate("(point) => points.killAt(point)", point)
        try:
            app.page.evaluate(EPISODE, [number, OWN])
        except Error as error:
            if "crash" not in str(error):
                raise
            return None
        count: int = app.page.evaluate("points.count()")
        return count


RESTARTS = 3
WRITE = """async (first) => {
  for (let number = first; ; number += 1) {
    const done = await app.client.insert("todos", `r${number}`, { n: number });
    if (!done.ok) throw new Error(done.error.message);
    const request = new XMLHttpRequest();
    request.open("POST", `/said/${number}`, false);
    request.send();
  }
}"""


@pytest.mark.law("K1", "K2")
def test_browser_that_is_killed_while_the_page_edits_has_every_edit_on_the_disk(
    playwright: Playwright, gateway: LocalGateway, site: Site, tmp_path: Path
) -> None:
    said: set[int] = set()
    pids: list[int] = []
    stops_at = 0

    def hear(path: str, _: bytes) -> Any:
        said.add(int(path.removeprefix("/said/")))
        if max(said) >= stops_at:
            os.kill(pids[-1], signal.SIGKILL)
        return 200, {}, b""

    site.answers["/said/"] = hear
    for restart in range(RESTARTS):
        first = max(said, default=-1) + 1
        stops_at = first + 3 * restart
        with launched_in(playwright, tmp_path) as context:
            pids.append(main_process(tmp_path))
            app = App(context.new_page(), site).opened("page")
            assert {f"r{number}" for number in said} <= set(app.rows())
            app.value("sync", "push")
            with pytest.raises(Error):
                app.page.evaluate(WRITE, first)
    with launched_in(playwright, tmp_path) as context:
        app = App(context.new_page(), site).opened("page")
        rows = app.rows()
        app.value("sync")
        assert app.rows() == rows
        assert app.status["waiting"] == 0

    assert {f"r{number}" for number in said} <= set(rows)
    assert len(rows) <= len(said) + RESTARTS, "at most one in each was not yet answered"
    written = Counter(delta.row_id for delta in pulled(gateway.buffer, GATEWAY))
    assert set(written) == set(rows)


def main_process(profile: Path) -> int:
    """Return the process of the browser that has a profile: it notes itself there."""
    return int((profile / "SingletonLock").readlink().name.rpartition("-")[2])


@pytest.mark.law("K1", "K8")
def test_page_that_is_killed_at_any_point_loses_and_doubles_nothing(
    chromium: Browser, device: Callable[[], BrowserContext], gateway: LocalGateway, site: Site
) -> None:
    killed = Killed(chromium, device(), site)
    written = 0

    def others_write() -> None:
        nonlocal written
        written += 1
        at = real_wall_clock() << 16
        deltas = (update(row, at=at, client="other", n=written) for row in OTHERS)
        pusher(gateway.buffer).push(GATEWAY, push(*deltas, client="other"))

    app = killed.page()
    others_write()
    points = killed.episode(app, 0, -1)
    assert points
    assert points > POINTS
    shown, kills = [0], 0
    for episode in range(1, POINTS + 1):
        others_write()
        survives = killed.episode(app, episode, max(1, episode * points // POINTS))
        kills += survives is None
        if survives is None:
            app = killed.page()
        was = {app.value("get", "todos", row)["n"] for row in OWN}
        assert len(was) == 1, f"episode {episode}: a part of the transaction was written: {was}"
        assert was <= {shown[-1], episode}, f"episode {episode}: {was}, after {shown[-1]}"
        if f"edited/{episode}" in killed.said:
            assert was == {episode}, f"episode {episode}: the edit had been answered Ok"
        shown.extend(was)
    app.value("sync")

    assert kills >= POINTS - 2, "some episode ends a little before the last point"
    assert app.status["waiting"] == app.status["quarantined"] == 0
    numbers = dict.fromkeys(OWN, shown[-1]) | dict.fromkeys(OTHERS, written)
    assert app.rows() == {row: {"n": number} for row, number in numbers.items()}
    edits = Counter(
        (delta.row_id, parse(dict(delta.columns)["n"]))
        for delta in pulled(gateway.buffer, GATEWAY)
        if delta.client_id == "page"
    )
    assert set(edits.values()) == {1}, edits
    assert set(edits) == {(row, number) for row in OWN for number in shown}
