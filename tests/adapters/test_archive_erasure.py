"""Rows are erased from an archive: they alone, whoever dies, archives or reads meanwhile."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakesync.adapters.copying import Lifecycle, archive_table
from lakesync.adapters.database import ORDINAL_END, PlacedDelta, Position, TableBatch
from lakesync.adapters.lake.memory import MemoryAdapter
from lakesync.adapters.memory import MemoryDatabase
from lakesync.core.delta import Op, make_delta
from lakesync.errors import Contention, CursorExpired
from lakesync.result import Err, Ok
from tests.support.archives import Dying, Meeting, archive_on, everything, stored_text
from tests.support.lake import Killed, Life

if TYPE_CHECKING:
    from collections.abc import Sequence

TABLE = "todos"
ROWS = ("ann-1", "bob-2", "cid-3")
COMMITS = 8
ANN, BOB = "ann-1", "bob-2"


def a_history(commits: int = COMMITS) -> list[PlacedDelta]:
    """Return a history in which ann is in half of the commits, twice in some, and then deleted."""
    placed = []
    for commit in range(1, commits + 1):
        rows = [ANN, BOB, ANN, "cid-3"] if commit % 4 == 1 else [BOB, "cid-3"]
        if commit % 4 == 2:
            rows = [ANN]
        for place, row in enumerate(rows):
            op = Op.DELETE if row == ANN and commit > commits - 4 else Op.UPDATE
            columns = {} if op is Op.DELETE else {"n": commit * 10 + place}
            delta = make_delta(op, TABLE, row, columns, client_id="c", hlc=commit * 10 + place)
            placed.append(PlacedDelta(Position(commit, place), delta))
    return placed


HISTORY = a_history()


def without(rows: Sequence[str], history: Sequence[PlacedDelta] = HISTORY) -> list[PlacedDelta]:
    """Return a history without some rows; all others keep their places."""
    return [one for one in history if one.delta.row_id not in rows]


def fill(objects: MemoryAdapter, commits: int = COMMITS, size: int = 2) -> MemoryAdapter:
    """Archive the first commits, in files of so many."""
    archive = archive_on(objects)
    for after in range(0, commits, size):
        last = min(after + size, commits)
        some = [one for one in HISTORY if after < one.position.commit <= last]
        archive.insert_deltas(TableBatch(TABLE, after, last, some)).unwrap()
    return objects


def erase(objects: Any, *rows: str, until: int = COMMITS) -> None:
    """Erase rows, as a worker does that is asked again until it is done."""
    for _ in range(9):
        answer = archive_on(objects).erase_rows(TABLE, rows or (ANN,), until)
        if isinstance(answer, Ok) or not isinstance(answer.error, Contention):
            assert answer.unwrap()
            return
    raise AssertionError("it was never done")


def database(history: Sequence[PlacedDelta] = HISTORY) -> MemoryDatabase:
    """Return a database that has a history."""
    made = MemoryDatabase()
    made.insert_deltas(TableBatch(TABLE, 0, history[-1].position.commit, history)).unwrap()
    return made


def check_erased(objects: MemoryAdapter, *rows: str) -> None:
    """Hold an archive against its history without some rows."""
    rows = rows or (ANN,)
    assert everything(archive_on(objects), TABLE) == without(rows)
    assert archive_on(objects).mark(TABLE).unwrap() == COMMITS
    text = stored_text(objects)
    assert not [row for row in rows if row.encode() in text]


@pytest.mark.law("E9", "P15")
def test_erasure_removes_the_row_and_leaves_everything_else_unchanged() -> None:
    objects = fill(MemoryAdapter())
    before = {key: objects.get_object(key) for key in objects.list_objects("")}
    erase(objects)

    check_erased(objects)
    after = {key: objects.get_object(key) for key in objects.list_objects("")}
    same = {key for key in before if before[key] == after.get(key)}
    assert sorted(key[-9:] for key in same) == ["4.json.gz", "8.json.gz"]
    assert not (before.keys() - same) & after.keys(), "what was written anew has other keys"
    assert len(after) == 4 + 1
    erase(objects)
    assert objects.list_objects("") == sorted(after), "repeated, it does nothing"


@pytest.mark.law("E9", "P15")
def test_erasure_of_a_missing_row_changes_no_file() -> None:
    objects = fill(MemoryAdapter())
    before = objects.list_objects("")
    heads = [objects.head_object(key) for key in before]
    erase(objects, "nobody", "no one")
    assert objects.list_objects("")[: len(before)] == before
    assert [objects.head_object(key) for key in before] == heads
    assert everything(archive_on(objects), TABLE) == HISTORY


@pytest.mark.law("E9", "P15")
def test_erasure_keeps_later_deltas_of_the_row() -> None:
    """It was made again after its deletion: that is another past."""
    objects = fill(MemoryAdapter())
    erase(objects, BOB, until=4)
    kept = [one for one in HISTORY if one.delta.row_id != BOB or one.position.commit > 4]
    assert everything(archive_on(objects), TABLE) == kept


@pytest.mark.law("E9", "P15")
def test_many_rows_are_erased_at_once() -> None:
    objects = fill(MemoryAdapter(), size=3)
    erase(objects, ANN, BOB, *(f"other-{n}" for n in range(60)))
    check_erased(objects, ANN, BOB)


@pytest.mark.law("E9", "P15")
@pytest.mark.parametrize("last_happens", [False, True])
def test_erasure_killed_anywhere_is_completed_by_the_next_one(*, last_happens: bool) -> None:
    for writes in range(40):
        objects = fill(MemoryAdapter())
        erase(objects, "cid-3")
        life = Life(writes, last_happens=last_happens)
        try:
            erase(Dying(objects, life))
        except Killed:
            seen = everything(archive_on(objects), TABLE)
            assert seen in (without(["cid-3"]), without([ANN, "cid-3"])), "none sees half of it"
            erase(objects)
        else:
            assert writes > 4
            check_erased(objects, ANN, "cid-3")
            return
        check_erased(objects, ANN, "cid-3")
        files = [key for key in objects.list_objects("") if key.endswith(".gz")]
        assert len(files) == 4, "nothing is left over"


@pytest.mark.law("E9", "P15")
def test_erasure_continues_where_time_ran_out() -> None:
    objects = fill(MemoryAdapter())

    class Counting(MemoryAdapter):
        """It counts how often a file is read."""

        def get_object(self, key: str) -> bytes:
            if key.endswith(".gz"):
                read.append(key)
            return super().get_object(key)

    read: list[str] = []
    counting = Counting()
    counting._objects = objects._objects
    turns, is_done = 0, False
    while not is_done:
        has_time = partial(next, iter([True]), False)
        is_done = archive_on(counting).erase_rows(TABLE, [ANN], COMMITS, has_time).unwrap()
        seen = everything(archive_on(objects), TABLE)
        assert without([ANN], seen) == without([ANN])
        turns += 1
    assert turns == 4
    assert len(read) == 4, "no file was read twice"
    check_erased(objects)
    assert not archive_on(objects).erase_rows(TABLE, [BOB], COMMITS, lambda: False).unwrap()
    check_erased(objects)


@pytest.mark.law("E9", "P15")
def test_concurrent_erasures_of_different_rows_both_succeed() -> None:
    for at in range(40):
        objects = Meeting(at, lambda own: erase(own, BOB))
        fill(objects)
        objects.is_begun = True
        erase(objects, ANN)
        if not objects.has_met:
            assert at > 8
            return
        check_erased(objects, ANN, BOB)
    raise AssertionError("it never came to an end")


@pytest.mark.law("E9", "P15")
def test_concurrent_erasures_of_the_same_row_succeed() -> None:
    for at in range(40):
        objects = Meeting(at, erase)
        fill(objects)
        objects.is_begun = True
        erase(objects)
        check_erased(objects)
        assert objects.has_met or at > 8


def moved(database: Any, objects: Any, until: int) -> None:
    archive_table(database, archive_on(objects), TABLE, until=until).unwrap()


def erase_all(database: MemoryDatabase, objects: Any) -> None:
    """Erase ann as a delivery does: history moves into the archive before it is forgotten."""
    moved(database, objects, COMMITS)
    database.forget_history(TABLE, COMMITS).unwrap()
    erase(objects)


@pytest.mark.law("E9", "P15")
@pytest.mark.parametrize("until", [3, 4, 7, 8])
def test_erasure_during_archiving_removes_the_row(until: int) -> None:
    """The archiver has read what is then erased, and puts it or not, before or after."""
    for at in range(40):
        source = database()
        objects = Meeting(at, lambda own, source=source: erase_all(source, own))  # type: ignore[misc]
        fill(objects, commits=2)
        objects.is_begun = True
        with suppress(CursorExpired):  # the database forgot what it was just asked for
            moved(source, objects, until)
        if not objects.has_met:
            erase_all(source, objects)
            assert at > 0
            return
        check_erased(objects)
    raise AssertionError("it never came to an end")


@pytest.mark.law("E9", "P15")
@pytest.mark.parametrize("until", [3, 6, 8])
def test_erasure_removes_the_row_despite_archiving_in_between(until: int) -> None:
    for at in range(40):
        source = database()
        objects = Meeting(at, lambda own, source=source: moved(source, own, until))  # type: ignore[misc]
        fill(objects, commits=2)
        objects.is_begun = True
        erase_all(source, objects)
        objects.is_begun = False
        check_erased(objects)
        if not objects.has_met:
            assert at > 0
            return
    raise AssertionError("it never came to an end")


def put_late(
    objects: MemoryAdapter, after: int, last: int, history: Sequence[PlacedDelta] = HISTORY
) -> None:
    """Put what an archiver puts that read it long ago, and died right behind that."""
    asleep = MemoryAdapter()
    some = [one for one in history if after < one.position.commit <= last]
    archive_on(asleep).begin_anew(TABLE, after).unwrap()
    archive_on(asleep).insert_deltas(TableBatch(TABLE, after, last, some)).unwrap()
    key = asleep.list_objects("")[-1]
    objects.put_object(key, asleep.get_object(key), "")


@pytest.mark.law("E9", "P15")
@pytest.mark.parametrize(("after", "last"), [(2, 4), (0, 8), (2, 12), (7, 12)])
def test_file_archived_too_late_is_not_read_and_is_swept_by_the_next_run(
    after: int, last: int
) -> None:
    """The archiver slept between reading and putting, and died right behind that."""
    objects = fill(MemoryAdapter())
    erase(objects)
    later = a_history(12)
    put_late(objects, after, last, later)

    expected = without([ANN]) + [one for one in later if COMMITS < one.position.commit <= last]
    assert everything(archive_on(objects), TABLE) == expected
    moved(database(), objects, until=0)
    assert everything(archive_on(objects), TABLE) == expected
    names = [key.rpartition("/")[2] for key in objects.list_objects("")]
    if last > COMMITS:
        assert f"{COMMITS:020d}-{last:020d}.json.gz" in names
    else:
        check_erased(objects)
    plain = [name for name in names if name.startswith(f"{after:020d}-{last:020d}.")]
    assert not plain or (after, last) == (2, 4), "a file of that name was never erased from"


@pytest.mark.law("E9", "P15")
def test_erasure_removes_the_row_wherever_a_late_archived_file_arrives() -> None:
    for at in range(40):
        objects = Meeting(at, lambda own: put_late(own, 2, 8))
        fill(objects, commits=6)
        erase(objects, "cid-3", until=6)
        objects.is_begun = True
        erase(objects, ANN, until=6)
        objects.is_begun = False
        end = 8 if objects.has_met else 6
        expected = [one for one in HISTORY if one.position.commit <= end
                    and (one.delta.row_id == BOB or one.position.commit > 6)]  # fmt: skip
        assert everything(archive_on(objects), TABLE) == expected
        archive_on(objects).sweep(TABLE).unwrap()
        assert everything(archive_on(objects), TABLE) == expected
        assert ANN.encode() not in stored_text(objects)
        if not objects.has_met:
            assert at > 0
            return
    raise AssertionError("it never came to an end")


@pytest.mark.law("E9", "P15")
def test_file_archived_too_late_into_an_empty_archive_is_not_read() -> None:
    objects = MemoryAdapter()
    erase(objects)
    assert archive_on(objects).mark(TABLE).unwrap() == COMMITS
    put_late(objects, 0, COMMITS)
    archive_on(objects).sweep(TABLE).unwrap()
    [index] = objects.list_objects("")
    assert index.endswith("/index-000000000001.json")


@pytest.mark.law("E9", "P15")
def test_sweep_killed_anywhere_is_completed_by_the_next_one() -> None:
    for writes in range(9):
        objects = fill(MemoryAdapter(), commits=6)
        erase(objects, until=6)
        put_late(objects, 2, 8)
        expected = [one for one in HISTORY if one.delta.row_id != ANN or one.position.commit > 6]
        with suppress(Killed):
            archive_on(Dying(objects, Life(writes))).sweep(TABLE).unwrap()
        assert everything(archive_on(objects), TABLE) == expected
        archive_on(objects).sweep(TABLE).unwrap()
        assert everything(archive_on(objects), TABLE) == expected
        assert len(objects.list_objects("")) == 3 + 1 + 1


@pytest.mark.law("P15")
def test_reader_of_a_replaced_file_sees_history_before_or_after_the_erasure() -> None:
    for at in range(9):
        objects = Meeting(at, erase)
        fill(objects)
        objects.is_begun = True
        read = everything(archive_on(objects), TABLE, deltas_max=100)
        assert read in (HISTORY, without([ANN]))


@pytest.mark.law("E9", "P15")
def test_reader_that_may_hold_the_erased_row_gets_cursor_expired() -> None:
    """The deletion is erased as well: nobody else would tell."""
    source, objects = database(a_history(10)), MemoryAdapter()
    both = Lifecycle(source, archive_on(objects))
    moved(source, objects, COMMITS)
    erase(objects)
    for since in (Position(), Position(1, 1), Position(COMMITS, 0), Position(7, ORDINAL_END)):
        answer = both.query_deltas_since(TABLE, since, 9)
        assert isinstance(answer, Err)
        assert isinstance(answer.error, CursorExpired)
    page = both.query_deltas_since(TABLE, Position(COMMITS, ORDINAL_END), 9).unwrap()
    assert [one.position.commit for one in page.deltas] == [9, 9, 9, 9, 10]
    both.forget_history(TABLE, 4).unwrap()
    left = [one for one in without([ANN]) if one.position.commit > 4]
    page = archive_on(objects).query_deltas_since(TABLE, Position(4, ORDINAL_END), 99).unwrap()
    assert list(page.deltas) == left


@pytest.mark.law("P15")
def test_missing_archive_object_is_reported_as_a_gap() -> None:
    objects = fill(MemoryAdapter())
    erase(objects)
    gone = next(key for key in objects.list_objects("") if f"{6:020d}.0" in key)
    objects.delete_object(gone)
    archive = archive_on(objects)
    assert isinstance(archive.query_deltas_since(TABLE, Position(4, ORDINAL_END), 9), Err)
    page = archive.query_deltas_since(TABLE, Position(6, ORDINAL_END), 9).unwrap()
    assert [one.position.commit for one in page.deltas] == [7, 7, 8, 8]
    assert archive.mark(TABLE).unwrap() == COMMITS


@pytest.mark.law("E9", "P15")
@given(
    acts=st.lists(
        st.tuples(
            st.sampled_from(["archive", "erase", "forget"]), st.integers(1, 9), st.integers(0, 12),
            st.sampled_from(ROWS),
        ),
        max_size=8,
    ),
    last_happens=st.booleans(),
)  # fmt: skip
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_archive_lacks_only_erased_and_forgotten_deltas_after_any_kills(
    acts: list[tuple[str, int, int, str]], *, last_happens: bool
) -> None:
    """Processes archive, erase and forget, and die; each erasure is repeated in the end."""
    source, objects = database(), MemoryAdapter()
    asked: set[tuple[str, int]] = set()
    forgotten = 0
    for what, until, writes, row in acts:
        life = Life(writes, last_happens=last_happens)
        own: Any = Dying(objects, life)
        with suppress(Killed):
            if what == "archive":
                archive_table(Dying(source, life), archive_on(own), TABLE, until=until)
            elif what == "erase":
                end = min(until, archive_on(objects).mark(TABLE).unwrap())
                asked.add((row, end))
                archive_on(own).erase_rows(TABLE, [row], end).unwrap()
            else:
                forgotten = max(forgotten, min(until, archive_on(objects).mark(TABLE).unwrap()))
                archive_on(own).forget_history(TABLE, until).unwrap()
    for row, until in asked:
        archive_on(objects).erase_rows(TABLE, [row], until).unwrap()
    archive_on(objects).forget_history(TABLE, forgotten).unwrap()
    while archive_table(source, archive_on(objects), TABLE, until=COMMITS).unwrap().deltas:
        pass
    expected = [
        one for one in HISTORY
        if one.position.commit > forgotten
        and not any(one.delta.row_id == row and one.position.commit <= end for row, end in asked)
    ]  # fmt: skip
    since, read = Position(forgotten, ORDINAL_END), list[PlacedDelta]()
    while page := archive_on(objects).query_deltas_since(TABLE, since, 3).unwrap().deltas:
        read += page
        since = page[-1].position
    assert read == expected
