"""The guide's code does what the guide says: each page runs, against a gateway in memory."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

import lakesync.client
from lakesync.client.storage.file import Position
from lakesync.testing.memory_gateway import MemoryGateway
from lakesync.wire.proto import encode_pull_frame
from tests.support.markdown import PYTHON_BLOCK
from tests.support.repository import ROOT
from tests.support.some import some

if TYPE_CHECKING:
    from pathlib import Path

pytest_plugins = ["pytester"]

PAGES = [
    page
    for page in sorted((ROOT / "docs" / "guide").glob("*.md"))
    if not page.stem.startswith("connectors")  # those have tests of their own
]
"""The pages for those who write an app."""


def code(page: Path) -> str:
    """Return a page's code, each line where it stands on the page."""
    text = page.read_text("utf-8")
    lines = [""] * (text.count("\n") + 1)
    for block in PYTHON_BLOCK.finditer(text):
        start = text.count("\n", 0, block.start(1))
        for number, line in enumerate(block.group(1).splitlines()):
            lines[start + number] = line
    return "\n".join(lines)


@pytest.mark.parametrize(
    "page", [p for p in PAGES if p.stem not in {"testing", "adapters"}], ids=lambda p: p.stem
)
def test_the_code_of_a_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reached(url: str, *, gateway: str, token: Any, socket_url: str = "wss://") -> Any:
        assert socket_url.startswith("wss://")
        assert url.startswith("https://")
        assert gateway
        assert token
        return here.transport()

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(lakesync.client, "HttpTransport", reached)
    with MemoryGateway(tmp_path) as here:
        shipped: list[Any] = []
        here.on_action("shipping", "ship", lambda params: _shipped(params, shipped))
        scope: dict[str, Any] = {"__name__": f"guide_{page.stem}"}
        monkeypatch.setitem(__import__("sys").modules, scope["__name__"], _module(scope))
        page_code = compile(code(page), str(page), "exec", dont_inherit=True)
        exec(page_code, scope)  # noqa: S102 - our own page
        client = scope.get("client")
        if client is not None:
            client.close()


def _shipped(params: Any, shipped: list[Any]) -> dict[str, Any]:
    shipped.append(params["order"])
    assert shipped.count("o8") <= 1
    return {"shipment": len(shipped)}


def _module(scope: dict[str, Any]) -> Any:
    """Return a module of a page's names, by which a dataclass finds its types."""
    import types  # noqa: PLC0415

    module = types.ModuleType(scope["__name__"])
    module.__dict__.update(scope)
    return module


def test_the_tests_on_the_testing_page_pass(pytester: pytest.Pytester) -> None:
    text = (ROOT / "docs" / "guide" / "testing.md").read_text("utf-8")
    conftest, *blocks = PYTHON_BLOCK.findall(text)
    pytester.makeconftest(conftest)
    pytester.makepyfile("\n\n".join(blocks))

    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-W", "error")

    result.assert_outcomes(passed=6)


def test_the_contract_suites_on_the_adapters_page_pass(pytester: pytest.Pytester) -> None:
    text = (ROOT / "docs" / "guide" / "adapters.md").read_text("utf-8")
    pytester.makepyfile("\n\n".join(PYTHON_BLOCK.findall(text)))

    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-W", "error")

    outcomes = result.parseoutcomes()
    assert outcomes.keys() == {"passed"}
    assert outcomes["passed"] == 50, "of all suites"


def test_links_of_the_guide_lead_to_existing_files() -> None:
    links = [
        (page, target)
        for page in PAGES
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text("utf-8"))
    ]
    for page, target in some(links):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_wscat_frame_of_the_realtime_page_is_a_pull_from_the_start() -> None:
    page = (ROOT / "docs" / "realtime.md").read_text("utf-8")
    [frame] = re.findall(r"^> (\S+=)$", page, re.MULTILINE)
    assert frame == encode_pull_frame(Position(0, "", "").pull("phone-1", 100), 1)
