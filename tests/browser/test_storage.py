"""Storage that is full, blocked, removed or of another release: no edit is lost without a word."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.chromium import BUILT, launched_in
from tests.support.waiting import waited

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from playwright.sync_api import BrowserContext, Playwright

    from tests.support.chromium import App, Site

pytestmark = pytest.mark.browser

QUOTA_BYTES = 2_000_000
CHANCE = random.Random(40)


def quota(app: App, **given: int) -> None:
    """Let the browser give the site so many bytes; as many as it likes if none are given."""
    devtools = app.page.context.new_cdp_session(app.page)
    devtools.send("Storage.overrideQuotaForOrigin", {"origin": app.site.url, **given})


def text(size: int) -> str:
    """Return a text that cannot be compressed to less than half."""
    return CHANCE.randbytes(size).hex()


@pytest.mark.law("K1", "K20")
def test_edit_for_which_there_is_no_room_is_an_error_and_writes_nothing(
    device: Callable[[], BrowserContext], tab: Callable[..., App]
) -> None:
    context = device()
    app = tab(context)
    quota(app, quotaSize=QUOTA_BYTES)  # the browser notes the room as it opens a database
    app.opened("page")
    app.value("insert", "todos", "kept", {"n": 1})
    done: list[str] = []
    refused: dict[str, Any] = {}
    while not refused:
        assert len(done) < 200, "it was never full"
        rows = [f"r{len(done)}", f"s{len(done)}"]
        edits = [["insert", "todos", row, {"text": text(40_000)}] for row in rows]
        answer = app.ask("transaction", edits)
        if answer["ok"]:
            done += rows
        else:
            refused = answer["error"]

    assert refused["code"] == "STORAGE_FULL"
    assert set(app.rows()) == {"kept", *done}
    assert app.status["waiting"] == 1 + len(done)
    quota(app)
    app.page.close()

    again = tab(context).opened("page")
    assert set(again.rows()) == {"kept", *done}
    assert again.status["waiting"] == 1 + len(done)
    again.value("insert", "todos", "more", {"n": 2})
    again.value("sync")
    assert again.status["waiting"] == 0
    other = tab().opened("other")
    other.value("sync")
    assert set(other.rows()) == {"kept", "more", *done}


def test_page_for_which_there_is_no_room_at_all_tells_of_it(
    device: Callable[[], BrowserContext], tab: Callable[..., App]
) -> None:
    other = tab().opened("other")
    other.value("transaction", [
        ["insert", "todos", f"r{number}", {"text": text(40_000)}] for number in range(40)
    ])  # fmt: skip
    other.value("sync")
    context = device()
    app = tab(context)
    quota(app, quotaSize=QUOTA_BYTES)
    app.opened("page")

    error = app.ask("sync")["error"]

    assert error["code"] == "STORAGE_FULL"
    assert app.status["lastError"]["code"] == "STORAGE_FULL"
    quota(app)
    app.page.close()
    again = tab(context).opened("page")
    again.value("sync")
    assert again.rows() == other.rows()


BLOCKED = """
<!doctype html><meta charset="utf-8">
<iframe sandbox="allow-scripts" src="/index.html"></iframe>
"""


def test_page_whose_storage_is_blocked_keeps_everything_in_memory_and_says_so(
    device: Callable[[], BrowserContext], tab: Callable[..., App], site: Site
) -> None:
    site.answers["/blocked"] = lambda *_: (200, {"content-type": "text/html"}, BLOCKED.encode())
    page = device().new_page()
    page.goto(f"{site.url}/blocked")
    (frame,) = page.main_frame.child_frames
    frame.wait_for_function("globalThis.app?.isReady")
    opened = frame.evaluate(
        "(options) => app.open(options)",
        {"url": site.gateway.url, "gateway": "g1", "clientId": "page",
         "token": site.gateway.token("page")},
    )  # fmt: skip

    assert opened == {"ok": True}
    assert not frame.evaluate("app.client.status.isDurable")
    frame.evaluate("app.client.insert('todos', 'r1', {n: 1})")
    assert frame.evaluate("app.client.sync()")["ok"]
    other = tab().opened("other")
    other.value("sync")
    assert other.rows() == {"r1": {"n": 1}}


BLOCKS = 2


def test_page_of_a_user_who_blocks_storage_keeps_everything_in_memory_and_says_so(
    playwright: Playwright, tab: Callable[..., App], tmp_path: Path
) -> None:
    with launched_in(playwright, tmp_path, cookies=BLOCKS) as context:
        app = tab(context).opened("page")
        app.value("insert", "todos", "r1", {"n": 1})

        assert not app.status["isDurable"]
        assert not app.status["isPersisted"]
        app.value("sync")
    other = tab().opened("other")
    other.value("sync")
    assert other.rows() == {"r1": {"n": 1}}


def removed(app: App) -> None:
    """Remove what the site has stored, as a browser does that is short of room."""
    devtools = app.page.context.new_cdp_session(app.page)
    devtools.send(
        "Storage.clearDataForOrigin", {"origin": app.site.url, "storageTypes": "indexeddb"}
    )


@pytest.mark.parametrize("page", ["open", "closed"])
def test_edits_that_the_browser_removed_are_told(
    device: Callable[[], BrowserContext], tab: Callable[..., App], page: str
) -> None:
    context = device()
    app = tab(context).opened("page")
    app.value("insert", "todos", "r1", {"n": 1})
    app.value("sync")
    app.value("insert", "todos", "r2", {"n": 2})
    app.value("insert", "todos", "r3", {"n": 3})
    if page == "open":
        removed(app)
        refused = app.ask("insert", "todos", "r4", {"n": 4})
        assert not refused["ok"]
        app.page.close()
    else:
        app.page.goto("about:blank")
        removed(app)

    again = tab(context).opened("page")

    assert again.status["lost"] == 2
    assert again.rows() == {}
    again.value("sync")
    assert again.rows() == {"r1": {"n": 1}}
    again.ask("forgetLost")
    assert again.status["lost"] == 0


LATER = (
    ("storage.js", "const LAYOUT = 3;", "const LAYOUT = 4;"),
    ("storage.js", "({ oldVersion }) => {", "({ oldVersion }) => { if (oldVersion >= 3) return;"),
)
OTHER_PROTOCOL = (("tabs.js", "export const PROTOCOL = 1;", "export const PROTOCOL = 2;"),)


def script(text: str) -> Callable[[str, bytes], Any]:
    return lambda *_: (200, {"content-type": "text/javascript"}, text.encode())


def release(site: Site, *changes: tuple[str, str, str]) -> None:
    """Serve another release of the client from now on."""
    texts: dict[str, str] = {}
    for file, before, after in changes:
        text = texts.get(file) or (BUILT / file).read_text("utf-8")
        assert before in text, f"{file} has changed: {before}"
        texts[file] = text.replace(before, after)
    for file, text in texts.items():
        site.answers[f"/client/{file}"] = script(text)


def test_newer_release_in_another_tab_takes_the_edits_over_and_the_older_one_says_so(
    device: Callable[[], BrowserContext], tab: Callable[..., App], site: Site
) -> None:
    context = device()
    older = tab(context).opened("page")
    older.value("insert", "todos", "r1", {"n": 1})
    release(site, *LATER)

    newer = tab(context).opened("page")

    assert newer.rows() == {"r1": {"n": 1}}
    assert newer.status["waiting"] == 1
    refused = older.ask("insert", "todos", "r2", {"n": 2})
    assert refused["error"]["code"] == "UPGRADE_REQUIRED"
    newer.value("insert", "todos", "r3", {"n": 3})
    newer.value("sync")
    assert newer.rows() == {"r1": {"n": 1}, "r3": {"n": 3}}
    assert newer.status["waiting"] == 0


def test_older_release_does_not_open_what_a_newer_one_has_stored_and_takes_nothing_from_it(
    device: Callable[[], BrowserContext], tab: Callable[..., App], site: Site
) -> None:
    context = device()
    release(site, *LATER)
    newer = tab(context).opened("page")
    newer.value("insert", "todos", "r1", {"n": 1})
    newer.page.close()
    kept = dict(site.answers)
    site.answers.clear()

    refused = tab(context).open("page")

    assert refused["error"]["code"] == "UPGRADE_REQUIRED"
    site.answers |= kept
    again = tab(context).opened("page")
    assert again.rows() == {"r1": {"n": 1}}
    assert again.status["waiting"] == 1


def test_tab_of_a_release_that_speaks_otherwise_is_told_and_edits_go_on_in_the_first(
    device: Callable[[], BrowserContext], tab: Callable[..., App], site: Site
) -> None:
    context = device()
    first = tab(context).opened("page")
    first.value("insert", "todos", "r1", {"n": 1})
    release(site, *OTHER_PROTOCOL)
    second = tab(context).opened("page")

    refused = second.ask("insert", "todos", "r2", {"n": 2})

    assert refused["error"]["code"] == "UPGRADE_REQUIRED"
    first.value("insert", "todos", "r3", {"n": 3})
    first.page.close()
    assert waited(lambda: second.ask("insert", "todos", "r4", {"n": 4})["ok"])
    assert waited(lambda: set(second.rows()) == {"r1", "r3", "r4"})


EARLIER = """async (layout) => {
  const answered = (request) => new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
  const [{ name }] = await indexedDB.databases();
  const now = await answered(indexedDB.open(name));
  const kept = [];
  for (const store of ["position", "tables", "outbox", "journal", "conflicts", "rows"]) {
    const from = now.transaction(store).objectStore(store);
    const [keys, values] = await Promise.all([
      answered(from.getAllKeys()), answered(from.getAll()),
    ]);
    kept.push([store, keys, values]);
  }
  now.close();
  await answered(indexedDB.deleteDatabase(name));
  const opening = indexedDB.open(name, layout);
  opening.onupgradeneeded = () => {
    for (const [store, keys, values] of kept) {
      const to = opening.result.createObjectStore(store);
      if (store === "rows") {
        to.createIndex("marks", "marks", { multiEntry: true });
        to.createIndex("age", ["table", "generation"]);
        if (layout > 1) to.createIndex("places", "places", { multiEntry: true });
      }
      values.forEach((value, at) => {
        if (layout < 2) delete value.places;
        to.put(value, keys[at]);
      });
    }
  };
  (await answered(opening)).close();
}"""


@pytest.mark.parametrize("layout", [1, 2])
def test_database_of_an_older_release_is_taken_over_with_its_edits(
    device: Callable[[], BrowserContext], tab: Callable[..., App], layout: int
) -> None:
    context = device()
    app = tab(context).opened("page")
    app.value("insert", "todos", "r1", {"n": 1})
    app.value("sync")
    app.value("update", "todos", "r1", {"n": 2})
    app.ask("close")
    app.page.evaluate(EARLIER, layout)
    app.page.close()

    again = tab(context).opened("page")

    assert again.rows() == {"r1": {"n": 2}}
    assert again.status["waiting"] == 1
    again.value("sync")
    assert again.status["waiting"] == 0
