"""`lakesync diff`: what became of rows from one moment to another, however long ago."""

from __future__ import annotations

import csv
import random
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakesync.analysis.lake_queries import LakeChanges, pasts, read_tail, row_diffs
from lakesync.analysis.past import AtNumber, AtTime, Moment, last_commit
from lakesync.core.clock import stamp
from lakesync.core.delta import CHANGES, Op, make_delta
from lakesync.core.merge import as_read, fold, view
from tests.cli.test_history import edit, gateway, past, placed
from tests.support.command_lines import lines, run
from tests.support.lake_tables import FolderLake, materialise
from tests.support.local_gateway import GATEWAY
from tests.support.strategies import row_deltas

if TYPE_CHECKING:
    from lakesync.adapters.database import PlacedDelta
    from lakesync.core.delta import Delta
    from tests.support.local_gateway import LocalGateway

__all__ = ["gateway", "past"]  # the fixtures

TYPES = {"title": "string", "n": "json"}


def without_nulls(row: dict[str, bytes] | None) -> dict[str, bytes] | None:
    return row if row is None else {name: v for name, v in row.items() if v != b"null"}


@pytest.mark.law("H3")
@given(deltas=row_deltas, after=st.integers(0, 9), delete_wins=st.booleans())
def test_row_diffs_equal_the_difference_of_merged_rows(
    deltas: list[Delta], after: int, *, delete_wins: bool
) -> None:
    pasts_of = [("r1", iter(placed(*deltas)))] if deltas else []
    keeps = lambda one: one.position.commit <= after  # noqa: E731 - as the command gives it
    diffs = list(row_diffs(pasts_of, keeps, delete_wins=delete_wins))
    before, now = (
        without_nulls(view(as_read(fold(some), delete_wins=delete_wins)))
        for some in (deltas[:after], deltas)
    )

    assert [(one.before, one.after) for one in diffs] == ([(before, now)] if before != now else [])
    for one in diffs:
        assert one.change == (
            "inserted" if before is None else "deleted" if now is None else "changed"
        )


@pytest.mark.law("H1", "H3")
def test_changed_rows_of_lake_and_log_are_sorted_with_their_whole_past(tmp_path: Path) -> None:
    """Files overlap, rows span both, and some lie outside of the span."""
    chance = random.Random(7)
    rows = ["a", "b", "B", "é", "\uffee", "\U0001f600", "it's"]
    deltas = []
    for commit in range(1, 200):
        op, row = chance.choice(CHANGES), chance.choice(rows[: 1 + commit // 20])
        columns = {} if op is Op.DELETE else {chance.choice("tn"): chance.randrange(9)}
        deltas.append(
            make_delta(op, "todos", row, columns, client_id="c", hlc=chance.randrange(1, 99))
        )
    whole = placed(*deltas)
    lake = FolderLake(tmp_path, "g")
    for part in (whole[0:150:2], whole[1:150:2]):
        lake.put_changes("todos", part, {"t": "integer", "n": "json"}, mark=150)
    changes = LakeChanges(lake.of(), "todos")

    for after, until in ((0, 199), (0, 100), (60, 120), (140, 170), (160, 180), (150, 150), (7, 8)):
        with pasts(changes, whole[150:], (after, until)) as read:
            by_row = {row: list(of_row) for row, of_row in read}
        expected: dict[str, list[PlacedDelta]] = defaultdict(list)
        for one in whole[:until]:
            expected[one.delta.row_id].append(one)
        touched = {one.delta.row_id for one in whole[after:until]}
        assert list(by_row) == sorted(touched)
        assert by_row == {row: expected[row] for row in touched}


@pytest.mark.law("H3")
def test_diff_is_the_same_by_commit_stamp_and_by_snapshot(
    gateway: LocalGateway, past: FolderLake
) -> None:
    edit("t1", 'title="Milk"', "n=1")
    edit("t2", 'title="gone"')
    materialise(past, gateway.buffer, TYPES)
    [snapshot] = past.of().table("todos__changes").snapshots()
    mark = snapshot.summary.additional_properties["lakesync.commit"]
    edit("t1", "n=2", "title=null")
    edit("t2")
    edit("t3", "n=3", client="bob")
    edit("t4", "n=null")
    edit("t1", "n=1")
    edit("t1", "n=2")

    by_stamp = lines(run("diff", "todos", "--from", mark, "--json"))
    assert by_stamp == [
        {
            "change": "changed",
            "rowId": "t1",
            "before": {"n": 1, "title": "Milk"},
            "after": {"n": 2},
        },
        {"change": "deleted", "rowId": "t2", "before": {"title": "gone"}},
        {"change": "inserted", "rowId": "t3", "after": {"n": 3}},
        {"change": "inserted", "rowId": "t4", "after": {}},
    ]
    assert lines(run("diff", "todos", "--from", str(snapshot.snapshot_id), "--json")) == by_stamp
    materialise(past, gateway.buffer, TYPES)
    assert lines(run("diff", "todos", "--from", mark, "--json")) == by_stamp
    backwards = run("diff", "todos", "--from", "2100-01-01", "--to", mark)
    assert (backwards.exit_code, backwards.stderr) == (
        2, "error: --to is before --from: swap them\n",
    )  # fmt: skip
    nothing = run("diff", "todos", "--from", mark, "--to", mark)
    assert (nothing.exit_code, nothing.stdout) == (0, "")
    last = read_tail(gateway.buffer, GATEWAY, 0).deltas[-1].position.commit
    [undone] = lines(run("diff", "todos", "--from", str(last - 1), "--to", str(last), "--json"))
    assert (undone["before"], undone["after"]) == ({"n": 1}, {"n": 2})


def test_diff_is_printed_counted_and_written_to_a_file(
    gateway: LocalGateway, past: FolderLake
) -> None:
    edit("t1", 'title="Milk"')
    materialise(past, gateway.buffer, TYPES)
    edit("t2", "n=2")
    shown = run("diff", "TODOS", "--from", "2001-01-01")
    assert shown.exit_code == 0, shown.output
    assert shown.stderr.startswith("2 rows inserted, 0 deleted, 0 changed, up to 20")
    written = run("diff", "todos", "--from", "2001-01-01", "--file", "d.csv", "--lake-only")
    assert written.stdout.startswith("1 row inserted, 0 deleted, 0 changed: see d.csv")
    with Path("d.csv").open() as file:
        lines_read: list[Any] = list(csv.reader(file))
    assert lines_read[1:] == [["inserted", "t1", "title", "", '"Milk"']]
    for words, exit_code in ((("todos", "--from", "soon"), 2), (("nothing", "--from", "0"), 1)):
        done = run("diff", *words)
        assert done.exit_code == exit_code
        assert done.stderr.startswith(
            "error: --from 'soon' is not a point in time"
            if "soon" in words
            else "error: there is no table"
        )


def test_a_time_or_snapshot_resolves_to_a_last_commit_stamp() -> None:
    table = [Moment(71, 1_000, 10), Moment(72, 2_000, 20)]
    assert last_commit(AtNumber(72), [table]) == 20
    assert last_commit(AtNumber(15), [table]) == 15
    assert last_commit(AtTime(5), [table]) == stamp(6) - 1
