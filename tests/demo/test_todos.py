"""What the demo gives the example app of the browser: an address, two people, and their rules."""

from __future__ import annotations

import json
import shutil
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from lakesync.cli.session import call
from lakesync.client import Client, HttpTransport
from tests.support.local_gateway import GATEWAY, SECRET, serve_gateway
from tools.demo import todos
from tools.demo.setting import Setting
from tools.local_stack.pages import stop_pages

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Any


@pytest.fixture
def setting(tmp_path: Path) -> Iterator[Setting]:
    with serve_gateway() as gateway:
        made = Setting(gateway.url, GATEWAY, SECRET, tmp_path, "ws://sockets.example")

        def ask(path: str, body: object) -> Any:
            return call(made.url, made.token("demo", "admin"), "POST", f"{path}/{GATEWAY}", body)

        todos.declare(ask)
        yield made


def test_each_person_writes_what_both_keep_and_what_is_theirs(
    setting: Setting, tmp_path: Path
) -> None:
    told = todos.configuration(setting)
    with ExitStack() as open_:
        ada, grace = (_client(open_, told, person, tmp_path) for person in told["people"])
        ada.insert("lists", "l1", {"name": "Groceries", "keeper": "both"}).unwrap()
        ada.insert("lists", "l2", {"name": "Gifts", "keeper": "ada"}).unwrap()
        ada.sync().unwrap()
        grace.sync().unwrap()
        grace.update("lists", "l1", {"name": "Food"}).unwrap()
        grace.update("lists", "l2", {"name": "For me"}).unwrap()
        grace.sync().unwrap()
        ada.sync().unwrap()

        (refused,) = grace.quarantined().unwrap()
        assert refused.error
        assert refused.error.code == "FORBIDDEN"
        names = [ada.get("lists", row_id).unwrap() or {} for row_id in ("l1", "l2")]
        assert [row["name"] for row in names] == ["Food", "Gifts"]


def _client(open_: ExitStack, told: Any, person: Any, folder: Path) -> Client:
    transport = HttpTransport(told["url"], told["gateway"], token=person["token"])
    open_.enter_context(transport)
    path = folder / f"{person['id']}.db"
    return open_.enter_context(Client(path, client_id=person["id"], transport=transport))


def test_what_is_served_is_the_built_app_with_its_configuration(
    setting: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "app" / "dist").mkdir(parents=True)
    (tmp_path / "app" / "dist" / "index.html").write_text("the app")
    monkeypatch.setattr(todos, "APP", tmp_path / "app")
    folder = tmp_path / "stack"
    try:
        assert todos.serve(setting, folder).startswith("http://localhost:")
        told = json.loads((folder / "todos-web" / "config.json").read_text())
        assert (folder / "todos-web" / "index.html").read_text() == "the app"
        assert [person["name"] for person in told["people"]] == ["Ada", "Grace"]
        assert told["socketUrl"] == "ws://sockets.example"
    finally:
        stop_pages(folder)


def test_without_node_the_app_is_left_out_and_it_is_said_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(todos.WITHOUT, raising=False)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert "install Node" in todos.missing()

    monkeypatch.setattr(shutil, "which", lambda _: "/usr/bin/npm")
    assert todos.missing() == ""

    monkeypatch.setenv(todos.WITHOUT, "no network")
    assert todos.missing() == "without Node.js: no network"


def test_a_build_that_fails_names_what_it_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = tmp_path / "app"
    (app / "node_modules").mkdir(parents=True)
    (app / "package-lock.json").write_text("{}")
    (app / "package.json").write_text('{"scripts": {"build": "echo it is broken; exit 3"}}')
    (app / "node_modules").touch()
    monkeypatch.setattr(todos, "APP", app)
    if todos.missing():
        pytest.skip(todos.missing())
    log = tmp_path / "logs" / "build.log"

    assert str(log) in todos.build(log)
    assert "it is broken" in log.read_text()
