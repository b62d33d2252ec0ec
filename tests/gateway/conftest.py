"""One gateway in memory, for tests of what it answers."""

from __future__ import annotations

import pytest

from tests.support.gateways import GatewayWorld


@pytest.fixture
def world() -> GatewayWorld:
    return GatewayWorld()
