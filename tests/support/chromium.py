"""Chromium with the JavaScript client in its pages: a real browser, its IndexedDB and its network.

A browser's process is shared; what a test stores is in a context of its own. Pages come from a
server of this process, with the modules that `tools/javascript.sh` has built, and nothing bundled.
"""

from __future__ import annotations

import json
import os
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Error, sync_playwright

from tests.support.local_gateway import GATEWAY, LocalGateway
from tests.support.repository import ROOT
from tools.chromium import MISSING, WITHOUT, find_chromium

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, BrowserContext, Page, Playwright

BUILT: Final = ROOT / "clients" / "js" / "build" / "src"
PAGES: Final = ROOT / "tests" / "browser" / "pages"
FLAGS: Final = (
    "--headless=new",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # Its sandbox does not work for root.
    *(["--no-sandbox"] if os.geteuid() == 0 else []),
)
_TYPES: Final = {".html": "text/html", ".js": "text/javascript", ".map": "application/json"}


def chromium_path() -> str:
    """The path of Chromium; the test is left out, or fails, where there is none."""
    for variable, what in (("LAKESYNC_WITHOUT_NODE", "Node.js"), (WITHOUT, "Chromium")):
        reason = os.environ.get(variable)
        if reason:
            pytest.skip(f"without {what}: {reason}")
    path = find_chromium()
    assert path, MISSING
    assert (BUILT / "index.js").exists(), "run tools/javascript.sh: it builds the JavaScript client"
    return path


@contextmanager
def playing() -> Iterator[Playwright]:
    """Run what drives browsers for as long as the block runs."""
    chromium_path()
    with sync_playwright() as playwright:
        yield playwright


@contextmanager
def launched(playwright: Playwright) -> Iterator[Browser]:
    """Run a browser with no profile for as long as the block runs."""
    browser = playwright.chromium.launch(executable_path=chromium_path(), args=list(FLAGS))
    yield browser
    browser.close()


@contextmanager
def launched_in(
    playwright: Playwright, folder: Path, **settings: object
) -> Iterator[BrowserContext]:
    """Run a browser whose profile is in a folder: what is stored is on the disk.

    Args:
        settings: what a user has set in the browser, by the names that it has for its profile.
    """
    if settings:
        (folder / "Default").mkdir()
        preferences = {"profile": {"default_content_setting_values": settings}}
        (folder / "Default" / "Preferences").write_text(json.dumps(preferences), "utf-8")
    context = playwright.chromium.launch_persistent_context(
        folder, executable_path=chromium_path(), args=list(FLAGS)
    )
    yield context
    with suppress(Error):  # it may have been killed
        context.close()


# --- pages ----------------------------------------------------------------------------------------

Answer = tuple[int, dict[str, str], bytes]


@dataclass
class Site:
    """The app's own server: its page, the client's modules, and tokens for who is signed in."""

    gateway: LocalGateway
    url: str = ""
    answers: dict[str, Callable[[str, bytes], Answer]] = field(default_factory=dict)
    """What is answered instead, by the beginning of the path: given are the path and the body."""

    def token(self, client: str) -> str:
        """Return a new token; a test may put another function in its place."""
        return self.gateway.token(client)

    def answer(self, path: str, body: bytes) -> Answer:
        for beginning, instead in self.answers.items():
            if path.startswith(beginning):
                return instead(path, body)
        name = urlsplit(path).path
        if name.startswith("/token/"):
            return 200, {"content-type": "text/plain"}, self.token(name[7:]).encode()
        file = (BUILT if name.startswith("/client/") else PAGES) / (
            name.removeprefix("/client/").lstrip("/") or "index.html"
        )
        if file.suffix not in _TYPES or not file.is_file():
            return 404, {}, b""
        return 200, {"content-type": _TYPES[file.suffix]}, file.read_bytes()


@contextmanager
def serve_site(gateway: LocalGateway) -> Iterator[Site]:
    """Serve an app's pages on a free port for as long as the block runs."""
    site = Site(gateway)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            status, headers, answer = site.answer(self.path, body)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("cache-control", "no-cache")
            self.send_header("access-control-allow-origin", "*")  # for frames without an origin
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            with suppress(OSError):  # the page may be gone
                self.wfile.write(answer)

        do_GET = do_POST = _serve  # noqa: N815 - the base class's names

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        site.url = f"http://127.0.0.1:{server.server_port}"
        yield site
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class App:
    """A tab: the page of an app, and the client in it."""

    def __init__(self, page: Page, site: Site) -> None:
        self.page = page
        self.site = site
        page.goto(site.url)
        page.wait_for_function("globalThis.app?.isReady")

    def opened(self, client: str, **options: Any) -> App:
        """Open the client, which must succeed."""
        answer = self.open(client, **options)
        assert answer == {"ok": True}, answer
        return self

    def open(self, client: str, **options: Any) -> Any:
        own = {"url": self.site.gateway.url, "gateway": GATEWAY, "clientId": client}
        return self.page.evaluate("(options) => app.open(options)", own | options)

    def ask(self, method: str, *arguments: Any) -> Any:
        """Call a method of the client, and return its answer."""
        if method == "transaction":
            return self.page.evaluate("(edits) => app.transaction(edits)", arguments[0])
        return self.page.evaluate(
            "([method, given]) => app.ask(method, given)", [method, list(arguments)]
        )

    def value(self, method: str, *arguments: Any) -> Any:
        """Call a method that must succeed, and return its value."""
        result = self.ask(method, *arguments)
        assert result["ok"], result
        return result.get("value")

    def rows(self, table: str = "todos") -> dict[str, dict[str, Any]]:
        """Return a table's rows by their ids."""
        found = self.value("query", {"table": table})
        return {row.pop("_row_id"): row for row in found}

    @property
    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = self.ask("status")
        return status
