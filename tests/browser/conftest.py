"""One browser for all tests of a run; a gateway, a site and contexts for each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.chromium import App, Site, launched, serve_site
from tests.support.local_gateway import LocalGateway, serve_gateway

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Browser, BrowserContext


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    with launched() as browser:
        yield browser


@pytest.fixture
def gateway() -> Iterator[LocalGateway]:
    with serve_gateway() as served:
        yield served


@pytest.fixture
def site(gateway: LocalGateway) -> Iterator[Site]:
    with serve_site(gateway) as served:
        yield served


@pytest.fixture
def device(chromium: Browser) -> Iterator[Callable[[], BrowserContext]]:
    """Return a new device at each call: nothing of it is left after the test."""
    contexts: list[BrowserContext] = []

    def new() -> BrowserContext:
        contexts.append(chromium.new_context())
        return contexts[-1]

    yield new
    for context in contexts:
        context.close()


@pytest.fixture
def tab(device: Callable[[], BrowserContext], site: Site) -> Callable[..., App]:
    """Return a new tab at each call, of a device of its own if none is given."""

    def new(context: BrowserContext | None = None) -> App:
        return App((context or device()).new_page(), site)

    return new
