"""History is forgotten with age, little by little, and never a delta of it in silence. Law P12."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pytest

from lakesync.adapters.copying import compare_table, copy_table
from lakesync.adapters.database import HISTORY_MS, ORDINAL_END, Position
from lakesync.adapters.memory import MemoryDatabase
from lakesync.adapters.sql import adapter as sql_adapter
from lakesync.adapters.sql import ledger as sql_ledger
from lakesync.core.clock import stamp
from lakesync.core.delta import Op, make_delta
from lakesync.errors import CursorExpired
from lakesync.result import Err, Ok
from lakesync.systems.bigquery.bigquery_statements import ledger_tables
from lakesync.testing.database_contract import batch, history, new_table, numbered, schema
from tests.support.bigquery import PartsAdapter, bigquery_destination
from tests.support.destinations import (
    SqlDestination,
    mariadb_dialect,
    new_gateway,
    postgres_dialect,
)
from tests.support.interrupted import CUTS_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lakesync.adapters.database import TableBatch
    from lakesync.core.clock import Stamp
    from tests.support.destinations import Destination

pytestmark = pytest.mark.emulator

DAY_MS: Final = 86_400_000


@pytest.fixture(params=["postgres", "mariadb"])
def database(request: pytest.FixtureRequest) -> Iterator[SqlDestination]:
    """A database of each kind that forgets with each transaction."""
    dialect = postgres_dialect if request.param == "postgres" else mariadb_dialect
    with closing(SqlDestination(dialect(request.getfixturevalue(request.param)))) as destination:
        yield destination


def daily(table: str, days: int) -> list[TableBatch]:
    """Make a batch for each of some days, of one delta."""
    batches, after = list[Any](), 0
    wanted = schema(table, {"n": "number"})
    for day, delta in enumerate(numbered(table, days), start=1):
        one = batch(table, [delta], after=stamp(day * DAY_MS), schema=wanted)
        batches.append(replace(one, after=after))
        after = one.last
    return batches


def kept(database: SqlDestination, gateway: str, table: str) -> tuple[Stamp, list[Stamp]]:
    """Return up to where history was forgotten, and the commits that are there."""
    of = "WHERE gateway = %s AND table_name = %s"
    [(forgotten,)] = database.run(
        f"SELECT forgotten FROM lakesync_marks {of}",  # noqa: S608 - ours
        gateway, table,
    )  # fmt: skip
    commits = database.run(
        f"SELECT commit_stamp FROM lakesync_commits {of} ORDER BY commit_stamp",  # noqa: S608
        gateway, table,
    )  # fmt: skip
    return forgotten, [commit for (commit,) in commits]


@pytest.mark.law("P12")
def test_delivery_forgets_a_bounded_part_until_only_young_history_remains(
    database: SqlDestination, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_adapter, "COMMITS_FORGOTTEN", 2)
    gateway, table = new_gateway(), new_table()
    batches = daily(table, 20)
    whole = database.adapter(gateway)
    for one in batches[:12]:
        whole.insert_deltas(one).unwrap()
    commits = [one.last for one in batches]
    assert kept(database, gateway, table) == (0, commits[:12]), "who is told nothing keeps all"

    adapter = database.adapter(gateway, history_ms=5 * DAY_MS)
    for taken, oldest in ((13, 3), (14, 6), (15, 9), (16, 11), (17, 12)):
        adapter.insert_deltas(batches[taken - 1]).unwrap()
        expected = commits[oldest - 1], commits[oldest:taken]
        assert kept(database, gateway, table) == expected, "two more than it added, by age"
        adapter.insert_deltas(batches[taken - 1]).unwrap()
        assert kept(database, gateway, table) == expected, "a batch that comes again changes none"

    assert adapter.mark(table).unwrap() == commits[16]
    states = [adapter.latest_state(table, f"r{n}").unwrap() for n in range(17)]
    assert states == [{"n": n} for n in range(17)]
    assert len(database.rows(table)) == 17
    assert expired(adapter, table, Position(commits[10]))
    behind = adapter.query_deltas_since(table, Position(commits[11], ORDINAL_END), 100).unwrap()
    assert [delta.row_id for _, delta in behind.deltas] == [f"r{n}" for n in range(12, 17)]
    target = MemoryDatabase()
    copy_table(adapter, target, table).unwrap()
    assert compare_table(adapter, target, table).unwrap().is_equal

    adapter.forget_history(table, commits[16]).unwrap()  # as an erasure does
    assert kept(database, gateway, table) == (commits[16], [])
    adapter.insert_deltas(batches[17]).unwrap()
    assert kept(database, gateway, table) == (commits[16], commits[17:18])


@pytest.mark.law("P12", "P7")
def test_dead_letter_outlives_the_history_of_its_row(database: SqlDestination) -> None:
    gateway, table = new_gateway(), new_table()
    adapter = database.adapter(gateway, history_ms=DAY_MS)
    wanted = schema(table, {"n": "integer"})
    bad = make_delta(Op.INSERT, table, "r0", {"n": "no number"}, client_id="c", hlc=1)
    first = replace(batch(table, [bad], after=stamp(DAY_MS)), after=0, schema=wanted)
    refused = adapter.insert_deltas(first).unwrap().dead_letters
    later = batch(table, numbered(table, 3)[1:], after=stamp(9 * DAY_MS), schema=wanted)
    adapter.insert_deltas(replace(later, after=first.last)).unwrap()

    assert kept(database, gateway, table) == (first.last, [later.last])
    assert [letter.row_id for letter in refused] == ["r0"]
    assert adapter.dead_letters(table).unwrap() == refused
    assert adapter.rows_of(table, ["r0"]).unwrap()


@pytest.mark.law("P12", "P4")
def test_delivery_cut_off_anywhere_forgets_its_whole_part_or_none(
    database: SqlDestination,
) -> None:
    """Deltas, mark, what is gone and up to where: of one transaction."""
    for cut in range(1, CUTS_MAX):
        gateway, table = new_gateway(), new_table()
        batches = daily(table, 9)
        before = database.adapter(gateway)
        for one in batches[:8]:
            before.insert_deltas(one).unwrap()
        commits = [one.last for one in batches]
        lost = database.interrupted(cut).adapter(gateway, history_ms=4 * DAY_MS)
        result = lost.insert_deltas(batches[8])
        states = {8: (0, commits[:8]), 9: (commits[4], commits[5:])}
        taken = commits.index(before.mark(table).unwrap()) + 1
        assert kept(database, gateway, table) == states[taken], cut
        whole = database.adapter(gateway, history_ms=4 * DAY_MS)
        whole.insert_deltas(batches[8]).unwrap()
        assert kept(database, gateway, table) == states[9]
        database.close()
        if isinstance(result, Ok):
            return
    pytest.fail("it was always cut")


@pytest.mark.law("P12", "P9")
def test_reader_misses_no_delta_or_gets_cursor_expired_while_history_is_forgotten(
    database: SqlDestination, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes as the reader looks for where it begins, and between two of its reads."""
    monkeypatch.setattr(sql_ledger, "COMMITS_READ", 2)
    looked = sql_ledger.Ledger._marks
    for looks in range(1, 5):
        gateway, table = new_gateway(), new_table()
        batches = daily(table, 6)
        reader, other = database.adapter(gateway), database.adapter(gateway)
        for one in batches:
            reader.insert_deltas(one).unwrap()
        left = [looks]

        def marks(
            ledger: sql_ledger.Ledger, name: str, left: list[int] = left, other: Any = other
        ) -> tuple[Stamp, Stamp]:
            answer = looked(ledger, name)
            left[0] -= 1
            if left[0] == 0:
                other.forget_history(name, batches[4].last).unwrap()  # noqa: B023 - used at once
            return answer

        monkeypatch.setattr(sql_ledger.Ledger, "_marks", marks)
        page = reader.query_deltas_since(table, Position(), 10)
        monkeypatch.setattr(sql_ledger.Ledger, "_marks", looked)
        if isinstance(page, Err):
            assert isinstance(page.error, CursorExpired)
        else:
            read = [delta.row_id for _, delta in page.value.deltas]
            assert read == [f"r{n}" for n in range(6)], looks


