"""What a page has and may do, when its token, its rights or the gateway's rules change."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.gateway.access import AccessAdmin
from tests.support.gateways import administrator
from tests.support.local_gateway import GATEWAY, LocalGateway

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.chromium import App, Site

pytestmark = pytest.mark.browser

OWN = {"buckets": [{"name": "own", "tables": [],
                    "filters": [{"column": "owner", "op": "eq", "value": "jwt:sub"}]}]}  # fmt: skip
TEAM = {"buckets": [{"name": "team", "tables": [],
                     "filters": [{"column": "team", "op": "eq",
                                  "value": "jwt:team"}]}]}  # fmt: skip
NO_TITLE = {"tables": ["todos"], "columns": ["title"],
            "except": [{"claim": "role_at_work", "op": "eq", "value": "hr"}]}  # fmt: skip


def claims(site: Site, **given: Any) -> None:
    """Have the app's server issue tokens with these claims from now on."""
    site.token = lambda client: site.gateway.token(client, **given)  # type: ignore[method-assign]


def signed_in_anew(app: App, client: str) -> App:
    """Load the page again, as one does after signing in: it asks for a new token."""
    app.page.reload()
    app.page.wait_for_function("globalThis.app?.isReady")
    return app.opened(client)


def test_token_that_has_expired_is_asked_for_anew(tab: Callable[..., App], site: Site) -> None:
    issued: list[str] = []

    def token(client: str) -> str:
        # The first has expired when it is used.
        expires = int(time.time()) + (600 if issued else -600)
        issued.append(site.gateway.token(client, exp=expires))
        return issued[-1]

    site.token = token  # type: ignore[method-assign]
    page = tab().opened("page")
    page.value("insert", "todos", "r1", {"n": 1})

    page.value("sync")

    assert page.status["waiting"] == 0
    assert len(issued) == 2


def test_edits_wait_while_only_expired_tokens_are_issued_and_the_page_is_told(
    tab: Callable[..., App], site: Site
) -> None:
    claims(site, exp=int(time.time()) - 600)
    page = tab().opened("page")
    page.value("insert", "todos", "r1", {"n": 1})

    assert page.ask("sync")["error"]["code"] == "AUTH_ERROR"
    assert page.status["waiting"] == 1
    assert page.status["lastError"]["code"] == "AUTH_ERROR"

    claims(site)
    page.value("sync")
    assert page.status["waiting"] == 0
    assert page.status["lastError"] is None


def test_page_of_a_revoked_user_is_told_and_keeps_its_edits(
    tab: Callable[..., App], gateway: LocalGateway
) -> None:
    page, other = tab().opened("page"), tab().opened("other")
    page.value("insert", "todos", "r1", {"n": 1})
    page.value("sync")
    admin = AccessAdmin(gateway.access, wall_clock=gateway.now_ms)
    admin.revoke(GATEWAY, "user", "page", by="admin")
    gateway.restart()  # a process that runs may take a minute
    page.value("insert", "todos", "r2", {"n": 2})

    refused = page.ask("sync")["error"]

    assert refused["code"] == "REVOKED"
    assert page.status["waiting"] == 1
    assert page.status["quarantined"] == 0
    assert page.rows() == {"r1": {"n": 1}, "r2": {"n": 2}}
    admin.restore(GATEWAY, "user", "page")
    gateway.restart()
    page.value("sync")
    other.value("sync")
    assert other.rows() == {"r1": {"n": 1}, "r2": {"n": 2}}


@pytest.mark.law("K15")
def test_rules_that_change_take_rows_away_and_give_them_back(
    tab: Callable[..., App], gateway: LocalGateway
) -> None:
    page, other = tab().opened("page"), tab().opened("other")
    for row, owner in (("r1", "page"), ("r2", "other"), ("r3", "other")):
        other.value("insert", "todos", row, {"owner": owner})
    other.value("sync")
    page.value("sync")
    assert set(page.rows()) == {"r1", "r2", "r3"}
    page.value("update", "todos", "r3", {"note": "mine"})

    administrator(gateway.buffer).save_rules(GATEWAY, OWN)
    page.value("sync")

    (refused,) = page.ask("quarantined")
    assert refused["rowId"] == "r3"
    assert page.rows() == {"r1": {"owner": "page"}, "r3": {"note": "mine"}}
    page.value("discard", refused["deltaId"])
    assert set(page.rows()) == {"r1"}
    administrator(gateway.buffer).save_rules(GATEWAY, {"buckets": []})
    page.value("sync")
    assert set(page.rows()) == {"r1", "r2", "r3"}


@pytest.mark.law("K15")
def test_claims_that_change_show_other_rows_and_lose_no_edit(
    tab: Callable[..., App], gateway: LocalGateway, site: Site
) -> None:
    administrator(gateway.buffer).save_rules(GATEWAY, TEAM)
    claims(site, team="red")
    page = tab().opened("page")
    page.value("insert", "todos", "r1", {"team": "red"})
    page.value("sync")
    claims(site, team="blue")
    other = tab().opened("other")
    other.value("insert", "todos", "r2", {"team": "blue"})
    other.value("sync")
    page.value("insert", "todos", "r3", {"team": "blue"})

    signed_in_anew(page, "page").value("sync")

    assert page.status["waiting"] == page.status["quarantined"] == 0
    assert page.rows() == {"r2": {"team": "blue"}, "r3": {"team": "blue"}}
    claims(site, team="red")
    signed_in_anew(page, "page").value("sync")
    assert page.rows() == {"r1": {"team": "red"}}


@pytest.mark.law("K33")
def test_columns_that_rules_omit_leave_the_browser_and_return_when_claims_allow(
    tab: Callable[..., App], gateway: LocalGateway, site: Site
) -> None:
    page, other = tab().opened("page"), tab().opened("other")
    other.value("insert", "todos", "r1", {"title": "secret", "n": 1})
    other.value("sync")
    page.value("insert", "todos", "r2", {"title": "my own", "n": 2})
    page.value("sync")
    assert page.rows()["r1"] == {"title": "secret", "n": 1}

    administrator(gateway.buffer).save_rules(GATEWAY, {"buckets": [], "omit": [NO_TITLE]})
    page.value("sync")

    assert page.rows() == {"r1": {"n": 1}, "r2": {"n": 2}}
    stored = page.page.evaluate("app.stored()")
    assert "secret" not in stored
    assert "my own" not in stored
    assert '"n"' in stored
    claims(site, role_at_work="hr")
    signed_in_anew(page, "page").value("sync")
    assert page.rows() == {"r1": {"title": "secret", "n": 1}, "r2": {"title": "my own", "n": 2}}
