"""A destination of a real PostgreSQL whose history a function moves into a real bucket's folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lakesync.adapters.copying import Lifecycle
from lakesync.adapters.database import Position
from lakesync.core.clock import STAMP_MAX
from lakesync.result import Err
from lakesync.testing.database_contract import batch, history, numbered
from tests.support.archives import everything
from tests.support.buckets import BucketDatabases
from tests.support.destinations import SqlDestination, new_table, postgres_dialect

if TYPE_CHECKING:
    from tools.local_stack.aws_emulator import Emulator
    from tools.local_stack.databases import Database


@pytest.mark.law("E9", "P10", "P15")
@pytest.mark.emulator
def test_history_moves_from_postgres_into_a_bucket(
    postgres: Database, emulator: Emulator, credentials: None
) -> None:
    del credentials
    table = new_table()
    database = SqlDestination(postgres_dialect(postgres)).adapter()
    archive = BucketDatabases(emulator.endpoint).archive("acme/warehouse/1")
    deltas = numbered(table, 12)
    database.insert_deltas(batch(table, deltas)).unwrap()
    both = Lifecycle(database, archive)
    for until in (2, 2, 5):
        both.archive_until(until).unwrap()
        assert history(both, table) == deltas
        assert archive.mark(table).unwrap() == until
        expired = database.query_deltas_since(table, Position(until - 1, STAMP_MAX), 9)
        assert isinstance(expired, Err)
    for _ in range(2):
        assert archive.erase_rows(table, ["r3"], 5).unwrap()
        kept = [delta for delta in deltas[:10] if delta.row_id != "r3"]
        assert [one.delta for one in everything(archive, table)] == kept
    both.forget_history(table, 6).unwrap()
    assert isinstance(both.query_deltas_since(table, Position(), 9), Err)
    both.close()
