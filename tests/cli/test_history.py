"""`lakesync history`: each cell of a row's past, out of the lake and of what is not in it yet."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakesync.adapters.database import PlacedDelta, Position
from lakesync.analysis.connection import UsageFault
from lakesync.analysis.lake_queries import LakeChanges, read_tail
from lakesync.analysis.past import LOST, WON, AtNumber, AtTime, Moment, as_of, cells, chosen, pinned
from lakesync.core.delta import Op, make_delta
from lakesync.core.merge import as_read, fold, view
from tests.cli.test_declaring import gateway
from tests.support.builders import delete, insert, update
from tests.support.command_lines import lines, run
from tests.support.lake_tables import FolderLake, in_folder, materialise
from tests.support.local_gateway import GATEWAY
from tests.support.strategies import row_deltas

if TYPE_CHECKING:
    from lakesync.core.delta import Delta
    from tests.support.local_gateway import LocalGateway


__all__ = ["gateway"]  # the fixture

TYPES = {"title": "string", "n": "json"}


@pytest.fixture
def past(gateway: LocalGateway, monkeypatch: pytest.MonkeyPatch) -> FolderLake:
    """A lake in a folder, as the command line finds it; nothing is in it yet."""
    return in_folder(Path("lake").absolute(), gateway, monkeypatch)


def edit(row: str, *set_: str, client: str = "ann", table: str = "todos") -> None:
    words = [word for pair in set_ for word in ("--set", pair)] or ["--delete"]
    done = run("push", "--table", table, "--row", row, "--client", client, *words)
    assert done.exit_code == 0, done.output


def placed(*deltas: Delta) -> list[PlacedDelta]:
    return [PlacedDelta(Position(place, 0), delta) for place, delta in enumerate(deltas, start=1)]


# --- cells ----------------------------------------------------------------------------------------


@pytest.mark.law("H2")
@given(deltas=row_deltas, delete_wins=st.booleans())
def test_the_winning_cells_of_a_history_build_up_the_merged_row(
    deltas: list[Delta], *, delete_wins: bool
) -> None:
    row: dict[str, bytes] = {}
    for cell in cells(placed(*deltas), delete_wins=delete_wins):
        if cell.column is None:
            continue
        assert cell.before == row.get(cell.column)
        if cell.effect == WON and cell.after is not None:
            row[cell.column] = cell.after
        elif cell.effect == WON:
            del row[cell.column]
    assert row == (view(as_read(fold(deltas), delete_wins=delete_wins)) or {})


@pytest.mark.law("H2")
def test_a_write_with_an_older_stamp_is_listed_as_lost() -> None:
    listed = list(cells(placed(update(at=5, n=1), update(at=3, client="b", n=2), delete(at=7))))

    assert [(cell.before, cell.after, cell.effect) for cell in listed] == [
        (None, b"1", WON), (b"1", b"2", LOST), (b"1", None, WON),
    ]  # fmt: skip


@pytest.mark.law("H2")
def test_an_insert_shows_the_newer_update_before_it_where_deletes_win() -> None:
    placed_ = placed(update(at=5, n=1), insert(at=3, client="b", n=2))
    listed = [cell for cell in cells(placed_, delete_wins=True) if cell.commit == 2]

    assert [(cell.before, cell.after, cell.effect) for cell in listed] == [
        (None, b"2", LOST), (None, b"1", WON),
    ]  # fmt: skip


def test_a_delta_without_columns_is_listed_in_the_history() -> None:
    listed = list(cells(placed(insert(at=2), delete(at=1), delete(at=3))))

    assert [(cell.column, cell.delta.op, cell.effect) for cell in listed] == [
        (None, Op.INSERT, WON), (None, Op.DELETE, WON), (None, Op.DELETE, WON),
    ]  # fmt: skip


# --- from where -----------------------------------------------------------------------------------


@pytest.mark.law("H1")
def test_the_history_of_a_row_is_the_same_from_log_and_lake(
    gateway: LocalGateway, past: FolderLake
) -> None:
    """Before the flush, with some of it in the lake, and with all of it there."""
    edit("t1", 'title="Milk"', "n=1")
    edit("t1", 'title="Bread"', client="bob")
    edit("t2", "n=7")
    words = ("history", "todos", "t1", "--json")
    listed = [lines(run(*words))]
    materialise(past, gateway.buffer, TYPES)
    edit("t1", "n=[2]")
    edit("t1")
    listed.append(lines(run(*words)))
    materialise(past, gateway.buffer, TYPES)
    listed.append(lines(run(*words)))

    assert [{one["source"] for one in cells} for cells in listed] == [
        {"log"}, {"lake", "log"}, {"lake"},
    ]  # fmt: skip
    first, second, third = ([cell | {"source": ""} for cell in cells] for cells in listed)
    assert second[: len(first)] == first
    assert second == third
    assert [(c["op"], c["clientId"], c["column"], c.get("before"), c.get("after"))
            for c in third] == [
        ("UPDATE", "ann", "n", None, 1),
        ("UPDATE", "ann", "title", None, "Milk"),
        ("UPDATE", "bob", "title", "Milk", "Bread"),
        ("UPDATE", "ann", "n", 1, [2]),
        ("DELETE", "ann", "n", [2], None),
        ("DELETE", "ann", "title", "Bread", None),
    ]  # fmt: skip


@pytest.mark.law("H1")
def test_values_of_every_type_are_read_back_from_the_lake_as_written(tmp_path: Path) -> None:
    types = {"s": "string", "n": "number", "i": "integer", "b": "boolean", "t": "timestamp",
             "d": "date", "j": "json", "dueDate": "string"}  # fmt: skip
    values: list[dict[str, object]] = [
        {"s": "x", "n": 1.5, "i": 7, "b": True, "t": "2024-02-29T13:05:09Z", "d": "2024-02-29",
         "j": {"k": [1, None]}, "dueDate": "soon"},
        {"s": '\x00"é', "n": 1e21, "i": "9223372036854775807", "b": None, "j": None,
         "t": "2024-02-29T15:05:09.123456789+02:00", "d": None},
        {"s": 1, "n": "one", "i": "+12", "b": "true", "t": "soon", "d": [1], "dueDate": {}},
        {},
    ]  # fmt: skip
    written = placed(*(
        make_delta(Op.UPDATE, "ToDos", "r1", one, client_id="é", hlc=place)
        for place, one in enumerate(values, start=1)
    ))  # fmt: skip
    past = FolderLake(tmp_path, "g")
    past.put_changes("ToDos", written[2:], types, mark=4)
    past.put_changes("ToDos", written[:2], types, mark=4)
    changes = LakeChanges(past.of(), "todos")

    assert changes.of_row("r2") == []
    assert [(each.position, each.delta.op, dict(each.delta.columns))
            for each in changes.of_row("r1")] == [
        (each.position, each.delta.op, dict(each.delta.columns)) for each in written
    ]  # fmt: skip


def test_history_reads_only_files_that_may_contain_the_row(tmp_path: Path) -> None:
    past = FolderLake(tmp_path, "g")
    for row in ("a", "b"):
        past.put_changes("todos", placed(update(row, at=1, n=1)), {"n": "integer"})
    [of_b] = [path for path in tmp_path.rglob("*.parquet") if b"b" in _ids(path)]
    of_b.unlink()

    assert len(LakeChanges(past.of(), "todos").of_row("a")) == 1


def _ids(path: Path) -> bytes:
    import pyarrow.parquet as pq  # noqa: PLC0415

    return "".join(pq.read_table(path, columns=["_id"]).to_pydict()["_id"]).encode()


# --- the command ----------------------------------------------------------------------------------


def test_history_is_printed_and_written_to_a_file(gateway: LocalGateway, past: FolderLake) -> None:
    edit("t1", 'title="Milk"', "n=1")
    materialise(past, gateway.buffer, TYPES)
    edit("t1", 'title="Bread"', client="bob")
    shown = run("history", "TODOS", "t1", "--column", "Title")
    assert shown.exit_code == 0, shown.output
    assert '"Milk"   "Bread"' in shown.stdout
    assert shown.stderr == "2 cells\n"

    assert run("history", "todos", "t1", "--to", "t1.csv").stdout == "3 cells written to t1.csv\n"
    with Path("t1.csv").open() as file:
        written: list[Any] = list(csv.DictReader(file))
    assert [row["after"] for row in written] == ["1", '"Milk"', '"Bread"']
    assert run("history", "todos", "t1", "--to", "t1.xls").exit_code == 2


def test_history_states_which_commits_are_not_included(
    gateway: LocalGateway, past: FolderLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit("t1", "n=1")
    materialise(past, gateway.buffer, TYPES)
    edit("t1", "n=2")
    lake_only = run("history", "todos", "t1", "--lake-only")
    assert lake_only.stderr.startswith("1 cell\nnot included: commits since 20")

    def refused(_: object) -> Any:
        from lakesync.errors import Unavailable  # noqa: PLC0415

        raise Unavailable("DynamoDB is away")

    monkeypatch.setattr("lakesync.cli.commands.gateways.stores", refused)
    without = run("history", "todos", "t1", "--json")
    assert len(lines(without)) == 1
    assert without.stderr.startswith("the log could not be read: DynamoDB is away\nnot included: ")


@pytest.mark.law("H1")
def test_commits_in_neither_log_nor_lake_are_reported_missing(
    gateway: LocalGateway, past: FolderLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit("t1", "n=1")
    materialise(past, gateway.buffer, TYPES)
    edit("t1", "n=2")

    def trimmed(*words: Any) -> Any:
        tail = read_tail(*words)
        return replace(tail, trimmed=tail.until)

    monkeypatch.setattr("lakesync.analysis.lake_queries.read_tail", trimmed)
    for words in (("history", "todos", "t1"), ("history", "todos", "t2")):
        assert "longer in the log and not in the lake yet" in run(*words).stderr
    compared = run("diff", "todos", "--from", "2001-01-01")
    assert "longer in the log and not in the lake yet" in compared.stderr
    restored = run("rows", "restore", "todos", "--to", "2001-01-01")
    assert restored.exit_code == 2
    assert "not all that was committed can be read, so nothing is restored" in restored.stderr


@pytest.mark.usefixtures("past")
def test_history_of_an_unknown_row_or_table_is_reported() -> None:
    edit("t1", "n=1")
    for words, sentence in (
        (("todos", "t2"), "error: no row t2 of todos was ever written"),
        (("notes", "t1"), "error: there is no table notes; tables: flights, todos"),
    ):
        done = run("history", *words)
        assert done.exit_code == 1
        assert done.stderr.startswith(sentence)


def test_the_history_of_an_event_is_the_same_from_log_and_lake(
    gateway: LocalGateway, past: FolderLake
) -> None:
    schema = {"table": "seen", "append": True, "columns": [{"name": "n", "type": "integer"}]}
    Path("seen.json").write_text(json.dumps(schema))
    assert run("schema", "put", "seen.json").exit_code == 0
    event = {"op": "INSERT", "table": "seen", "rowId": "e1", "columns": {"n": 1}}
    assert run("push", "-", text=json.dumps(event)).exit_code == 0
    in_log = lines(run("history", "seen", "e1", "--json"))
    materialise(past, gateway.buffer, {"n": "integer"}, table="seen", kind="events")
    in_lake = lines(run("history", "seen", "e1", "--json"))

    assert in_lake == [cell | {"source": "lake"} for cell in in_log]
    assert (in_lake[0]["op"], in_lake[0]["after"]) == ("INSERT", 1)
    tail = read_tail(gateway.buffer, GATEWAY, 0)
    assert tail.until >= tail.deltas[-1].position.commit


# --- points in time -------------------------------------------------------------------------------


TODOS = [Moment(71, 1_000, 10), Moment(72, 2_000, 20), Moment(73, 3_000, 30)]
NOTES = [Moment(81, 1_500, 15), Moment(82, 2_500, 25)]


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1970-01-01T00:00:01Z", 1_000),
        ("1970-01-01T00:00:01", 1_000),
        ("1970-01-01 01:00:01.5+01:00", 1_500),
        ("1970-01-02", 86_400_000),
    ],
)
def test_a_time_is_iso_8601_and_utc_without_an_offset(text: str, ms: int) -> None:
    assert as_of(text) == AtTime(ms)


@pytest.mark.parametrize("text", ["yesterday", "", "-1", "12x", "२"])
def test_an_invalid_point_in_time_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageFault, match="give an ISO-8601 time such as"):
        as_of(text)


def test_a_time_selects_the_latest_snapshot_at_or_before_it() -> None:
    assert chosen(AtTime(2_999), TODOS) == TODOS[1]
    assert chosen(AtTime(3_000), TODOS) == TODOS[2]
    assert chosen(AtTime(999), TODOS) is None


def test_a_commit_stamp_selects_the_latest_snapshot_at_or_below_it() -> None:
    assert chosen(AtNumber(29), TODOS) == TODOS[1]
    assert chosen(AtNumber(30), TODOS) == TODOS[2]
    assert chosen(AtNumber(9), TODOS) is None


def test_a_snapshot_id_of_one_table_selects_other_tables_by_its_time() -> None:
    wanted = pinned(as_of("72"), [TODOS, NOTES])
    assert chosen(wanted, TODOS) == TODOS[1]
    assert chosen(wanted, NOTES) == NOTES[0]


def test_a_number_that_is_no_snapshot_id_is_a_commit_stamp() -> None:
    assert pinned(as_of("20"), [TODOS, NOTES]) == AtNumber(20)
    assert pinned(AtTime(5), [TODOS]) == AtTime(5)
