"""SQL tables by a column of times: zones, and a source's clock that steps back."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.testing.connector_contract import Reader
from tests.support.sources import SqlSource

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lakesync.connectors import SourcePage
    from tools.local_stack.databases import Database

pytestmark = pytest.mark.emulator


def ids(pages: list[SourcePage]) -> list[str]:
    """Return the row ids of all changes."""
    return [change.row_id for page in pages for change in page.changes]


@pytest.fixture(params=["postgres", "mariadb"])
def zoneless(request: pytest.FixtureRequest) -> Iterator[SqlSource]:
    """A table whose times have no zone."""
    instant = "timestamp" if request.param == "postgres" else "datetime(6)"
    database = request.getfixturevalue(request.param)
    source = SqlSource(database, request.param, by_time=True, instant=instant)
    yield source
    source.close()


class Clock:
    """The clock of a source, which does as it is told."""

    def __init__(self, source: SqlSource, monkeypatch: pytest.MonkeyPatch) -> None:
        self.zone = UTC if source.is_postgres else None
        self.now = datetime(2026, 3, 2, 10, tzinfo=self.zone)
        monkeypatch.setattr(type(source.source), "now", lambda *_: self.now)

    def passes(self, **time: float) -> None:
        """Move on, or back."""
        self.now += timedelta(**time)


def insert(source: SqlSource, row_id: int, time: datetime, value: str = "x") -> None:
    """Insert a row with a change time, or change it."""
    source.run(f"DELETE FROM {source.table} WHERE id = %s", row_id)  # noqa: S608
    source.run(f"INSERT INTO {source.table} VALUES (%s, %s, %s)", row_id, value, time)  # noqa: S608


@pytest.mark.law("N5")
@pytest.mark.parametrize("hours", [-12, -5, 0, 2])
@pytest.mark.parametrize("rows_max", [2, 50])
def test_zoneless_times_are_all_read_whatever_their_utc_offset(
    zoneless: SqlSource, monkeypatch: pytest.MonkeyPatch, hours: int, rows_max: int
) -> None:
    clock, reader = Clock(zoneless, monkeypatch), Reader(zoneless)
    wanted: set[str] = set()
    reader.poll(rows_max)
    for number in range(1, 9):
        local = clock.now.replace(tzinfo=None) + timedelta(hours=hours, seconds=-30)
        insert(zoneless, number, local)
        insert(zoneless, 10 + number, local - timedelta(seconds=29))
        wanted |= {str(number), str(10 + number)}
        reader.again()
        reader.poll(rows_max)
        if hours <= 0:
            assert set(reader.rows) == wanted, "after each poll"
        clock.passes(minutes=7)
    clock.passes(hours=max(hours, 0))
    reader.poll(rows_max)
    assert set(reader.rows) == wanted, "what is ahead of UTC comes by then"

    clock.passes(minutes=2)
    reader.poll(rows_max)
    assert ids(reader.poll(rows_max)) == [], "a table at rest is not read again"


@pytest.mark.law("N5")
def test_zoneless_times_five_hours_behind_utc_are_read_after_a_poll(
    zoneless: SqlSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, reader = Clock(zoneless, monkeypatch), Reader(zoneless)
    insert(zoneless, 1, datetime(2026, 3, 2, 4, 59))  # noqa: DTZ001 - it has no zone
    reader.poll()
    clock.passes(minutes=1)
    insert(zoneless, 2, datetime(2026, 3, 2, 5, 0))  # noqa: DTZ001
    late = datetime(2026, 3, 2, 4, 58, 30)  # noqa: DTZ001
    insert(zoneless, 3, late)
    reader.poll()
    assert set(reader.rows) == {"1", "2", "3"}

    clock.passes(minutes=30)
    insert(zoneless, 4, clock.now.replace(tzinfo=None) + timedelta(hours=9))
    insert(zoneless, 5, datetime(2026, 3, 2, 5, 30))  # noqa: DTZ001
    reader.poll()
    clock.passes(minutes=1)
    insert(zoneless, 6, datetime(2026, 3, 2, 5, 31))  # noqa: DTZ001
    reader.poll()
    assert set(reader.rows) == {"1", "2", "3", "5", "6"}, "one that is ahead hides none"


@pytest.mark.law("N5")
def test_cursor_stored_by_an_older_release_is_continued(
    zoneless: SqlSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, reader = Clock(zoneless, monkeypatch), Reader(zoneless)
    at = clock.now.isoformat()
    for number, minutes in enumerate((-5, 1, 2, 3), 1):
        insert(zoneless, number, clock.now.replace(tzinfo=None) + timedelta(minutes=minutes))
    clock.passes(minutes=10)
    reader.cursors[zoneless.table] = json.dumps({"since": at})
    assert ids(reader.poll()) == ["2", "3", "4"]

    begun = {"since": at, "until": clock.now.isoformat(), "key": [2]}
    reader.cursors[zoneless.table] = json.dumps(begun)
    assert ids(reader.poll(rows_max=1)) == ["2", "3", "4"]


@pytest.fixture(params=["timestamptz", "timestamp", "timestamp(6)", "datetime(6)"])
def dated(request: pytest.FixtureRequest) -> Iterator[SqlSource]:
    """A table with a column of each type that holds times."""
    kind = "mariadb" if "(" in request.param else "postgres"
    database = request.getfixturevalue(kind)
    source = SqlSource(database, kind, by_time=True, instant=request.param)
    yield source
    source.close()


class Merged:
    """What the gateway has of a source that is polled by our clock, which never steps back."""

    def __init__(self, source: SqlSource, clock: Clock) -> None:
        self.source, self.clock = source, clock
        self.connector = source.connector()
        self.cursor = ""
        self.poll_ms = int(clock.now.replace(tzinfo=UTC).timestamp() * 1000)
        self.stamps: dict[str, int] = {}
        self.rows: dict[str, Any] = {}

    def poll(self, minutes: int = 1) -> set[tuple[str, int]]:
        """Poll some minutes later; give the rows that came with their stamps."""
        self.poll_ms += minutes * 60_000
        self.clock.passes(minutes=minutes)
        came: set[tuple[str, int]] = set()
        has_more = True
        while has_more:
            read = self.connector.read(
                self.source.table, self.cursor, rows_max=1, poll_ms=self.poll_ms
            )
            page = read.unwrap()
            self.cursor, has_more = page.cursor, page.has_more
            for row_id, columns, changed_us, *_ in page.changes:
                assert changed_us is not None
                assert columns is not None
                came.add((row_id, changed_us))
                if changed_us > self.stamps.get(row_id, 0):
                    self.stamps[row_id] = changed_us
                    self.rows[row_id] = self.source.value(columns)
        return came


@pytest.mark.law("N5")
def test_a_clock_that_steps_back_hides_no_row_and_no_change(
    dated: SqlSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(dated, monkeypatch)
    merged = Merged(dated, clock)
    for number in (1, 2):
        insert(dated, number, clock.now + timedelta(seconds=number), "before")
    merged.poll()
    clock.passes(hours=-1)
    insert(dated, 1, clock.now + timedelta(seconds=20), "changed")
    insert(dated, 3, clock.now + timedelta(seconds=10), "between")
    came = merged.poll()
    assert merged.rows == {"1": "changed", "2": "before", "3": "between"}

    assert merged.poll(0) <= came, "what comes again is a duplicate"
    insert(dated, 3, clock.now + timedelta(seconds=10), "again")
    merged.poll()
    assert merged.rows["3"] == "again"
    insert(dated, 3, clock.now + timedelta(minutes=70), "caught up")
    merged.poll(71)
    merged.poll()
    assert merged.rows["3"] == "caught up"
    assert "redating" not in merged.cursor


def test_check_says_which_times_have_no_zone(postgres: Database, mariadb: Database) -> None:
    for database, kind, instant, is_zoneless in (
        (postgres, "postgres", "timestamp", True), (postgres, "postgres", "timestamptz", False),
        (mariadb, "mariadb", "datetime(6)", True), (mariadb, "mariadb", "timestamp(6)", False),
    ):  # fmt: skip
        source = SqlSource(database, kind, by_time=True, instant=instant)
        sentence = source.connector().check().unwrap()
        source.close()
        assert ("has no zone and is read as of UTC." in sentence) == is_zoneless
