"""One gateway over HTTP for the requests of this folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.compat.requests import Asker
from tests.support.local_gateway import serve_gateway

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.local_gateway import LocalGateway


@pytest.fixture(scope="module")
def served() -> Iterator[LocalGateway]:
    with serve_gateway() as served:
        yield served


@pytest.fixture
def gateway(served: LocalGateway, request: pytest.FixtureRequest) -> Asker:
    """A gateway that no other test of the module uses."""
    number = abs(hash(request.node.nodeid)) % 10**12
    return Asker(served, f"t{number}")
