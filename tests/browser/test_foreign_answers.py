"""Answers that are not the gateway's, but those of proxies and service workers: no edit is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.local_gateway import GATEWAY

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Route

    from tests.support.chromium import App, Site

pytestmark = pytest.mark.browser

LOGIN = b"<!doctype html><title>Welcome to the hotel</title><p>Please log in."
HTML = {"content-type": "text/html"}
JSON = {"content-type": "application/json"}
OPEN = {"access-control-allow-origin": "*"}
ANSWERS: dict[str, tuple[int, dict[str, str], bytes]] = {
    "a login page": (200, HTML, LOGIN),
    "a login page that says it is JSON": (200, JSON, LOGIN),
    "forbidden, by a firewall": (403, JSON, b'{"message": "Forbidden"}'),
    "not there": (404, HTML, LOGIN),
    "too large": (413, HTML, LOGIN),
    "no token for the proxy": (407, HTML, LOGIN),
    "nothing": (200, JSON, b""),
    "half of an answer": (200, JSON, b'{"deltas": [{"op": "INS'),
    "another service": (200, JSON, b'{"ok": true, "items": []}'),
    "a list": (200, JSON, b"[]"),
    "numbers that are none": (200, JSON, b'{"serverHlc": "x", "deltas": [], "hasMore": false}'),
    "an error without an id": (400, JSON, b'{"error": "x", "code": "SCHEMA_ERROR"}'),
}


def answering(status: int, headers: dict[str, str], body: bytes) -> Callable[[Route], None]:
    return lambda route: route.fulfill(status=status, headers=headers | OPEN, body=body)


@pytest.mark.law("K7")
def test_edits_wait_while_something_else_answers_and_are_pushed_afterwards(
    tab: Callable[..., App], site: Site
) -> None:
    page = tab().opened("page")
    page.value("insert", "todos", "r0", {"n": 0})
    page.value("sync")
    requests = f"**/sync/{GATEWAY}/*"
    for number, (name, answer) in enumerate(ANSWERS.items(), 1):
        page.value("insert", "todos", f"r{number}", {"n": number})
        page.page.route(requests, answering(*answer))

        error = page.ask("sync")["error"]

        assert error["code"] in {"NOT_THE_GATEWAY", "UNREACHABLE"}, f"{name}: {error}"
        assert page.status["waiting"] == number, name
        assert page.status["quarantined"] == 0, name
        page.page.unroute_all()

    page.value("sync")

    assert page.status["waiting"] == 0
    other = tab().opened("other")
    other.value("sync")
    assert other.rows() == page.rows() == {f"r{n}": {"n": n} for n in range(len(ANSWERS) + 1)}


WORKER = """
let mode = "through";
const kept = new Map();
self.addEventListener("install", () => self.skipWaiting());
self.addEventListener("activate", (event) => event.waitUntil(self.clients.claim()));
self.addEventListener("message", (event) => {
  mode = event.data;
  event.ports[0].postMessage("ok");
});
self.addEventListener("fetch", (event) => {
  const { url } = event.request;
  if (!url.includes("/sync/")) return;
  if (mode === "login") {
    event.respondWith(new Response("<p>Please log in.", {headers: {"content-type": "text/html"}}));
  } else if (mode === "offline") {
    event.respondWith(Response.error());
  } else if (mode === "stale" && kept.has(url)) {
    event.respondWith(kept.get(url).clone());
  } else {
    event.respondWith(fetch(event.request).then((answer) => {
      kept.set(url, answer.clone());
      return answer;
    }));
  }
});
"""
TELL = """(mode) => new Promise((resolve) => {
  const { port1, port2 } = new MessageChannel();
  port1.onmessage = resolve;
  navigator.serviceWorker.controller.postMessage(mode, [port2]);
})"""
CONTROLLED = """async () => {
  await navigator.serviceWorker.register("/worker.js");
  await navigator.serviceWorker.ready;
  while (!navigator.serviceWorker.controller) await new Promise((go) => setTimeout(go, 10));
}"""


@pytest.mark.law("K5", "K7")
def test_service_worker_in_between_that_answers_itself_loses_nothing(
    tab: Callable[..., App], site: Site
) -> None:
    site.answers["/worker.js"] = lambda *_: (
        200, {"content-type": "text/javascript"}, WORKER.encode()
    )  # fmt: skip
    page, other = tab(), tab().opened("other")
    page.page.evaluate(CONTROLLED)
    page.opened("page")
    page.value("insert", "todos", "r1", {"n": 1})
    page.value("sync")

    for number, mode in enumerate(("login", "offline"), 2):
        page.page.evaluate(TELL, mode)
        page.value("insert", "todos", f"r{number}", {"n": number})
        assert page.ask("sync")["error"]["code"] in {"NOT_THE_GATEWAY", "UNREACHABLE"}
        assert page.status["waiting"] == number - 1

    page.page.evaluate(TELL, "through")
    page.value("sync")
    other.value("insert", "todos", "theirs", {"n": 9})
    other.value("sync")
    # The page that was kept is from before that: it brings nothing, and takes nothing away.
    page.page.evaluate(TELL, "stale")
    page.ask("sync", "pull")
    assert page.rows() == {f"r{number}": {"n": number} for number in (1, 2, 3)}
    page.page.evaluate(TELL, "through")
    page.value("sync")

    assert page.status["waiting"] == 0
    other.value("sync")
    assert page.rows() == other.rows() == {
        "theirs": {"n": 9}, **{f"r{number}": {"n": number} for number in (1, 2, 3)}
    }  # fmt: skip


def test_numbers_beyond_those_of_javascript_arrive_digit_by_digit(
    tab: Callable[..., App], site: Site
) -> None:
    page, other = tab().opened("page"), tab().opened("other")
    big = 2**53 + 1
    for app in (page, other):
        app.value("declare", "todos", {"big": "integer"})
    page.page.evaluate(f"app.client.insert('todos', 'r1', {{big: {big}n}})")
    page.value("sync")
    other.value("sync")

    assert other.rows() == {"r1": {"big": str(big)}}
