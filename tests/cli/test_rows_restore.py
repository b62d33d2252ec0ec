"""`lakesync rows restore`: rows become what they were, for everyone, and nobody's edit is lost."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lakesync.analysis.connection import UsageFault
from lakesync.analysis.lake_queries import RowDiff, matching, row_diffs, shown
from lakesync.cli.commands.rows import Plan, Selection, deltas_for, restoring
from lakesync.core.merge import as_read, fold
from tests.cli.test_declaring import write
from tests.cli.test_history import edit, gateway, past, placed
from tests.support.builders import delete, insert, update
from tests.support.command_lines import lines, run
from tests.support.lake_tables import materialise
from tests.support.strategies import FEW_CLIENTS, row_deltas

if TYPE_CHECKING:
    from lakesync.core.delta import Delta
    from tests.support.lake_tables import FolderLake
    from tests.support.local_gateway import LocalGateway

__all__ = ["gateway", "past"]  # the fixtures

TYPES = {"title": "string", "n": "json", "more": "json"}
RESTORE = ("rows", "restore", "todos")
PLAN = Path("restore-todos.plan")


def rows() -> dict[str, dict[str, object]]:
    """Return the table as every client sees it; what is null is left out."""
    pulled = lines(run("pull", "--rows", "--table", "todos", "--json"))
    return {
        row.pop("_row_id"): {
            name: v for name, v in row.items() if v is not None and name != "table"
        }
        for row in pulled
    }


@pytest.fixture
def moment(gateway: LocalGateway, past: FolderLake) -> str:
    """A moment before which there were two rows, and after which everything changed."""
    edit("t1", 'title="Milk"', "n=1")
    edit("t2", 'title="Bread"')
    materialise(past, gateway.buffer, TYPES)
    [snapshot] = past.of().table("todos__changes").snapshots()
    edit("t1", 'title="???"', "more=1", client="vandal")
    edit("t2", client="vandal")
    edit("t3", "n=3", client="bob")
    return str(snapshot.summary.additional_properties["lakesync.commit"])


BEFORE = {"t1": {"title": "Milk", "n": 1}, "t2": {"title": "Bread"}}


# --- what is planned ------------------------------------------------------------------------------


@pytest.mark.law("H4")
@given(
    deltas=row_deltas,
    commit=st.integers(0, 8),
    by=st.sampled_from(["", *FEW_CLIENTS]),
    now=st.integers(1, 9),
    delete_wins=st.booleans(),
)
@example(
    deltas=[insert(at=1, p=1), delete(at=2), update(at=3, q=1)],
    commit=1,
    by="",
    now=5,
    delete_wins=True,
)
def test_the_planned_deltas_restore_the_merged_row(
    deltas: list[Delta], commit: int, by: str, now: int, *, delete_wins: bool
) -> None:
    selection = Selection("g", "todos", commit, by=by)
    stay = [one.delta for one in placed(*deltas) if selection.keeps(one)]
    plan = Plan(selection, "restore", 9)
    pasts_of = [("r1", iter(placed(*deltas)))] if deltas else []
    made = [
        delta
        for diff in row_diffs(pasts_of, selection.keeps, delete_wins=delete_wins)
        for delta in deltas_for(plan, restoring(diff), now)
    ]
    rows = [as_read(fold(some), delete_wins=delete_wins) for some in ([*deltas, *made], stay)]

    assert shown(rows[0]) == shown(rows[1])
    assert all(delta.hlc >= now for delta in made)
    if not by:
        assert stay == deltas[:commit]


def test_a_where_condition_matches_the_row_before_or_after() -> None:
    diffs = [
        RowDiff("a", {"n": b"1"}, None),
        RowDiff("b", {"n": b'"none"'}, {"n": b"5", "dueDate": b'"2024-02-29"'}),
        RowDiff("c", None, {"n": b"2"}),
    ]
    columns = {"n": ("integer", "n"), "due_date": ("date", "dueDate")}

    def ids(where: str) -> list[str]:
        return [diff.row_id for diff in matching(diffs, where, columns)]

    assert ids("") == ["a", "b", "c"]
    assert ids("n between 1 and 2") == ["a", "c"]
    assert ids("dueDate > '2024-01-01'") == ["b"]
    assert ids("n is null or _id = 'c'") == ["b", "c"]
    for where in ("nothing = 1", "1 = 1) or (", "n; drop table t"):
        with pytest.raises(UsageFault, match="--where was refused"):
            list(matching([], where, columns))


def test_a_where_condition_is_applied_to_thousands_of_rows() -> None:
    diffs = [RowDiff(f"r{n}", {"n": str(n).encode()}, None) for n in range(2_500)]
    hits = matching(diffs, "n % 500 = 0", {"n": ("integer", "n")})
    assert [diff.row_id for diff in hits] == ["r0", "r500", "r1000", "r1500", "r2000"]


# --- the command ----------------------------------------------------------------------------------


@pytest.mark.law("H4")
def test_restored_rows_are_the_earlier_ones_in_gateway_and_lake(
    moment: str, gateway: LocalGateway, past: FolderLake
) -> None:
    shown_first = run(*RESTORE, "--to", moment, "--dry-run")
    assert shown_first.exit_code == 0, shown_first.output
    assert '"???"' in shown_first.stdout
    assert "1 row inserted, 1 deleted, 1 changed; nothing was pushed" in shown_first.stdout
    assert rows()["t1"]["title"] == "???"

    done = run(*RESTORE, "--to", moment)
    assert done.exit_code == 0, done.output
    assert done.stdout == "3 deltas accepted\n"
    assert rows() == BEFORE
    assert not PLAN.exists()
    materialise(past, gateway.buffer, TYPES)
    same = run("diff", "todos", "--from", moment, "--json")
    assert (same.exit_code, same.stdout) == (0, "")
    assert lines(run("history", "todos", "t2", "--json"))[-1]["clientId"] == "restore"
    again = run(*RESTORE, "--to", moment, "--json")
    assert lines(again) == [{"accepted": 0, "duplicates": 0, "refused": [], "edited": []}]


@pytest.mark.law("H5")
@pytest.mark.parametrize("died_after", [0, 1, 2])
def test_a_killed_restore_continues_with_the_same_deltas(
    moment: str, gateway: LocalGateway, died_after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lakesync.client import HttpTransport  # noqa: PLC0415

    push, calls = HttpTransport.push, iter(range(died_after))

    def dies(self: HttpTransport, pushed: object) -> object:
        if next(calls, None) is None:
            raise KeyboardInterrupt
        return push(self, pushed)  # type: ignore[arg-type]

    monkeypatch.setattr("lakesync.cli.commands.rows._BATCH_DELTAS", 1)
    monkeypatch.setattr(HttpTransport, "push", dies)
    assert run(*RESTORE, "--to", moment).exit_code == 130
    monkeypatch.setattr(HttpTransport, "push", push)
    other = run(*RESTORE, "--to", moment, "--row", "t1")
    assert other.exit_code == 2
    assert "is the plan of another restore" in other.stderr
    assert "--overwrite" in other.stderr
    kept = PLAN.read_bytes()
    assert run(*RESTORE, "--to", moment, "--row", "t1", "--dry-run").exit_code == 2
    assert PLAN.read_bytes() == kept
    shutil.copy(PLAN, "kept.plan")

    done = run(*RESTORE, "--to", moment)
    assert done.exit_code == 0, done.output
    assert f"continuing {PLAN}" in done.stderr
    assert rows() == BEFORE
    repeated = run(*RESTORE, "--to", moment, "--plan", "kept.plan", "--json")
    assert lines(repeated)[0] | {"refused": 0} == {
        "accepted": 3, "duplicates": 3, "refused": 0, "edited": [],
    }  # fmt: skip


@pytest.mark.law("H6")
def test_rows_edited_since_the_plan_are_listed_and_not_restored(moment: str) -> None:
    assert run(*RESTORE, "--to", moment, "--dry-run").exit_code == 0
    edit("t2", 'title="mine"', client="carol")
    edit("t9", "n=9", client="carol")

    done = run(*RESTORE, "--to", moment)
    assert done.exit_code == 1
    assert "1 row edited since the plan was made, and not restored: t2;" in done.stderr
    assert rows() == {"t1": BEFORE["t1"], "t2": {"title": "mine"}, "t9": {"n": 9}}
    assert PLAN.exists()
    over = run(*RESTORE, "--to", moment, "--overwrite")
    assert over.exit_code == 0, over.output
    assert rows() == BEFORE


@pytest.mark.law("H4")
def test_restore_by_client_undoes_only_that_clients_changes(moment: str) -> None:
    edit("t1", "n=5", client="carol")
    done = run(*RESTORE, "--by", "vandal")
    assert done.exit_code == 0, done.output

    assert rows() == {"t1": {"title": "Milk", "n": 5}, "t2": {"title": "Bread"}, "t3": {"n": 3}}
    assert run(*RESTORE, "--by", "vandal").stdout == "0 deltas accepted\n"


@pytest.mark.parametrize(
    ("words", "restored"),
    [
        (("--row", "t2", "--row", "t8"), {"t2"}),
        (("--where", "title = 'Milk'"), {"t1"}),
        (("--where", "n = 3 or _id = 't2'"), {"t2", "t3"}),
    ],
)
def test_restore_changes_only_the_selected_rows(
    moment: str, words: tuple[str, ...], restored: set[str]
) -> None:
    changed = rows()
    assert run(*RESTORE, "--to", moment, *words).exit_code == 0
    now = rows()

    assert {
        row for row in now.keys() | changed.keys() if now.get(row) != changed.get(row)
    } == restored
    assert {row: now.get(row) for row in restored} == {row: BEFORE.get(row) for row in restored}


def test_rows_refused_by_sync_rules_are_reported_and_the_others_restored(moment: str) -> None:
    mine = {"column": "n", "op": "eq", "value": 1}
    write("rules.json", {"buckets": [{"name": "mine", "tables": ["todos"], "filters": [mine]}]})
    assert run("rules", "put", "rules.json").exit_code == 0

    done = run(*RESTORE, "--to", moment, "--json")
    [report] = lines(done)
    assert done.exit_code == 1
    assert (report["accepted"], {one["rowId"] for one in report["refused"]}) == (2, {"t3"})
    assert PLAN.exists()


def test_restore_waits_as_long_as_backpressure_asks(
    moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lakesync.client import HttpTransport  # noqa: PLC0415
    from lakesync.errors import Backpressure  # noqa: PLC0415

    push, slept = HttpTransport.push, list[float]()

    def full(self: HttpTransport, pushed: object) -> object:
        if len(slept) < 2:
            raise Backpressure("too much waits", retry_after_s=7)
        return push(self, pushed)  # type: ignore[arg-type]

    monkeypatch.setattr(HttpTransport, "push", full)
    monkeypatch.setattr("lakesync.cli.commands.rows.time.sleep", slept.append)
    assert run(*RESTORE, "--to", moment).exit_code == 0
    assert slept == [7, 7]
    assert rows() == BEFORE


def test_an_invalid_restore_is_reported_in_one_line(moment: str) -> None:
    Path("broken.plan").write_text("[]\n")
    sentences: list[tuple[tuple[str, ...], str]] = [
        (RESTORE, "specify a time"),
        ((*RESTORE, "--to", "soon"), "--to 'soon' is not a point in time"),
        ((*RESTORE, "--by", "restore"), "restore is the client that restores"),
        ((*RESTORE, "--to", moment, "--plan", "broken.plan"), "broken.plan is not a plan"),
        ((*RESTORE, "--to", moment, "--where", "("), "--where was refused"),
    ]
    for words, sentence in sentences:
        done = run(*words)
        assert done.exit_code == 2, done.output
        assert done.stderr.startswith(f"error: {sentence}")
        assert len(done.stderr.splitlines()) == 1
    unknown = run("rows", "restore", "nothing", "--to", "0")
    assert unknown.exit_code == 1
    assert unknown.stderr.startswith("error: there is no table nothing")
    assert not PLAN.exists()


@pytest.mark.law("H5")
def test_a_restore_by_another_client_keeps_the_existing_plan_unless_overwritten(
    moment: str,
) -> None:
    assert run(*RESTORE, "--to", moment, "--dry-run").exit_code == 0
    kept = PLAN.read_bytes()
    others = (*RESTORE, "--to", moment, "--client", "carol")
    for words in ((*others, "--dry-run"), others):
        refused = run(*words)
        assert refused.exit_code == 2
        assert "is the plan of client restore: pass --client restore" in refused.stderr
        assert PLAN.read_bytes() == kept
    assert run(*others, "--dry-run", "--overwrite").exit_code == 0
    assert PLAN.read_bytes() != kept


def test_a_plan_file_is_readable_by_its_owner_only(moment: str) -> None:
    assert run(*RESTORE, "--to", moment, "--dry-run").exit_code == 0
    assert PLAN.stat().st_mode & 0o777 == 0o600
