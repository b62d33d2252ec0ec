"""Destinations on servers of MySQL and MariaDB that are set as some hosts set them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pymysql
import pytest

from lakesync.core.delta import Op, make_delta
from lakesync.errors import AdapterFailed, AdapterRefused, AdapterUnreachable
from lakesync.systems.mysql.mysql_dialect import translated
from lakesync.testing.database_contract import batch, schema
from tests.support.destinations import SqlDestination, mariadb_dialect, new_table

if TYPE_CHECKING:
    from tools.local_stack.databases import Database


@pytest.mark.emulator
@pytest.mark.law("P1", "P6")
def test_server_that_requires_primary_keys_works_as_destination(
    mariadb: Database,
) -> None:
    destination, table = SqlDestination(mariadb_dialect(mariadb)), new_table()
    setting = "sql_require_primary_key" if mariadb.is_mysql else "innodb_force_primary_key"
    wanted = schema(table, {"n": "integer"})
    inserted = make_delta(Op.INSERT, table, "r", {"n": 7}, client_id="c", hlc=1)
    destination.run(f"SET GLOBAL {setting} = ON")
    try:
        with destination.adapter() as adapter:
            adapter.insert_deltas(batch(table, [inserted], schema=wanted)).unwrap()
    finally:
        destination.run(f"SET GLOBAL {setting} = OFF")
    assert destination.rows(table, "n") == {"r": (7,)}


@pytest.mark.emulator
@pytest.mark.law("P8")
@pytest.mark.parametrize("state", ["ACCOUNT LOCK", "PASSWORD EXPIRE"])
def test_locked_or_expired_account_is_refused(mariadb: Database, state: str) -> None:
    destination = SqlDestination(mariadb_dialect(mariadb))
    user = f"writer_{mariadb.database}_{new_table()}"
    destination.run(f"CREATE USER {user} IDENTIFIED BY 'p' {state}")
    destination.run(f"GRANT ALL ON {mariadb.database}.* TO {user}")
    own = SqlDestination(replace(destination.dialect, user=user, password="p"))
    try:
        with own.adapter() as adapter:
            answer: Any = adapter.mark("t")
        assert type(answer.error) is AdapterRefused
    finally:
        destination.run(f"DROP USER {user}")


@pytest.mark.law("P8")
@pytest.mark.parametrize(
    ("number", "expected"),
    [(3032, AdapterUnreachable), (1836, AdapterRefused), (2026, AdapterRefused)],
)
def test_mysql_error_number_maps_to_an_adapter_error(
    number: int, expected: type[AdapterFailed]
) -> None:
    error = translated(pymysql.err.OperationalError(number, "The server is …"))
    assert type(error) is expected
