"""Pages that are served for as long as a stack runs: what is answered, and when they end."""

from __future__ import annotations

import http.client
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from tools.local_stack.pages import serve_pages, stop_pages
from tools.local_stack.ports import choose_port, is_listening
from tools.local_stack.processes import read_record
from tools.local_stack.stack import down

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "stack"
    stop_pages(tmp_path / "stack")


def pages(tmp_path: Path, text: str = "hello") -> Path:
    made = tmp_path / "pages"
    (made / "assets").mkdir(parents=True, exist_ok=True)
    (made / "index.html").write_text(text)
    (made / "assets" / "app.js").write_text("1")
    return made


def answer(folder: Path, path: str) -> tuple[int, dict[str, str], str]:
    port = read_record(folder / "pages.json")["port"]
    with closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:
        connection.request("GET", path)
        got = connection.getresponse()
        headers = {name.lower(): value for name, value in got.getheaders()}
        return got.status, headers, got.read().decode()


def test_pages_are_served_and_asked_for_again_each_time(folder: Path, tmp_path: Path) -> None:
    address = serve_pages(folder, pages(tmp_path), choose_port(0))
    status, headers, body = answer(folder, "/")

    assert address.startswith("http://localhost:")
    assert (status, body) == (200, "hello")
    assert headers["cache-control"] == "no-cache"
    assert "unsafe-eval" not in headers["content-security-policy"]
    assert answer(folder, "/assets/app.js")[1]["content-type"].startswith("text/javascript")


@pytest.mark.parametrize("path", ["/assets/", "/missing.js", "/../stack/pages.json"])
def test_nothing_but_the_pages_is_served(folder: Path, tmp_path: Path, path: str) -> None:
    serve_pages(folder, pages(tmp_path), choose_port(0))

    assert answer(folder, path)[0] == 404


def test_other_pages_take_the_same_address(folder: Path, tmp_path: Path) -> None:
    first = serve_pages(folder, pages(tmp_path), choose_port(0))
    second = serve_pages(folder, pages(tmp_path, "later"))

    assert first == second
    assert answer(folder, "/")[2] == "later"


def test_they_end_with_the_stack(folder: Path, tmp_path: Path) -> None:
    serve_pages(folder, pages(tmp_path), choose_port(0))
    port = read_record(folder / "pages.json")["port"]
    down(folder)

    assert not is_listening(port)
    assert not stop_pages(folder)
