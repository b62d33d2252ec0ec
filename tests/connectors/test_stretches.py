"""A table that is read in stretches is the table that is read in pages. Law N16."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from lakesync.connectors import FEED, Divisible
from tests.support.sources import SqlSource

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lakesync.connectors import Change

pytestmark = pytest.mark.emulator

POLL_MS, ROWS, ASKED = 1_800_000_000_000, 95, 20
WAYS = ["postgres by time", "mariadb by time", "postgres captured", "mariadb captured"]


@pytest.fixture(params=WAYS)
def source(request: pytest.FixtureRequest) -> Iterator[SqlSource]:
    kind, _, way = str(request.param).partition(" ")
    database = request.getfixturevalue(kind)
    opened = SqlSource(database, kind, by_time=way == "by time", changes=way == "captured")
    yield opened
    opened.close()


def pages(connector: Any, table: str, cursor: str, ends: str = "") -> tuple[list[Change], str]:
    """Read to the end, or up to where a stretch ends; returns the changes, and the cursor."""
    changes: list[Change] = []
    while True:
        asked = {"rows_max": 7, "poll_ms": POLL_MS}
        if ends:
            page = connector.read_stretch(table, cursor, ends, **asked).unwrap()
        else:
            page = connector.read(table, cursor, **asked).unwrap()
        changes += page.changes
        cursor = page.cursor
        if not page.has_more:
            return changes, cursor


def stretches(connector: Any, table: str, cursor: str) -> Iterator[Any]:
    """Divide what lies behind a cursor, as a job does."""
    while True:
        stretch = connector.ahead(table, cursor, ASKED, poll_ms=POLL_MS).unwrap()
        if not stretch.ends:
            return
        yield stretch
        cursor = stretch.ends


@pytest.mark.law("N16")
def test_rows_read_in_stretches_equal_rows_read_in_pages(source: SqlSource) -> None:
    for number in range(ROWS):
        source.run(
            f"INSERT INTO {source.table} VALUES (%s, %s, %s)",  # noqa: S608 - our own name
            number, f"v{number}", f"2026-01-01 00:00:{number // 9:02}",
        )  # fmt: skip
    connector, table = source.connector(), source.table
    assert isinstance(connector, Divisible)
    if FEED in source.sources:
        pages(connector, FEED, "")
        assert connector.ahead(FEED, "", 1, poll_ms=POLL_MS).unwrap().ends == ""
    first = connector.read(table, "", rows_max=7, poll_ms=POLL_MS).unwrap()

    divided = list(stretches(connector, table, first.cursor))
    assert len(divided) == (ROWS - 7) // ASKED
    # Each by a connection of its own, and in any order.
    read = {one: pages(source.connector(), table, *one) for one in reversed(divided)}
    assert all(read[one][1] == one.ends for one in divided)
    assert {len(read[one][0]) for one in divided} == {ASKED}
    rest, cursor = pages(connector, table, divided[-1].ends)
    whole, expected = pages(source.connector(), table, first.cursor)
    assert [change for one in divided for change in read[one][0]] + rest == whole
    if FEED in source.sources:
        assert cursor == expected
        assert connector.ahead(table, cursor, 1, poll_ms=POLL_MS).unwrap().ends == ""
