"""What every connector promises, proved for those of this repository."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lakesync.testing.connector_contract import ConnectorContract
from tests.support.sources import MemorySource, SqlSource
from tests.support.vendors.jira import JiraServer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tools.local_stack.databases import Database

SQL = ["postgres by time", "postgres by difference", "mariadb by time", "mariadb by difference"]


@pytest.mark.law("N1", "N2", "N3")
class TestInMemory(ConnectorContract):
    """The source in memory."""

    @pytest.fixture
    def bench(self) -> MemorySource:
        """A source of its own."""
        return MemorySource()


@pytest.mark.emulator
@pytest.mark.law("N1", "N2", "N3", "N5")
class TestSql(ConnectorContract):
    """PostgreSQL and MariaDB, both ways."""

    @pytest.fixture(params=SQL)
    def bench(self, request: pytest.FixtureRequest) -> Iterator[SqlSource]:
        """A table of its own in a real database."""
        kind, _, way = request.param.partition(" by ")
        database: Database = request.getfixturevalue(kind)
        source = SqlSource(database, kind, by_time=way == "time")
        yield source
        source.close()


@pytest.mark.law("N1", "N2", "N3", "N10")
class TestJira(ConnectorContract):
    """Jira Cloud, played by a server."""

    @pytest.fixture
    def bench(self) -> Iterator[JiraServer]:
        """A site of its own."""
        with JiraServer() as site:
            yield site
