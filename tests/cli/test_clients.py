"""`lakesync clients` against a real gateway."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest

from lakesync.ports import Connection
from tests.cli.test_declaring import gateway, run
from tests.support.local_gateway import GATEWAY

if TYPE_CHECKING:
    from tests.support.local_gateway import LocalGateway

__all__ = ["gateway"]  # the fixture


@pytest.mark.law("U7")
def test_clients_are_listed_disconnected_and_revoked(gateway: LocalGateway) -> None:
    gateway.access.bind(GATEWAY, "p1", "ann")
    gateway.connections.add(Connection(GATEWAY, "s1", "p1", "ann", time.time() + 60, 0, {}))

    (listed,) = run("clients", "list", GATEWAY, "--connected", "--json").stdout.splitlines()
    assert json.loads(listed)["client"] == "p1"
    assert "ann" in run("clients", "list", GATEWAY).stdout
    assert "closed: 1 connection" in run("clients", "disconnect", GATEWAY, "p1").stdout
    assert "no client" in run("clients", "list", GATEWAY, "--connected").stdout
    assert "revoked within a minute" in run("clients", "revoke", GATEWAY, "p1").stdout
    assert "revoked" in run("clients", "list", GATEWAY).stdout
