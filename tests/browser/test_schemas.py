"""Refused edits and new columns, as a page of an app that was made before meets them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.gateways import administrator
from tests.support.local_gateway import GATEWAY, LocalGateway

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.chromium import App

pytestmark = pytest.mark.browser


def declare(gateway: LocalGateway, table: str, **columns: str) -> None:
    typed = [{"name": name, "type": kind} for name, kind in columns.items()]
    wanted = {"table": table, "columns": typed}
    administrator(gateway.buffer).register_schema(GATEWAY, wanted)


@pytest.mark.law("K7", "K28")
def test_refused_edit_is_amended_in_the_page_and_others_have_gone_on(
    tab: Callable[..., App], gateway: LocalGateway
) -> None:
    declare(gateway, "todos", title="string", n="number")
    page, other = tab().opened("page"), tab().opened("other")
    page.value("insert", "todos", "r1", {"title": "wrong", "n": "three"})
    page.value("transaction", [["insert", "todos", "r2", {"n": 2}], ["delete", "todos", "r3"]])
    page.value("insert", "todos", "r4", {"n": "four"})
    page.value("sync")
    other.value("sync")
    assert other.rows() == {"r2": {"n": 2}}
    first, second = page.ask("quarantined")
    assert (first["rowId"], first["code"]) == ("r1", "SCHEMA_ERROR")
    assert page.rows() == {
        "r1": {"title": "wrong", "n": "three"}, "r2": {"n": 2}, "r4": {"n": "four"}
    }  # fmt: skip
    assert page.status["quarantined"] == 2

    page.value("amend", first["deltaId"], {"n": 3})
    page.value("discard", second["deltaId"])
    page.value("sync")

    assert page.ask("quarantined") == []
    other.value("sync")
    assert page.rows() == other.rows() == {"r1": {"title": "wrong", "n": 3}, "r2": {"n": 2}}


@pytest.mark.law("K7")
def test_refused_edits_are_there_after_the_page_was_closed(
    tab: Callable[..., App], gateway: LocalGateway
) -> None:
    declare(gateway, "todos", n="number")
    page = tab().opened("page")
    page.value("insert", "todos", "r1", {"n": "one"})
    page.value("sync")
    context = page.page.context
    page.page.close()

    again = tab(context).opened("page")

    (refused,) = again.ask("quarantined")
    assert refused["columns"] == {"n": "one"}
    again.value("amend", refused["deltaId"], {"n": 1})
    again.value("sync")
    assert again.rows() == {"r1": {"n": 1}}
    assert again.status["waiting"] == again.status["quarantined"] == 0


def test_page_that_was_opened_before_a_table_and_a_column_were_added_goes_on(
    tab: Callable[..., App], gateway: LocalGateway
) -> None:
    declare(gateway, "todos", title="string")
    older, newer = tab().opened("older"), tab().opened("newer")
    older.value("insert", "todos", "r1", {"title": "Buy milk"})
    older.value("sync")

    declare(gateway, "todos", title="string", due="string", stars="integer")
    declare(gateway, "lists", name="string")
    newer.value("sync")
    newer.value("update", "todos", "r1", {"due": "2031-01-01", "stars": 5})
    newer.value("insert", "lists", "l1", {"name": "Shop"})
    newer.value("sync")
    older.value("update", "todos", "r1", {"title": "Buy bread"})
    older.value("sync")

    assert older.status["quarantined"] == older.status["waiting"] == 0
    assert older.rows()["r1"]["title"] == "Buy bread"
    assert older.rows()["r1"]["due"] == "2031-01-01"
    assert older.rows("lists") == {"l1": {"name": "Shop"}}
    newer.value("sync")
    assert newer.rows() == older.rows()
