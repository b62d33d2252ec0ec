"""SQL in a browser: SQLite in a worker, on the private file system."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.chromium import App
from tests.support.repository import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from playwright.sync_api import BrowserContext, Route

    from tests.support.chromium import Site

pytestmark = pytest.mark.browser
CLIENT = ROOT / "clients" / "js"
OPEN = """async () => {
    const { Sql } = await import("/client/sqlite.js");
    const worker = new Worker("/bundled/sqlite-worker.js", { type: "module" });
    const opened = await Sql.open(app.client, { tables: { todos: { columns: ["n"] } }, worker });
    if (!opened.ok) throw opened.error;
    app.sql = opened.value;
    return app.sql.isOnDisk;
}"""
QUERY = """async (sql) => {
    const answer = await app.sql.query(sql);
    if (!answer.ok) throw answer.error;
    return answer.value;
}"""


@pytest.fixture(scope="module")
def bundled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bundle the worker, as an app's build does."""
    folder = tmp_path_factory.mktemp("bundled")
    subprocess.run(
        [
            CLIENT / "node_modules" / ".bin" / "esbuild",
            CLIENT / "build" / "src" / "sqlite-worker.js",
            "--bundle", "--format=esm", "--log-level=error", f"--outdir={folder}",
        ],
        check=True,
    )  # fmt: skip
    wasm = CLIENT / "node_modules" / "@sqlite.org" / "sqlite-wasm" / "dist" / "sqlite3.wasm"
    (folder / wasm.name).write_bytes(wasm.read_bytes())
    return folder


@pytest.fixture
def tab(
    device: Callable[[], BrowserContext], site: Site, bundled: Path
) -> Callable[[BrowserContext], App]:
    def serve(route: Route) -> None:
        route.fulfill(path=bundled / route.request.url.rpartition("/")[2])

    def new(context: BrowserContext) -> App:
        context.route("**/bundled/*", serve)
        return App(context.new_page(), site)

    return new


def test_sql_sees_what_a_page_has_written_in_every_tab(
    device: Callable[[], BrowserContext], tab: Callable[[BrowserContext], App]
) -> None:
    def count(app: App) -> Any:
        return app.page.evaluate(QUERY, "SELECT count(*) AS rows, sum(n) AS n FROM todos")

    laptop = device()
    first = tab(laptop).opened("laptop")
    for number in range(20):
        first.value("insert", "todos", f"r{number}", {"n": number})
    assert first.page.evaluate(OPEN) is True
    assert count(first) == [{"rows": 20, "n": 190}]
    first.value("delete", "todos", "r19")
    assert count(first) == [{"rows": 19, "n": 171}]

    second = tab(laptop).opened("laptop")
    assert second.page.evaluate(OPEN) is False
    assert count(second) == [{"rows": 19, "n": 171}]
    second.value("insert", "todos", "r20", {"n": 29})
    assert count(second) == [{"rows": 20, "n": 200}]

    first.page.reload()
    first.page.wait_for_function("globalThis.app?.isReady")
    first.opened("laptop")
    first.page.evaluate(OPEN)
    assert count(first) == [{"rows": 20, "n": 200}]
