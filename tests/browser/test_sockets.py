"""WebSockets of pages: what one device writes, the other shows at once, and nobody polls."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.gateway.access import AccessAdmin
from tests.support.local_gateway import GATEWAY, LocalGateway
from tests.support.waiting import waited

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import BrowserContext

    from tests.support.chromium import App

pytestmark = pytest.mark.browser


def live(app: App, gateway: LocalGateway, client: str) -> App:
    """Open the client with a socket, and wait until this is open."""
    app.opened(client, socketUrl=gateway.socket_url)
    app.ask("connect")
    assert waited(lambda: app.status["isLive"])
    assert waited(lambda: app.status["hasSynced"])
    return app


def shows(app: App, rows: dict[str, Any]) -> bool:
    return app.rows() == rows


def pulls(gateway: LocalGateway) -> int:
    return gateway.requests.count(f"POST /sync/{GATEWAY}/pull")


@pytest.mark.law("T1")
def test_edit_of_one_device_is_on_the_other_by_its_socket_without_a_pull(
    tab: Callable[..., App], gateway: LocalGateway
) -> None:
    laptop, phone = live(tab(), gateway, "laptop"), live(tab(), gateway, "phone")
    laptop.value("insert", "todos", "r1", {"n": 1})
    assert waited(lambda: phone.rows() == {"r1": {"n": 1}})
    assert waited(lambda: laptop.status["waiting"] == 0)
    gateway.requests.clear()

    for number in range(2, 12):
        laptop.value("update", "todos", "r1", {"n": number})
        rows = {"r1": {"n": number}}
        assert waited(partial(shows, phone, rows))

    assert waited(lambda: laptop.status["waiting"] == 0)
    pushes = gateway.requests.count(f"POST /sync/{GATEWAY}/push")
    assert pulls(gateway) <= pushes + 1, "only who pushes pulls afterwards"


@pytest.mark.law("T2")
def test_tabs_of_a_device_share_one_socket_and_the_next_owner_opens_another(
    device: Callable[[], BrowserContext], tab: Callable[..., App], gateway: LocalGateway
) -> None:
    context = device()
    owner = live(tab(context), gateway, "laptop")
    other = live(tab(context), gateway, "laptop")
    phone = tab().opened("phone")
    assert len(gateway.sockets.open) == 1
    phone.value("insert", "todos", "r1", {"n": 1})
    phone.value("sync")
    assert waited(lambda: owner.rows() == other.rows() == {"r1": {"n": 1}})

    owner.page.close()
    phone.value("insert", "todos", "r2", {"n": 2})
    phone.value("sync")

    assert waited(lambda: set(other.rows()) == {"r1", "r2"})
    assert waited(lambda: other.status["isLive"])
    assert waited(lambda: len(gateway.sockets.open) == 1)


@pytest.mark.law("T2", "T6")
def test_page_whose_socket_breaks_opens_another_unless_it_is_revoked(
    tab: Callable[..., App], gateway: LocalGateway
) -> None:
    laptop, phone = live(tab(), gateway, "laptop"), tab().opened("phone")
    for peer in list(gateway.sockets.open.values()):
        peer.connection.close()
    phone.value("insert", "todos", "r1", {"n": 1})
    phone.value("sync")
    assert waited(lambda: laptop.rows() == {"r1": {"n": 1}})
    assert waited(lambda: laptop.status["isLive"])

    admin = AccessAdmin(gateway.access, wall_clock=gateway.now_ms)
    admin.revoke(GATEWAY, "user", "laptop", by="admin")
    gateway.restart()  # a process that runs may take a minute
    phone.value("insert", "todos", "r2", {"n": 2})
    phone.value("sync")

    assert waited(lambda: not laptop.status["isLive"])
    assert waited(lambda: (laptop.status["lastError"] or {}).get("code") == "REVOKED")
    assert laptop.rows() == {"r1": {"n": 1}}
    assert not gateway.sockets.open