@pytest.mark.law("P12")
@pytest.mark.parametrize("in_parts", [False, True])
def test_bigquery_forgets_old_history_with_the_first_write_of_a_day(
    request: pytest.FixtureRequest, *, in_parts: bool
) -> None:
    server = request.getfixturevalue("bigquery")
    destination: Destination = (
        bigquery_destination(server, PartsAdapter) if in_parts else bigquery_destination(server)
    )
    with closing(destination):
        gateway, table = new_gateway(), new_table()
        adapter = destination.adapter(gateway, history_ms=HISTORY_MS)
        ledger = ledger_tables(gateway, table).commits

        def commits() -> int:
            [(count,)] = adapter._jobs.query(f"SELECT COUNT(*) FROM {ledger}")  # noqa: S608 - ours
            return int(count)

        def taken(day: float, after: Stamp, number: int) -> Stamp:
            [delta] = numbered(table, number + 1)[number:]
            one = replace(batch(table, [delta], after=stamp(int(day * DAY_MS))), after=after)
            adapter.insert_deltas(one).unwrap()
            return one.last

        first = taken(1, 0, 0)
        second = taken(2, first, 1)
        third = taken(36.5, second, 2)  # the first is older than 35 days, the second is not
        assert commits() == 2
        assert expired(adapter, table, Position())
        assert (
            len(adapter.query_deltas_since(table, Position(first, ORDINAL_END), 9).unwrap().deltas)
            == 2
        )
        fourth = taken(36.9, third, 3)
        assert commits() == 3, "the same day"
        taken(99, fourth, 4)
        assert commits() == 1
        assert [adapter.latest_state(table, f"r{n}").unwrap() for n in range(5)] == [
            {"n": n} for n in range(5)
        ]


@pytest.mark.law("P12")
def test_without_a_history_age_nothing_is_forgotten(database: SqlDestination) -> None:
    """As an archive needs it, which takes history before it is forgotten."""
    table = new_table()
    adapter = database.adapter()
    batches = daily(table, 3)
    batches[2] = replace(batches[2], last=stamp(900 * DAY_MS))
    for one in batches:
        adapter.insert_deltas(one).unwrap()
    assert history(adapter, table) == numbered(table, 3)


def expired(adapter: Any, table: str, since: Position) -> bool:
    """Return whether a reader is told that the history behind a position is gone."""
    answer = adapter.query_deltas_since(table, since, 10)
    return isinstance(answer, Err) and isinstance(answer.error, CursorExpired)
