"""One browser for all tests of a run; a gateway, a site and contexts for each."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import Error

from tests.support.chromium import App, Site, launched, playing, serve_site
from tests.support.local_gateway import LocalGateway, serve_gateway

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Browser, BrowserContext, Playwright


@pytest.fixture(scope="session")
def playwright() -> Iterator[Playwright]:
    with playing() as started:
        yield started


@pytest.fixture(scope="session")
def chromium(playwright: Playwright) -> Iterator[Browser]:
    with launched(playwright) as browser:
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


@pytest.fixture
def kill() -> Callable[[App], None]:
    """Return what kills the process of a tab, at once and with all that it was doing."""

    def killed(app: App) -> None:
        with suppress(Error):  # that it is gone
            app.page.goto("chrome://kill")

    return killed
