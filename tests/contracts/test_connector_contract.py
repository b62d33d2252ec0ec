"""What every connector promises, proved for those of this repository."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lakesync.testing.connector_contract import ConnectorContract
from tests.support.bigquery_sources import BigQuerySource
from tests.support.dlt_sources import Api, DltSql, Folder
from tests.support.sources import MemorySource, SqlSource
from tests.support.vendors.jira import JiraServer
from tests.support.vendors.salesforce import SalesforceServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tools.local_stack.bigquery import BigQueryServer
    from tools.local_stack.databases import Database

SQL = [
    "postgres by time", "postgres by difference", "postgres by changes",
    "mariadb by time", "mariadb by difference", "mariadb by changes",
    "postgres by time of a query", "postgres by difference of a query",
    "mariadb by time of a query", "mariadb by difference of a query",
]  # fmt: skip
QUERY = """
    SELECT t.id, concat(t.value, o.more) AS value, t.changed
    FROM {table} AS t JOIN (SELECT '' AS more, '100%s' AS kind) AS o ON o.kind LIKE '100%'
    WHERE t.id < 1000 -- rows of a join, some of them"""

BIGQUERY_QUERY = """
    SELECT t.id, CONCAT(t.value, o.more) AS value, t.changed
    FROM `{table}` AS t CROSS JOIN (SELECT '' AS more, '100%s' AS kind) AS o
    WHERE t.id < 1000 AND o.kind LIKE '100%' -- some rows of a join"""
WAYS = ("time", "difference")


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
    """PostgreSQL and MariaDB, each way."""

    @pytest.fixture(params=SQL)
    def bench(self, request: pytest.FixtureRequest) -> Iterator[SqlSource]:
        """A table of its own in a real database."""
        kind, _, way = request.param.partition(" by ")
        way, _, queried = way.partition(" of ")
        database: Database = request.getfixturevalue(kind)
        source = SqlSource(
            database, kind, by_time=way == "time", changes=way == "changes",
            query=QUERY if queried else "",
        )  # fmt: skip
        yield source
        source.close()


@pytest.mark.emulator
@pytest.mark.law("N1", "N2", "N3", "N5")
class TestBigQuery(ConnectorContract):
    """BigQuery, a table and a query, both ways; each statement parsed as BigQuery's."""

    @pytest.fixture(params=[f"{what} by {way}" for what in ("table", "query") for way in WAYS])
    def bench(
        self, request: pytest.FixtureRequest, bigquery: BigQueryServer
    ) -> Iterator[BigQuerySource]:
        """A table of its own on the emulator."""
        what, _, way = request.param.partition(" by ")
        query = BIGQUERY_QUERY if what == "query" else ""
        source = BigQuerySource(bigquery, by_time=way == "time", query=query)
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


@pytest.mark.law("N1", "N2", "N3", "N11")
class TestSalesforce(ConnectorContract):
    """Salesforce, played by a server: page by page, and its first load in bulk."""

    @pytest.fixture(params=[0, 20_000], ids=["in bulk", "page by page"])
    def bench(self, request: pytest.FixtureRequest) -> Iterator[SalesforceServer]:
        """An organisation of its own, with small pages."""
        with SalesforceServer() as org:
            org.page_max, org.bulk_rows_min, org.job_states = 3, request.param, ["JobComplete"]
            yield org


@pytest.mark.law("N1", "N2", "N3", "N15")
class TestDltRest(ConnectorContract):
    """dlt's source of REST APIs: by times with deletions marked, and all at each poll."""

    @pytest.fixture(params=[True, False], ids=["by time", "replaced"])
    def bench(self, request: pytest.FixtureRequest) -> Iterator[Api]:
        """An API of its own."""
        with Api(by_time=request.param) as api:
            yield api


@pytest.mark.emulator
@pytest.mark.law("N1", "N2", "N3", "N15")
class TestDltSql(ConnectorContract):
    """dlt's source of SQL databases, both ways."""

    @pytest.fixture(
        params=[
            "postgres by time",
            "postgres replaced",
            "mariadb by time",
            "mariadb replaced",
            "postgres by time at postgresql",
            "mariadb by time at acme",
            "mariadb replaced at acme",
        ]
    )
    def bench(self, request: pytest.FixtureRequest) -> Iterator[DltSql]:
        """A table of its own in a real database; that of a dialect of somebody's, too."""
        param, _, driver = request.param.partition(" at ")
        kind, _, way = param.partition(" ")
        database = request.getfixturevalue(kind)
        source = DltSql(database, kind, by_time=way == "by time", driver=driver)
        yield source
        source.close()


@pytest.mark.law("N1", "N2", "N3", "N15")
class TestDltFiles(ConnectorContract):
    """dlt's source of files."""

    @pytest.fixture(params=["jsonl", "csv"])
    def bench(self, request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
        """A folder of its own."""
        return Folder(tmp_path, request.param)
