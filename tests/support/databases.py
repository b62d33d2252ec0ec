"""One PostgreSQL and one MariaDB for the whole run, started by the first test that asks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tools.local_stack.databases import Database, start_mariadb, start_postgres

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def postgres() -> Iterator[Database]:
    """A PostgreSQL, shared: a test makes a schema of its own."""
    with start_postgres() as database:
        yield database


@pytest.fixture(scope="session")
def mariadb() -> Iterator[Database]:
    """A MariaDB, shared: a test makes a database of its own."""
    with start_mariadb() as database:
        yield database
