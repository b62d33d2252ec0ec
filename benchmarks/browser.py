"""The JavaScript client in Chromium: its size, and how fast it edits, applies and watches.

What is stored is on the disk, in a profile that is thrown away. ``python -m benchmarks --only
browser`` records the figures; ``run`` gives them.
"""

from __future__ import annotations

import gzip
import statistics
import subprocess
import tempfile
import threading
import time
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.entries import at_least, at_most, sized
from lakesync.client import Client, HttpTransport, SyncLoop
from tests.support.builders import insert, push
from tests.support.chromium import Site, launched_in, playing, serve_site
from tests.support.gateways import pusher, real_wall_clock
from tests.support.local_gateway import GATEWAY, LocalGateway, serve_gateway
from tests.support.repository import ROOT
from tests.support.waiting import waited

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Page

    from benchmarks.entries import Entry

MEASURES: Final = (
    "benchmarks/browser.js",
    "clients/js/src/actions.ts",
    "clients/js/src/attachments.ts",
    "clients/js/src/client.ts",
    "clients/js/src/edits.ts",
    "clients/js/src/indexes.ts",
    "clients/js/src/json.ts",
    "clients/js/src/loop.ts",
    "clients/js/src/merge.ts",
    "clients/js/src/messages.ts",
    "clients/js/src/owner.ts",
    "clients/js/src/pages.ts",
    "clients/js/src/places.ts",
    "clients/js/src/query.ts",
    "clients/js/src/react.ts",
    "clients/js/src/rows.ts",
    "clients/js/src/socket.ts",
    "clients/js/src/state.ts",
    "clients/js/src/storage.ts",
    "clients/js/src/sync.ts",
    "clients/js/src/tabs.ts",
    "clients/js/src/tanstack.ts",
    "clients/js/src/values.ts",
    "clients/js/src/watch.ts",
)
CLIENT: Final = ROOT / "clients" / "js"
ESBUILD: Final = CLIENT / "node_modules" / ".bin" / "esbuild"
EDITS: Final = sized(400, 5)
WARM_UP: Final = sized(30, 2)
EDIT_RATIO_TARGET: Final = 1.3
APPLIED: Final = sized(50_000, 1_000)
APPLY_ROUNDS: Final = sized(3, 1)
APPLY_TARGET: Final = 15_000
FIRST_SYNC: Final = sized(50_000, 1_000)
FIRST_SYNC_TARGET_S: Final = 10
BLOCKED_TARGET_MS: Final = 50
WATCHED: Final = sized(100_000, 2_000)
LISTS: Final = sized(2_000, 40)
WATCH_EDITS: Final = sized(400, 5)
WATCH_TARGET_MS: Final = 16
BROADCASTS: Final = sized(40, 3)
BROADCAST_MORE_MS: Final = 80
_PUSHED: Final = 2_500
_ENTRIES: Final = {
    "index": ("js_client_kb", 30, "the client with all that it does by itself"),
    "react": ("js_react_kb", 2, "the hooks, beside the client"),
    "tanstack": ("js_tanstack_kb", 4, "the collections, beside the client"),
    "actions": ("js_actions_kb", 5, "actions, beside the client"),
    "attachments": ("js_attachments_kb", 5, "attachments, beside the client"),
}
"""Entries of the package, each with the figure of its size, the target, and what it is."""


def run() -> list[Entry]:
    """Measure, and give one entry for each figure."""
    _build()
    with serve_gateway() as gateway, serve_site(gateway) as site:
        site.answers["/bench.js"] = lambda *_: _script()
        site.answers["/bench"] = lambda *_: _page()
        return [
            *_sizes(),
            *_edits(site),
            _applied(site),
            *_first_sync(site, gateway),
            _watched(site),
            _broadcast(site, gateway),
        ]


def _build() -> None:
    if not ESBUILD.exists():
        subprocess.run(["npm", "ci", "--no-fund", "--no-audit"], cwd=CLIENT, check=True)
    subprocess.run(["npm", "run", "--silent", "build"], cwd=CLIENT, check=True)


def _script() -> tuple[int, dict[str, str], bytes]:
    file = Path(__file__).with_suffix(".js")
    return 200, {"content-type": "text/javascript"}, file.read_bytes()


