"""A dialect of one's own, with little but types and a connection, keeps the contracts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from lakesync.adapters.sql.standard import StandardDialect
from lakesync.errors import AdapterFailed, AdapterUnreachable, ConstraintViolated
from lakesync.testing.database_contract import DatabaseContract
from lakesync.testing.fillable_contract import FillableContract
from lakesync.testing.materialisable_contract import MaterialisableContract
from tests.support.destinations import SqlDestination, postgres_dialect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lakesync.adapters.sql.adapter import SqlAdapter
    from tools.local_stack.databases import Database


class Plain(StandardDialect):
    """PostgreSQL, by no more than it has of the standard."""

    types = {  # noqa: RUF012 - as in the guide
        "string": 'text COLLATE "C"', "number": "double precision", "boolean": "boolean",
        "json": "text", "integer": "bigint", "timestamp": "timestamptz", "date": "date",
        "bytes": "bytea",
    }  # fmt: skip

    def __init__(self, server: Database) -> None:
        self._server = postgres_dialect(server)

    def connect(self) -> Any:
        """Connect as PostgreSQL does."""
        return self._server.connect()

    def value(self, value: object) -> object:
        """Refuse what its text cannot hold."""
        return self._server.value(value)


@pytest.fixture
def destination(postgres: Database) -> Iterator[SqlDestination]:
    destination = SqlDestination(Plain(postgres))
    yield destination
    destination.close()


@pytest.mark.emulator
@pytest.mark.law("P1", "P2", "P3", "P11")
class TestRows(DatabaseContract, FillableContract):
    """Row states and history."""

    @pytest.fixture
    def make(self, destination: SqlDestination) -> Callable[[], SqlAdapter]:
        return destination.adapter


@pytest.mark.emulator
@pytest.mark.law("P1", "P6", "P7")
class TestTables(MaterialisableContract):
    """Tables to query."""


@pytest.mark.parametrize(
    ("name", "base", "ours"),
    [
        ("UniqueViolation", "IntegrityError", ConstraintViolated),
        ("OutOfRange", "DataError", ConstraintViolated),
        ("Gone", "OperationalError", AdapterUnreachable),
        ("Closed", "InterfaceError", AdapterUnreachable),
        ("Syntax", "ProgrammingError", AdapterFailed),
    ],
)
def test_driver_errors_are_translated_by_their_class_names(
    name: str, base: str, ours: type
) -> None:
    error = type(name, (type(base, (type("Error", (Exception,), {}),), {}),), {})("it\nfailed")
    dialect: Any = type("Mine", (Plain,), {"__init__": lambda _: None})()

    assert type(dialect.translate(error)) is ours
    assert dialect.translate(error).message == "Mine: it failed"
    assert dialect.is_row_fault(error) == (ours is ConstraintViolated)
    assert dialect.translate(KeyError("a bug")) is None
