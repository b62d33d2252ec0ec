"""History that is old moves into an archive: once, all of it, whoever dies or reads meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakesync.adapters.connect import history_archive
from lakesync.adapters.copying import Lifecycle, archive_table
from lakesync.adapters.database import PlacedDelta, Position, RowImages, TableBatch
from lakesync.adapters.history_archive import HistoryArchive
from lakesync.adapters.lake.memory import MemoryAdapter
from lakesync.adapters.memory import MemoryDatabase
from lakesync.core.clock import STAMP_MAX
from lakesync.errors import Conflict, CursorExpired, ValidationFailed
from lakesync.result import Err
from lakesync.systems.postgres.postgres_dialect import PostgresObjects
from lakesync.testing.database_contract import batch, history, numbered
from tests.support.archives import Dying, archive_on
from tests.support.destinations import postgres_dialect
from tests.support.lake import Killed, Life

if TYPE_CHECKING:
    from lakesync.adapters.lake.adapter import LakeAdapter
    from lakesync.core.delta import Delta
    from tools.local_stack.databases import Database

TABLE = "todos"


def deltas_from(commit: int, count: int, table: str = TABLE) -> list[PlacedDelta]:
    """Return deltas of commits in a row, two for each."""
    numbers = numbered(table, 2 * (commit + count))[2 * (commit - 1) : 2 * (commit - 1 + count)]
    return [PlacedDelta(Position(commit + n // 2, n % 2), one) for n, one in enumerate(numbers)]


def filled(commits: int = 6) -> tuple[MemoryDatabase, list[Delta]]:
    """Return a database with some commits, and their deltas."""
    database, deltas = MemoryDatabase(), numbered(TABLE, 2 * commits)
    database.insert_deltas(batch(TABLE, deltas)).unwrap()
    return database, deltas


def keys(objects: LakeAdapter) -> list[str]:
    return objects.list_objects("")


def moved(database: Any, archive: HistoryArchive, until: int, most: int = 100) -> int:
    return archive_table(database, archive, TABLE, until=until, deltas_max=most).unwrap().deltas


@pytest.mark.law("P15")
def test_archived_history_is_stored_in_files_named_by_their_range() -> None:
    database, deltas = filled()
    objects = MemoryAdapter()
    archive = archive_on(objects)

    assert moved(database, archive, until=4) == 8
    assert keys(objects) == [
        f"acme.warehouse.1/todos/archive/{0:020d}-{4:020d}.json.gz",
    ]
    assert archive.mark(TABLE).unwrap() == 4
    assert isinstance(database.query_deltas_since(TABLE, Position(3, 9), 9), Err)
    assert history(Lifecycle(database, archive), TABLE) == deltas
    assert moved(database, archive, until=4) == 0


@pytest.mark.law("P15")
def test_archiving_turn_is_bounded_and_the_next_one_continues(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lakesync.adapters.copying.DELTAS_READ", 3)
    database, deltas = filled(10)
    archive = archive_on(MemoryAdapter())
    turns = 0
    while moved(database, archive, until=9, most=1):
        turns += 1
        assert history(Lifecycle(database, archive), TABLE) == deltas
    assert turns >= 5
    assert archive.mark(TABLE).unwrap() == 9


@pytest.mark.law("P15")
@given(data=st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_history_is_complete_and_unique_wherever_archiving_is_killed(data: st.DataObject) -> None:
    database, deltas = filled(data.draw(st.integers(1, 8)))
    objects = MemoryAdapter()
    for _ in range(data.draw(st.integers(1, 4))):
        life = Life(data.draw(st.integers(0, 6)), last_happens=data.draw(st.booleans()))
        until = data.draw(st.integers(0, 9))
        try:
            dying: Any = Dying(database, life)
            archive_table(dying, archive_on(Dying(objects, life)), TABLE, until=until, deltas_max=1)
        except Killed:
            pass
        assert history(Lifecycle(database, archive_on(objects)), TABLE) == deltas
    while moved(database, archive_on(objects), until=9):
        pass
    assert history(Lifecycle(database, archive_on(objects)), TABLE) == deltas


@pytest.mark.law("P15")
def test_archiving_less_than_another_archiver_changes_nothing() -> None:
    database, deltas = filled()
    objects = MemoryAdapter()
    one, other = archive_on(objects), archive_on(objects)
    # Both read behind 0; one puts less, and moves on before the other puts its own.
    assert other.insert_deltas(TableBatch(TABLE, 0, 4, deltas_from(1, 4))).unwrap().deltas == 8
    objects.put_object(
        f"acme.warehouse.1/todos/archive/{0:020d}-{2:020d}.json.gz",
        objects.get_object(f"acme.warehouse.1/todos/archive/{0:020d}-{4:020d}.json.gz"),
        "",
    )
    database.forget_history(TABLE, 2).unwrap()
    assert history(Lifecycle(database, one), TABLE) == deltas
    assert one.insert_deltas(TableBatch(TABLE, 0, 3, deltas_from(1, 3))).unwrap().deltas == 0
    assert isinstance(one.insert_deltas(TableBatch(TABLE, 5, 6, deltas_from(6, 1))), Err)
    refused = one.insert_deltas(TableBatch(TABLE, 5, 6, deltas_from(6, 1)))
    assert isinstance(refused, Err)
    assert isinstance(refused.error, Conflict)


@pytest.mark.law("P15")
@pytest.mark.parametrize("theirs", [2, 4, 5])
@pytest.mark.parametrize("is_before", [False, True])
def test_concurrent_archivers_lose_no_history(theirs: int, *, is_before: bool) -> None:
    """One does all of its work right before the other puts, or right behind that."""
    database, deltas = filled()

    class Racing(MemoryAdapter):
        """Somebody else meets the first who puts something."""

        is_met = False

        def put_new_object(self, key: str, body: bytes, content_type: str) -> bool:
            if self.is_met:
                return super().put_new_object(key, body, content_type)
            self.is_met = True
            put = super().put_new_object
            is_new = False if is_before else put(key, body, content_type)
            moved(database, archive_on(self), until=theirs)
            return put(key, body, content_type) if is_before else is_new

    objects = Racing()
    moved(database, archive_on(objects), until=4)
    assert history(Lifecycle(database, archive_on(objects)), TABLE) == deltas
    while moved(database, archive_on(objects), until=6):
        pass
    assert history(Lifecycle(database, archive_on(objects)), TABLE) == deltas


@pytest.mark.law("P15")
def test_reader_continues_in_the_archive_when_history_moves_between_reads() -> None:
    database, deltas = filled()
    archive = archive_on(MemoryAdapter())

    class Moving(MemoryDatabase):
        """Before it answers, somebody moves what is asked for."""

        def query_deltas_since(self, table: str, since: Position, deltas_max: int) -> Any:
            moved(database, archive, until=5)
            return database.query_deltas_since(table, since, deltas_max)

    assert history(Lifecycle(Moving(), archive), TABLE) == deltas


@pytest.mark.law("P15")
def test_history_missing_everywhere_is_reported_as_a_gap() -> None:
    database, _ = filled(4)
    archive = archive_on(MemoryAdapter())
    moved(database, archive, until=2)
    database.put_rows(RowImages(TABLE, 4, 20, {})).unwrap()  # filled: what led there is not known
    assert moved(database, archive, until=10) == 0
    assert archive.mark(TABLE).unwrap() == 2
    later = deltas_from(21, 4)
    database.insert_deltas(TableBatch(TABLE, 20, 24, later)).unwrap()

    assert moved(database, archive, until=23) == 6
    both = Lifecycle(database, archive)
    first = both.query_deltas_since(TABLE, Position(), 100).unwrap()
    assert [one.position.commit for one in first.deltas] == [1, 1, 2, 2]
    for since in (Position(1, STAMP_MAX), Position(2, 1), Position(2, STAMP_MAX), Position(19)):
        answer = both.query_deltas_since(TABLE, since, 100)
        if since.commit == 1:
            assert [one.position.commit for one in answer.unwrap().deltas] == [2, 2]
        else:
            assert isinstance(answer, Err)
            assert isinstance(answer.error, CursorExpired)
    assert both.query_deltas_since(TABLE, Position(20, STAMP_MAX), 100).unwrap().deltas == tuple(
        later[:6]
    )
    rest = both.query_deltas_since(TABLE, Position(23, STAMP_MAX), 100).unwrap()
    assert rest.deltas == tuple(later[6:])


@pytest.mark.law("P15")
@pytest.mark.parametrize("until", [0, 1, 3, 4, 9])
def test_forgotten_archive_history_is_gone_and_the_mark_remains(until: int) -> None:
    objects = MemoryAdapter()
    archive = archive_on(objects)
    for after in (0, 2):
        span = TableBatch(TABLE, after, after + 2, deltas_from(after + 1, 2))
        archive.insert_deltas(span).unwrap()
    for _ in range(2):
        archive.forget_history(TABLE, until).unwrap()
        assert archive.mark(TABLE).unwrap() == 4
        left = [one for one in deltas_from(1, 4) if one.position.commit > until]
        at = Position(min(until, 4), STAMP_MAX)
        assert archive.query_deltas_since(TABLE, at, 99).unwrap().deltas == tuple(left)
        if until:
            assert isinstance(archive.query_deltas_since(TABLE, Position(), 9), Err)
    stored = "".join(keys(objects))
    assert (f"{0:020d}-" in stored) is (until == 0)


@pytest.mark.law("P15")
def test_cursor_inside_a_forgotten_commit_expires() -> None:
    database, _ = filled()
    archive = archive_on(MemoryAdapter())
    moved(database, archive, until=4)
    both = Lifecycle(database, archive)
    for since in (Position(4, 0), Position(3, 0)):
        rest = both.query_deltas_since(TABLE, since, 1).unwrap().deltas
        assert rest[0].position == (since.commit, 1)
    both.forget_history(TABLE, 4).unwrap()
    gone = both.query_deltas_since(TABLE, Position(4, 0), 9)
    assert isinstance(gone, Err)
    assert isinstance(gone.error, CursorExpired)
    assert len(both.query_deltas_since(TABLE, Position(4, STAMP_MAX), 9).unwrap().deltas) == 4


@pytest.mark.law("P15")
@pytest.mark.emulator
def test_an_archive_in_postgres_has_the_same_history_after_an_erasure(postgres: Database) -> None:
    told = []
    doomed = deltas_from(3, 1)[0].delta.row_id
    for objects in (MemoryAdapter(), PostgresObjects(postgres_dialect(postgres))):
        with archive_on(objects) as archive:
            for after in (0, 2, 4):
                span = TableBatch(TABLE, after, after + 2, deltas_from(after + 1, 2))
                archive.insert_deltas(span).unwrap()
            assert archive.erase_rows(TABLE, [doomed], 4).unwrap()
            history = archive.query_deltas_since(TABLE, Position(), 99).unwrap().deltas
            told.append((archive.mark(TABLE).unwrap(), history, len(keys(objects))))

    assert told[0] == told[1]
    assert doomed not in {one.delta.row_id for one in told[0][1] if one.position.commit <= 4}


@pytest.mark.law("P15")
def test_archive_url_selects_its_store_and_others_are_refused() -> None:
    assert isinstance(
        history_archive("s3://bucket/folder?region=eu-central-1", "g"), HistoryArchive
    )
    assert isinstance(history_archive("postgresql://u@h/d", "g"), HistoryArchive)
    for url in ("mysql://u@h/d", "s3://", "s3://b/f?x=1"):
        with pytest.raises(ValidationFailed):
            history_archive(url, "g")