def _page() -> tuple[int, dict[str, str], bytes]:
    text = '<!doctype html><meta charset="utf-8"><script type="module" src="/bench.js"></script>'
    return 200, {"content-type": "text/html"}, text.encode()


@contextmanager
def _opened(site: Site) -> Iterator[Page]:
    """Open a page in a browser of its own, whose profile is on the disk that this folder is on."""
    with (
        tempfile.TemporaryDirectory(prefix=".bench-", dir=Path.cwd()) as folder,
        playing() as playwright,
        launched_in(playwright, Path(folder)) as context,
    ):
        page = context.new_page()
        page.goto(f"{site.url}/bench")
        page.wait_for_function("globalThis.bench?.isReady")
        yield page


# --- sizes ----------------------------------------------------------------------------------------


def _sizes() -> list[Entry]:
    return [
        at_most(
            figure,
            _size(name) / 1024,
            "KB",
            target,
            f"{what}: bundled and made small by esbuild, compressed by gzip",
        )
        for name, (figure, target, what) in _ENTRIES.items()
    ]


def _size(name: str) -> int:
    """Return the bytes of an entry; of others than the client, those that come beside it."""
    with tempfile.TemporaryDirectory() as folder:
        built = CLIENT / "build" / "src"
        subprocess.run(
            [
                ESBUILD, *sorted({built / "index.js", built / f"{name}.js"}),
                "--bundle", "--minify", "--format=esm", "--target=es2022", "--log-level=error",
                "--external:react", "--external:@tanstack/db", f"--outdir={folder}",
                *(["--splitting"] if name != "index" else []),
            ],
            check=True,
        )  # fmt: skip
        return _compressed(Path(folder) / f"{name}.js")


def _compressed(file: Path) -> int:
    return len(gzip.compress(file.read_bytes(), 9, mtime=0))


# --- edits ----------------------------------------------------------------------------------------


def _edits(site: Site) -> list[Entry]:
    with _opened(site) as page:
        measured = page.evaluate("([edits, more]) => bench.edits(edits, more)", [EDITS, WARM_UP])
    edits, bare = measured["edits"], measured["bare"]
    median, bare_median = statistics.median(edits), statistics.median(bare)
    puts = ", ".join(measured["puts"])
    return [
        at_most(
            "js_edit_ms_p50",
            median,
            "ms",
            round(EDIT_RATIO_TARGET * bare_median, 3),
            f"an edit, on the disk; a strict transaction of IndexedDB with its puts ({puts}), by "
            f"turns with it, {bare_median:.2f} ms: {median / bare_median:.2f} times that; "
            f"p99 {_p99(edits):.1f} and {_p99(bare):.1f} ms of {EDITS} edits",
        )
    ]


def _p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100)[98]


# --- pages ----------------------------------------------------------------------------------------


def _applied(site: Site) -> Entry:
    spent = []
    with _opened(site) as page:
        for number in range(APPLY_ROUNDS):
            asked = [f"apply-{number}", APPLIED, 1_000]
            spent.append(page.evaluate("(asked) => bench.applies(...asked)", asked))
    rates = [APPLIED / (ms / 1000) for ms in spent]
    return at_least(
        "js_apply_rows_per_s",
        max(rates),
        "rows/s",
        APPLY_TARGET,
        f"{APPLIED:,} rows of 5 columns, in pages of 1,000 that arrive at once, from JSON to rows "
        f"on the disk; the best of {', '.join(f'{rate:,.0f}' for rate in rates)}",
    )


def _first_sync(site: Site, gateway: LocalGateway) -> list[Entry]:
    _fill(gateway)
    options = {
        "clientId": "first", "url": gateway.url, "gateway": GATEWAY, "token": gateway.token("first")
    }  # fmt: skip
    with _opened(site) as page:
        measured = page.evaluate(
            "([options, rows]) => bench.firstSync(options, rows)", [options, FIRST_SYNC]
        )
    tasks: list[float] = measured["tasks"]
    longest = max(tasks, default=0.0)
    return [
        at_most(
            "js_first_sync_50k_s",
            measured["spent"] / 1000,
            "s",
            FIRST_SYNC_TARGET_S,
            f"{FIRST_SYNC:,} rows of 5 columns from a gateway of the same machine, in JSON",
        ),
        at_most(
            "js_first_sync_blocked_ms",
            longest,
            "ms",
            BLOCKED_TARGET_MS,
            "the longest task of the page meanwhile; the browser tells of those beyond 50 ms, "
            f"which were {len(tasks)}",
        ),
    ]


