"""The local DynamoDBs that the model is held against."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.stores import Servers

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    """The local DynamoDBs, started when they are first asked for."""
    servers = Servers()
    try:
        yield servers
    finally:
        servers.close()
