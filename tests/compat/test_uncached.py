"""No answer may be kept by a cache, whichever route gave it and whatever it says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.compat.requests import row
from tests.compat.test_audit import FILLED, operations

if TYPE_CHECKING:
    from tests.compat.requests import Asker


@pytest.mark.law("U10")
@pytest.mark.parametrize("role", ["client", "operator", "admin"])
def test_answers_of_all_routes_forbid_caching(gateway: Asker, role: str) -> None:
    gateway.push(row())
    assert gateway.pull().headers["cache-control"] == "no-store"
    for name, (method, path) in operations().items():
        if name == "deleteGateway":
            continue
        address = path
        for part, text in FILLED.items():
            address = address.replace(part, text)
        for prefix in ("", "/v1"):
            answer = gateway.ask(method, prefix + address, role=role)
            assert answer.headers["cache-control"] == "no-store", (name, answer.status_code)


@pytest.mark.law("U10")
def test_answers_to_unserved_or_unauthorised_requests_forbid_caching(gateway: Asker) -> None:
    for method, path, token in (
        ("GET", "/none", None),
        ("PUT", "/sync/{}/push", None),
        ("GET", "/sync/{}/pull", "none"),
        ("GET", "/openapi.json", None),
        ("GET", "/lakesync.proto", None),
    ):
        answer = gateway.ask(method, path, token=token)
        assert answer.headers["cache-control"] == "no-store", (path, answer.status_code)
