"""Two existing clients, written in JavaScript, on a gateway with rules."""

from __future__ import annotations

from tests.support.local_gateway import GATEWAY, SECRET, serve_gateway
from tests.support.node import run_node

SCRIPT = "../compat/two_clients.mjs"


def test_two_existing_clients_end_with_exactly_their_visible_rows() -> None:
    with serve_gateway() as served:
        rows = run_node(SCRIPT, {"url": served.url, "gateway": GATEWAY, "secret": SECRET})

    assert rows["a"] == rows["b"] == rows["c"]
    assert len(rows["a"]) == 4
    assert any(request.startswith("GET /sync/g1/pull?since=0&") for request in served.requests)
