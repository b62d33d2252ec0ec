"""Two devices, each with a page: what one writes, the other shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.chromium import App
    from tests.support.local_gateway import LocalGateway

pytestmark = pytest.mark.browser


@pytest.mark.law("K6")
def test_rows_that_one_device_writes_are_on_the_other_after_both_have_synced(
    tab: Callable[..., App],
) -> None:
    laptop, phone = tab().opened("laptop"), tab().opened("phone")
    laptop.value("insert", "todos", "r1", {"title": "Buy milk", "n": 1.5})
    phone.value("insert", "todos", "r2", {"title": "\U0001f600"})
    laptop.value("sync")
    phone.value("sync")
    phone.value("update", "todos", "r1", {"done": True})
    phone.value("sync")
    laptop.value("sync")

    assert laptop.rows() == phone.rows() == {
        "r1": {"title": "Buy milk", "n": 1.5, "done": True}, "r2": {"title": "\U0001f600"}
    }  # fmt: skip
    assert laptop.status["isDurable"]
    assert laptop.status["waiting"] == phone.status["waiting"] == 0


def test_browser_asks_once_whether_a_page_of_another_origin_may_push_and_pull(
    tab: Callable[..., App], gateway: LocalGateway
) -> None:
    page = tab().opened("page")
    for number in range(3):
        page.value("insert", "todos", f"r{number}", {"n": number})
        page.value("sync")

    asked = [request for request in gateway.requests if request.startswith("OPTIONS")]
    assert sorted(asked) == ["OPTIONS /sync/g1/pull", "OPTIONS /sync/g1/push"]