def _fill(gateway: LocalGateway) -> None:
    service, base = pusher(gateway.buffer), real_wall_clock() << 16
    for first in range(0, FIRST_SYNC, _PUSHED):
        deltas = (
            insert(
                f"t{number:07}", at=base + number, client="other", list=f"list-{number % 2_000}",
                place=number, title=f"Buy milk, number {number}", done=number % 3 == 0, turn=0,
            )
            for number in range(first, min(first + _PUSHED, FIRST_SYNC))
        )  # fmt: skip
        service.push(GATEWAY, push(*deltas, client="other"))


# --- watching -------------------------------------------------------------------------------------


def _watched(site: Site) -> Entry:
    with _opened(site) as page:
        asked = [WATCHED, LISTS, WATCH_EDITS]
        waits = page.evaluate("(asked) => bench.watches(...asked)", asked)
    return at_most(
        "js_watch_ms_p99",
        _p99(waits),
        "ms",
        WATCH_TARGET_MS,
        f"{WATCHED:,} rows, a query of {WATCHED // LISTS} on a declared index, from the commit of "
        f"an edit of one of them to the callback; median {statistics.median(waits):.2f} ms of "
        f"{WATCH_EDITS} edits",
    )


# --- broadcasts -----------------------------------------------------------------------------------


def _broadcast(site: Site, gateway: LocalGateway) -> Entry:
    """Have a page and a Python client hear of the same edits, by sockets."""
    heard: dict[str, float] = {}
    options = {
        "clientId": "page", "url": gateway.url, "socketUrl": gateway.socket_url,
        "gateway": GATEWAY, "token": gateway.token("page"),
    }  # fmt: skip
    receipts: dict[str, float] = {}
    with (
        _opened(site) as page,
        _device(gateway, "reader") as reader,
        _device(gateway, "writer") as writer,
        SyncLoop(reader, every_s=3_600),  # nobody polls meanwhile
        reader.watch("SELECT title FROM live") as rows_of,
    ):

        def hear() -> None:
            for rows in rows_of:
                for row in rows:
                    heard.setdefault(row["title"], time.time())

        threading.Thread(target=hear, daemon=True).start()
        page.evaluate("(options) => bench.shows(options)", options)
        assert waited(lambda: reader.status.connected)
        for number in range(BROADCASTS):
            title = f"number {number}"
            writer.insert("live", "r1", {"title": title}).unwrap()
            writer.sync(mode="push").unwrap()
            receipts[title] = time.time()
            page.wait_for_function("(title) => title in bench.shownAt", arg=title)
            assert waited(lambda title=title: title in heard)  # type: ignore[misc]  # its default
        shown = page.evaluate("bench.shownAt")
    in_page = [shown[title] - at * 1000 for title, at in receipts.items()]
    in_python = [(heard[title] - at) * 1000 for title, at in receipts.items()]
    median, other = statistics.median(in_page), statistics.median(in_python)
    return at_most(
        "js_broadcast_ms_p50",
        median,
        "ms",
        round(max(other, 0) + BROADCAST_MORE_MS, 1),
        "from the writer's receipt until another page shows the edit, by a socket of JSON; the "
        "gateway of the tests notifies before it answers, so it may be below 0; a watch of the "
        f"Python client in the same run {other:.1f} ms; {BROADCASTS} edits",
    )


@contextmanager
def _device(gateway: LocalGateway, name: str) -> Iterator[Client]:
    transport = HttpTransport(
        gateway.url, GATEWAY, token=gateway.token(name), socket_url=gateway.socket_url
    )
    with (
        closing(transport),
        tempfile.TemporaryDirectory() as folder,
        Client(Path(folder) / "client.db", client_id=name, transport=transport) as client,
    ):
        client.declare("live", {"title": "string"}).unwrap()
        yield client


if __name__ == "__main__":
    for entry in run():
        print(entry)
