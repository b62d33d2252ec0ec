"""Destinations on servers of MySQL and MariaDB that are set as some hosts set them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lakesync.core.delta import Op, make_delta
from lakesync.testing.batches import batch, schema
from tests.support.destinations import SqlDestination, mariadb_dialect, new_table

if TYPE_CHECKING:
    from tools.local_stack.databases import Database


@pytest.mark.emulator
@pytest.mark.law("P1", "P6")
def test_a_server_that_takes_no_table_without_a_primary_key_is_a_destination(
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
