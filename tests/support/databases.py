"""One server of each kind for the whole run, started by the first test that asks."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud.bigquery import Client

from tests.support.bigquery import DATASET
from tests.support.mysql_server import database_on
from tests.support.stores import Address, with_table
from tests.support.waiting import PATIENCE_S
from tools.local_stack.aws_emulator import Emulator, start_emulator
from tools.local_stack.bigquery import BigQueryServer, start_bigquery
from tools.local_stack.databases import Database, start_mariadb, start_postgres
from tools.local_stack.dynamodb_local import start_dynamodb_local

if TYPE_CHECKING:
    from collections.abc import Iterator

TEST_MYSQL = "LAKESYNC_TEST_MYSQL"
"""The variable with the URL of a MySQL for tests alone, in which the fixture `mariadb` is then."""


@pytest.fixture(scope="session")
def postgres() -> Iterator[Database]:
    """A PostgreSQL, shared: a test makes a schema of its own."""
    with start_postgres() as database:
        yield database


@pytest.fixture(scope="session")
def mariadb() -> Iterator[Database]:
    """A MariaDB, shared: a test makes a database of its own.

    Where `TEST_MYSQL` is set, it is a database of that server, gone in the end.
    """
    url = os.environ.get(TEST_MYSQL, "")
    with database_on(url) if url else start_mariadb() as database:
        yield database


@pytest.fixture(scope="session")
def bigquery() -> Iterator[BigQueryServer]:
    """A BigQuery emulator, shared: a test makes tables of its own."""
    with start_bigquery() as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("BIGQUERY_EMULATOR_HOST", server.endpoint)
        client = Client(project=server.project, credentials=AnonymousCredentials())
        client.create_dataset(DATASET, timeout=PATIENCE_S)
        client.close()
        yield server


@pytest.fixture(scope="session")
def emulator() -> Iterator[Emulator]:
    """An AWS emulator, shared: a test makes buckets, tables and databases of its own."""
    with start_emulator() as emulator:
        yield emulator


@pytest.fixture(scope="session")
def emulated_dynamodb(emulator: Emulator) -> Address:
    """The buffer's table in the emulator, shared: a test takes a gateway of its own."""
    return with_table(emulator.client_options())


@pytest.fixture(scope="session")
def dynamodb_local() -> Iterator[Address]:
    """The buffer's table in DynamoDB Local, shared: a test takes a gateway of its own."""
    with start_dynamodb_local() as local:
        yield with_table(local.client_options())
