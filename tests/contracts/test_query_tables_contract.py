"""What each SQL database does, and each `Materialisable`. Laws: ``docs/spec/databases.md``."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakesync.adapters.database import ORDINAL_END, Fillable, Position, RowImages
from lakesync.adapters.sql.ledger import digested
from lakesync.core.delta import VALUE_DEPTH_MAX, Op, make_delta
from lakesync.core.merge import state_of
from lakesync.errors import (
    AdapterRefused,
    AdapterTimedOut,
    AdapterUnreachable,
    ConstraintViolated,
    OutcomeUnknown,
    Retry,
    SchemaMismatch,
)
from lakesync.result import Err
from lakesync.testing.database_contract import batch, merged, schema
from lakesync.testing.materialisable_contract import MaterialisableContract
from tests.support.bigquery import PartsAdapter, bigquery_destination
from tests.support.destinations import (
    SqlDestination,
    changed_rows,
    mariadb_dialect,
    new_table,
    postgres_dialect,
)
from tests.support.interrupted import CUTS_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lakesync.core.delta import Delta
    from tests.support.destinations import (
        Destination,
    )
    from tools.local_stack.bigquery import BigQueryServer

pytestmark = pytest.mark.emulator
few = settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(params=["postgres", "mariadb"])
def checking(request: pytest.FixtureRequest) -> Iterator[SqlDestination]:
    """A database of each kind that has constraints and sessions; BigQuery has neither."""
    database = request.getfixturevalue(request.param)
    made = postgres_dialect if request.param == "postgres" else mariadb_dialect
    with closing(SqlDestination(made(database))) as destination:
        yield destination


@pytest.fixture(params=["postgres", "mariadb", "bigquery", "bigquery_in_parts"])
def destination(request: pytest.FixtureRequest) -> Iterator[Destination]:
    """A database of each kind."""
    database = request.getfixturevalue(request.param.removesuffix("_in_parts"))
    made: Destination
    if request.param == "bigquery":
        made = bigquery_destination(database)
    elif request.param == "bigquery_in_parts":
        made = bigquery_destination(database, PartsAdapter)
    else:
        dialect = postgres_dialect if request.param == "postgres" else mariadb_dialect
        made = SqlDestination(dialect(database))
    with closing(made):
        yield made


@pytest.fixture
def table() -> str:
    """A table that nobody else uses."""
    return new_table()


def insert(
    table: str, row: str, columns: dict[str, object] | None = None, *, hlc: int = 1
) -> Delta:
    return make_delta(Op.INSERT, table, row, columns, client_id="c", hlc=hlc)


def update(table: str, row: str, columns: dict[str, object], *, hlc: int = 2) -> Delta:
    return make_delta(Op.UPDATE, table, row, columns, client_id="c", hlc=hlc)


def delete(table: str, row: str, *, hlc: int = 3) -> Delta:
    return make_delta(Op.DELETE, table, row, client_id="c", hlc=hlc)


@pytest.mark.law("P1", "P2")
@few
@given(data=st.data())
def test_rows_equal_the_core_merge_for_any_batches(
    checking: SqlDestination, data: st.DataObject
) -> None:
    rows_are_merged(checking, data)


@pytest.mark.law("P1", "P2")
@settings(few, max_examples=4)
@given(data=st.data())
def test_rows_equal_the_core_merge_in_bigquery(
    bigquery: BigQueryServer, data: st.DataObject
) -> None:
    rows_are_merged(bigquery_destination(bigquery), data)


def rows_are_merged(destination: Destination, data: st.DataObject) -> None:
    table = new_table()
    deltas = data.draw(changed_rows(table))
    delete_wins = data.draw(st.booleans())
    kinds = dict.fromkeys(["a", "B", "order"], "json")
    wanted = schema(table, kinds, delete_wins=True) if delete_wins else None
    adapter = destination.adapter()
    after = 0
    cuts = sorted(data.draw(st.lists(st.integers(0, len(deltas)), max_size=3)))
    for start, end in zip([0, *cuts], [*cuts, len(deltas)], strict=True):
        part = batch(table, deltas[start:end], after=after, schema=wanted)
        adapter.insert_deltas(part).unwrap()
        if data.draw(st.booleans()):
            again = adapter.insert_deltas(part).unwrap()
            assert (again.deltas, again.rows) == (0, 0)
        after = part.last
    expected = merged(deltas, delete_wins=delete_wins)
    for row_id in {delta.row_id for delta in deltas}:
        assert adapter.latest_state(table, row_id).unwrap() == expected.get(row_id)
    refused = {letter.row_id for letter in adapter.dead_letters(table).unwrap()}
    shown = destination.rows(table).keys()
    # A row whose newest values are refused may stand there with those before them.
    assert shown - refused == expected.keys() - refused
    assert shown <= expected.keys()
    assert all("\0" in row_id + repr(expected.get(row_id)) or "\\x00" in repr(expected[row_id])
               for row_id in refused)  # fmt: skip
    destination.close()


@pytest.mark.law("P1", "P6", "P7")
class TestTablesToQuery(MaterialisableContract):
    """Those of this repository's databases."""


# --- exactly once ---------------------------------------------------------------------------------


@pytest.mark.law("P4")
def test_batch_cut_off_anywhere_is_completed_by_its_repetition(
    destination: Destination, table: str
) -> None:
    wanted = schema(table, {"n": "number", "tag": "json"}, soft_delete=True)
    deltas = [insert(table, f"r{number}", {"n": number}, hlc=number + 1) for number in range(4)]
    deltas += [update(table, "r1", {"tag": {"x": 1}}, hlc=9), delete(table, "r2", hlc=10)]
    part = batch(table, deltas, schema=wanted)
    gateway = table  # as good a name as any
    for cut in range(1, CUTS_MAX):
        broken = destination.interrupted(cut).adapter(gateway)
        result = broken.insert_deltas(part)
        if not isinstance(result, Err):
            break
        assert isinstance(result.error, AdapterUnreachable | OutcomeUnknown)
        rows = destination.adapter(gateway).mark(table).unwrap() and len(destination.rows(table))
        assert rows in {0, 3, 4}  # nothing, or all of it
    else:
        pytest.fail("it never ended")
    adapter = destination.adapter(gateway)
    adapter.insert_deltas(part).unwrap()
    assert adapter.mark(table).unwrap() == part.last
    for row_id, values in merged(deltas).items():
        assert adapter.latest_state(table, row_id).unwrap() == values
    kept = {row: at is None for row, (at,) in destination.rows(table, "deleted_at").items()}
    assert {row for row, is_there in kept.items() if is_there} == {"r0", "r1", "r3"}


@pytest.mark.law("P4")
def test_concurrent_writers_take_each_batch_once(destination: Destination, table: str) -> None:
    deltas = [
        update(table, f"r{number % 5}", {"n": number}, hlc=number + 1) for number in range(40)
    ]
    parts, after = [], 0
    for start in range(0, 40, 8):
        parts.append(batch(table, deltas[start : start + 8], after=after))
        after = parts[-1].last

    def write(_: int) -> int:
        adapter, added = destination.adapter(table), 0
        for part in parts:
            while isinstance(result := adapter.insert_deltas(part), Err):
                assert isinstance(result.error, AdapterTimedOut), result.error  # a deadlock
            added += result.value.deltas
        return added

    with ThreadPoolExecutor(3) as threads:
        assert sum(threads.map(write, range(3))) == 40
    adapter = destination.adapter(table)
    for row_id, values in merged(deltas).items():
        assert adapter.latest_state(table, row_id).unwrap() == values


@pytest.mark.law("P5")
def test_a_batch_takes_a_constant_number_of_statements(destination: Destination) -> None:
    counts = []
    for size in (10, 2_000):
        table = new_table()
        counted = destination.interrupted(CUTS_MAX)
        adapter = counted.adapter()
        wanted = schema(table, {"n": "number", "s": "string"})
        adapter.ensure_schema(wanted).unwrap()
        before = counted.statements
        deltas = [insert(table, f"r{n}", {"n": n, "s": "x" * 20}) for n in range(size)]
        adapter.insert_deltas(batch(table, deltas, schema=wanted, commit_deltas=100)).unwrap()
        counts.append(counted.statements - before)
    assert counts[0] == counts[1]


# --- tables to query ------------------------------------------------------------------------------


@pytest.mark.law("P6")
def test_columns_have_their_types(destination: Destination, table: str) -> None:
    wanted = schema(
        table,
        {
            "s": "string", "n": "number", "b": "boolean", "j": "json", "i": "integer",
            "d": "decimal(12,2)", "t": "timestamp", "day": "date", "raw": "bytes",
        },
    )  # fmt: skip
    adapter = destination.adapter()
    values: dict[str, object] = {
        "s": "Brød \\ ' \" %s 🍞", "n": 0.1, "b": True, "j": {"k": [1, None]},
        "i": "9223372036854775807", "d": "1234567890.12", "t": "2024-02-29T23:30:00.123456-02:00",
        "day": "2024-02-29", "raw": "AP8=",
    }  # fmt: skip
    adapter.insert_deltas(batch(table, [insert(table, "r1", values)], schema=wanted)).unwrap()
    (row,) = destination.rows(table, "s", "n", "b", "i", "d", "t", "day", "raw").values()
    assert row[0] == values["s"]
    assert row[1:4] == (0.1, True, 9223372036854775807)
    assert row[4] == Decimal("1234567890.12")
    assert row[5].replace(tzinfo=None).isoformat() == "2024-03-01T01:30:00.123456"
    assert row[6].isoformat() == "2024-02-29"
    assert bytes(row[7]) == b"\x00\xff"


@pytest.mark.law("P6")
def test_columns_are_added_widened_and_typed_later(destination: Destination, table: str) -> None:
    adapter = destination.adapter()
    first = schema(table, {"d": "decimal(5,2)"})
    deltas = [insert(table, "r1", {"d": "999.99", "late": 12})]
    adapter.insert_deltas(batch(table, deltas, schema=first)).unwrap()
    typed = schema(table, {"d": "decimal(9,2)", "late": "number", "more": "string"}, version=2)
    deltas.append(update(table, "r2", {"d": "1234567.89", "more": "x"}))
    adapter.insert_deltas(batch(table, deltas[1:], after=1, schema=typed)).unwrap()
    rows = destination.rows(table, "d", "late", "more")
    assert rows == {
        "r1": (Decimal("999.99"), 12.0, None),
        "r2": (Decimal("1234567.89"), None, "x"),
    }
    # What comes late, with the schema of before, changes no column back.
    deltas.append(update(table, "r1", {"late": 13}, hlc=5))
    adapter.insert_deltas(batch(table, deltas[2:], after=2, schema=first)).unwrap()
    assert destination.rows(table, "late")["r1"] == (13.0,)
    narrower = schema(table, {"d": "string"}, version=3)
    result = adapter.ensure_schema(narrower)
    assert isinstance(result, Err)
    assert isinstance(result.error, SchemaMismatch)


@pytest.mark.law("P6")
def test_column_gets_its_type_after_a_type_change_was_cut_off(
    destination: Destination, table: str
) -> None:
    deltas = [insert(table, f"r{number}", {"n": number}) for number in range(3)]
    destination.adapter(table).insert_deltas(batch(table, deltas)).unwrap()
    typed = schema(table, {"n": "number"})
    for cut in range(1, CUTS_MAX):
        broken = destination.interrupted(cut).adapter(table)
        result = broken.ensure_schema(typed)
        if not isinstance(result, Err):
            break
    else:
        pytest.fail("it never ended")
    adapter = destination.adapter(table)
    adapter.ensure_schema(typed).unwrap()
    assert destination.rows(table, "n") == {f"r{number}": (float(number),) for number in range(3)}


@pytest.mark.law("P6")
@pytest.mark.parametrize("name", ["order", "dueDate", "props", "ROW_ID", "synced_at", "x" * 64])
def test_any_column_name_is_stored_as_its_own_column(
    destination: Destination, table: str, name: str
) -> None:
    adapter = destination.adapter()
    wanted = schema(table, {name: "string"})
    adapter.insert_deltas(batch(table, [insert(table, "r1", {name: "v"})], schema=wanted)).unwrap()
    (own,) = destination.columns(table) - {"row_id", "props", "synced_at", "deleted_at"}
    assert destination.rows(table, own) == {"r1": ("v",)}


@pytest.mark.law("P6")
def test_destination_table_may_have_any_name(destination: Destination, table: str) -> None:
    source = f'100% "odd" `{table}` table'
    wanted = schema(table, {"n": "number"}, source_table=source)
    adapter = destination.adapter()
    adapter.insert_deltas(batch(table, [insert(table, "r1", {"n": 1})], schema=wanted)).unwrap()
    name = source if isinstance(destination, SqlDestination) else digested(source)
    assert "n" in destination.columns(name)


@pytest.mark.law("P6")
@pytest.mark.parametrize(
    "source", ["{} \U0001f600", "{} ", "{}\0", ".{}", "{}" + "y" * 64], ids=ascii
)
def test_table_name_that_a_database_refuses_gets_a_digest(
    destination: Destination, table: str, source: str
) -> None:
    name = source.format(table)
    wanted = schema(table, {"n": "number"}, source_table=name)
    deltas = [insert(table, "r1", {"n": 1})]
    destination.adapter().insert_deltas(batch(table, deltas, schema=wanted)).unwrap()
    assert destination.rows(digested(name), "n") == {"r1": (1.0,)}


@pytest.mark.law("P6")
def test_table_filled_by_another_gateway_is_refused(destination: Destination, table: str) -> None:
    wanted = schema(table, {"n": "number"})
    first, other = destination.adapter(), destination.adapter()
    first.ensure_schema(wanted).unwrap()
    result = other.ensure_schema(wanted)
    assert isinstance(result, Err)
    assert "sourceTable" in str(result.error)
    other.ensure_schema(replace(wanted, source_table=f"{table}_2")).unwrap()


@pytest.mark.law("P11")
@pytest.mark.parametrize("soft", [True, False])
def test_removed_row_leaves_the_table_together_with_its_dead_letter(
    destination: Destination, table: str, *, soft: bool
) -> None:
    wanted = schema(table, {"n": "integer"}, soft_delete=soft)
    adapter: Any = destination.adapter()
    takes_rows = isinstance(adapter, Fillable)
    if not takes_rows:
        pytest.skip("it takes no rows")
    rows = {"r1": state_of(insert(table, "r1", {"n": 1})),
            "bad": state_of(insert(table, "bad", {"n": "no number"}))}  # fmt: skip
    filled = RowImages(table, 0, 5, rows, wanted)
    refused = adapter.put_rows(filled).unwrap().dead_letters
    assert [letter.row_id for letter in refused] == ["bad"]
    assert [letter.row_id for letter in adapter.retry_dead_letters(table).unwrap()] == ["bad"]
    assert destination.rows(table, "n") == {"r1": (1,)}
    gone = RowImages(table, 5, 6, {"r1": None, "bad": None}, wanted)
    assert adapter.put_rows(gone).unwrap().rows == 2
    assert destination.rows(table, "n") == {}
    assert adapter.dead_letters(table).unwrap() == ()


@pytest.mark.law("P11", "E9")
@pytest.mark.parametrize("soft", [True, False])
def test_deleted_row_is_removed_behind_the_mark_including_its_soft_deleted_remains(
    destination: Destination, table: str, *, soft: bool
) -> None:
    wanted = schema(table, {"n": "number"}, soft_delete=soft)
    adapter: Any = destination.adapter()
    deltas = [insert(table, "r1", {"n": 1}), insert(table, "r2", {"n": 2})]
    adapter.insert_deltas(batch(table, deltas, schema=wanted)).unwrap()
    stamp = 1_700_000_000_000 << 16
    gone = batch(table, [delete(table, "r1", hlc=stamp)], after=1, schema=wanted)
    adapter.insert_deltas(gone).unwrap()
    mark = adapter.mark(table).unwrap()
    assert ("r1" in destination.rows(table, "n")) is soft

    images = RowImages(table, mark, mark + 1, {"r1": None}, wanted, is_last=False)
    assert adapter.put_rows(images).unwrap().rows == 1
    adapter.forget_history(table, mark).unwrap()

    assert destination.rows(table, "n") == {"r2": (2.0,)}
    assert list(adapter.rows_of(table, ["r1", "r2"]).unwrap()) == ["r2"]
    assert adapter.mark(table).unwrap() == mark
    history = adapter.query_deltas_since(table, Position(mark, ORDINAL_END), 10).unwrap()
    assert history.deltas == ()
    assert isinstance(adapter.query_deltas_since(table, Position(1, 0), 10), Err)
    follows = batch(table, [insert(table, "r3", {"n": 3})], after=mark, schema=wanted)
    adapter.insert_deltas(follows).unwrap()
    assert destination.rows(table, "n").keys() == {"r2", "r3"}


@pytest.mark.law("P6")
def test_existing_table_gets_the_missing_columns(destination: Destination, table: str) -> None:
    whole, number = destination.sql_type("integer"), destination.sql_type("number")
    destination.run(f"CREATE TABLE {table} (id {whole}, n {number})")
    destination.run(f"INSERT INTO {table} (id, n) VALUES (7, 1)")  # noqa: S608 - our own name
    adapter = destination.adapter()
    wanted = schema(table, {"n": "number", "s": "string"})
    deltas = [insert(table, "r1", {"n": 2, "s": "x"})]
    adapter.insert_deltas(batch(table, deltas, schema=wanted)).unwrap()
    assert destination.rows(table, "id", "n", "s") == {None: (7, 1.0, None), "r1": (None, 2.0, "x")}


@pytest.mark.law("P6")
def test_dropped_table_or_column_is_restored_with_its_rows(
    destination: Destination, table: str
) -> None:
    wanted = schema(table, {"n": "number", "s": "string"})
    deltas = [insert(table, f"r{number}", {"n": number, "s": "x"}) for number in range(3)]
    destination.adapter(table).insert_deltas(batch(table, deltas, schema=wanted)).unwrap()
    destination.run(f"ALTER TABLE {table} DROP COLUMN n")
    destination.adapter(table).ensure_schema(wanted).unwrap()
    assert destination.rows(table, "n")["r2"] == (2.0,)
    destination.run(f"DROP TABLE {table}")
    adapter = destination.adapter(table)
    part = batch(table, [update(table, "r1", {"n": 7})], after=2, schema=wanted)
    adapter.insert_deltas(part).unwrap()
    rows = destination.rows(table, "n", "s")
    assert rows == {"r0": (0.0, "x"), "r1": (7.0, "x"), "r2": (2.0, "x")}
    destination.run(f"DROP TABLE {table}")
    again = batch(table, [update(table, "r1", {"n": 8}, hlc=9)], after=3, schema=wanted)
    result = adapter.insert_deltas(again)  # it knew the table
    assert isinstance(result, Err)
    assert result.error.retry is Retry.LATER
    adapter.insert_deltas(again).unwrap()
    assert destination.rows(table, "n") == {"r0": (0.0,), "r1": (8.0,), "r2": (2.0,)}
    assert isinstance(adapter.rewrite("nothere"), Err)


# --- rows that the database refuses ---------------------------------------------------------------


@pytest.mark.law("P7")
def test_refused_rows_become_separate_dead_letters(checking: SqlDestination, table: str) -> None:
    wanted = schema(table, {"n": "number", "s": "string"})
    adapter = checking.adapter()
    adapter.ensure_schema(wanted).unwrap()
    checking.run(f"ALTER TABLE {table} ADD CONSTRAINT {table}_n CHECK (n < 100)")
    deltas = [insert(table, f"r{number}", {"n": number * 10, "s": "x"}) for number in range(12)]
    deltas.append(insert(table, "text", {"n": "no number"}))
    inserted = adapter.insert_deltas(batch(table, deltas, schema=wanted)).unwrap()
    letters = {letter.row_id: letter.reason for letter in inserted.dead_letters}
    assert letters.keys() == {"r10", "r11", "text"}
    assert f"{table}_n" in letters["r10"]
    assert "column n" in letters["text"]
    assert len(checking.rows(table)) == 10
    assert adapter.latest_state(table, "r11").unwrap() == {"n": 110, "s": "x"}
    mended = [update(table, "r10", {"n": 1}), delete(table, "text")]
    after = batch(table, deltas).last
    adapter.insert_deltas(batch(table, mended, after=after, schema=wanted)).unwrap()
    assert [letter.row_id for letter in adapter.dead_letters(table).unwrap()] == ["r11"]
    checking.run(f"ALTER TABLE {table} DROP CONSTRAINT {table}_n")
    adapter.insert_deltas(batch(table, [], after=after + 1, schema=wanted)).unwrap()
    assert adapter.dead_letters(table).unwrap() == ()
    assert checking.rows(table, "n")["r11"] == (110.0,)


@pytest.mark.law("P7")
def test_row_with_a_conflicting_key_overwrites_no_other_row(
    checking: SqlDestination, table: str
) -> None:
    wanted = schema(
        table,
        {"a": "string", "b": "integer", "ext": "string", "v": "number"},
        primary_key=("a", "b"),
        external_id_column="ext",
    )
    adapter = checking.adapter()
    deltas = [
        insert(table, "r1", {"a": "x", "b": 1, "ext": "e1", "v": 1}),
        insert(table, "same-key", {"a": "x", "b": 1, "ext": "e2", "v": 2}),
        insert(table, "same-id", {"a": "x", "b": 2, "ext": "e1", "v": 3}),
        insert(table, "no-key", {"a": "x", "ext": "e3", "v": 4}),
        insert(table, "padded", {"a": "x ", "b": 1, "ext": "e4", "v": 5}),
    ]
    inserted = adapter.insert_deltas(batch(table, deltas, schema=wanted)).unwrap()
    refused = {letter.row_id for letter in inserted.dead_letters}
    assert refused == {"same-key", "same-id", "no-key"}
    assert checking.rows(table, "v") == {"r1": (1.0,), "padded": (5.0,)}
    moved = [update(table, "r1", {"b": 9, "ext": "e9"})]
    adapter.insert_deltas(batch(table, moved, after=3, schema=wanted)).unwrap()
    rows = checking.rows(table, "v")
    assert rows["r1"] == (1.0,)
    assert rows["same-key"] == (2.0,)


@pytest.mark.law("P7")
@pytest.mark.parametrize(
    "value",
    ["\x00", "a\x00b", "🍞" * 3, "x" * 200_000, "\u2028", "null", "NaN", "'; DROP TABLE x; --"],
    ids=ascii,
)
def test_hostile_text_is_stored_or_refused_without_affecting_other_rows(
    destination: Destination, table: str, value: str
) -> None:
    wanted = schema(table, {"s": "string", "j": "json"})
    adapter = destination.adapter()
    deltas = [insert(table, "bad", {"s": value, "j": {"k": value[:1000]}})]
    deltas.append(insert(table, "good", {"s": "x"}))
    adapter.insert_deltas(batch(table, deltas, schema=wanted)).unwrap()
    rows = destination.rows(table, "s")
    assert rows["good"] == ("x",)
    refused = {letter.row_id for letter in adapter.dead_letters(table).unwrap()}
    assert rows.get("bad") == (value,) if "bad" not in refused else "\0" in value
    state = adapter.latest_state(table, "bad").unwrap()
    assert state is not None
    assert state["s"] == value


@pytest.mark.law("P7")
@pytest.mark.parametrize("depth", [VALUE_DEPTH_MAX - 1, VALUE_DEPTH_MAX])
def test_deep_json_is_stored_or_refused_without_affecting_other_rows(
    destination: Destination, table: str, depth: int
) -> None:
    deep: dict[str, object] = {"list": 1, "object": 1}
    for _ in range(depth):
        deep = {"list": [deep["list"]], "object": {"k": deep["object"]}}
    adapter = destination.adapter()
    deltas = [insert(table, row, {"j": value, "s": "x"}) for row, value in deep.items()]
    deltas.append(insert(table, "good", {"j": 1, "s": "x"}))
    adapter.insert_deltas(batch(table, deltas, schema=schema(table, {"s": "string"}))).unwrap()

    refused = {letter.row_id for letter in adapter.dead_letters(table).unwrap()}
    takes_it = not getattr(getattr(destination, "dialect", None), "is_mariadb", False)
    assert refused == (set() if takes_it or depth < VALUE_DEPTH_MAX else set(deep))
    assert destination.rows(table).keys() == {"good", *deep} - refused
    for row, value in deep.items():
        assert adapter.latest_state(table, row).unwrap() == {"j": value, "s": "x"}


@pytest.mark.law("P7")
def test_table_that_refuses_every_row_fails_the_whole_batch(
    checking: SqlDestination, table: str
) -> None:
    wanted = schema(table, {"n": "number"})
    adapter = checking.adapter()
    adapter.ensure_schema(wanted).unwrap()
    checking.run(f"ALTER TABLE {table} ADD CONSTRAINT {table}_n CHECK (n < 0)")
    deltas = [insert(table, f"r{number}", {"n": number}) for number in range(1_100)]
    result = adapter.insert_deltas(batch(table, deltas, schema=wanted))
    assert isinstance(result, Err)
    assert isinstance(result.error, ConstraintViolated)
    assert adapter.mark(table).unwrap() == 0


# --- a database that fails ------------------------------------------------------------------------


@pytest.mark.law("P8")
def test_unreachable_and_refusing_databases_give_different_errors(
    checking: SqlDestination, table: str
) -> None:
    dialect: Any = checking.dialect
    nowhere, stranger = (
        (replace(dialect, dsn=dialect.dsn.replace(":lakesync@", ":wrong@")),) * 2
        if hasattr(dialect, "dsn")
        else (replace(dialect, port=1), replace(dialect, password="wrong"))
    )
    if hasattr(dialect, "dsn"):
        host, _, database = dialect.dsn.rpartition("/")
        nowhere = replace(dialect, dsn=f"{host.rpartition(':')[0]}:1/{database}")
    for broken, kind in ((nowhere, AdapterUnreachable), (stranger, AdapterRefused)):
        result = checking.variant(broken).adapter().mark(table)
        assert isinstance(result, Err)
        assert isinstance(result.error, kind), result.error
        assert "wrong" not in str(result.error)


@pytest.mark.law("P8")
def test_adapter_recovers_after_its_connection_was_killed(
    checking: SqlDestination, table: str
) -> None:
    adapter = checking.adapter()
    adapter.insert_deltas(batch(table, [insert(table, "r1", {"n": 1})])).unwrap()
    if hasattr(checking.dialect, "dsn"):
        checking.run(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
            "AND application_name = 'lakesync' AND state = 'idle'"
        )
    else:
        rows = checking.run(
            "SELECT id FROM information_schema.processlist WHERE id <> CONNECTION_ID() "
            "AND user = 'lakesync' AND command = 'Sleep'"
        )
        for (number,) in rows:
            checking.run("KILL %s", number)
    part = batch(table, [update(table, "r1", {"n": 2})], after=1)
    result = adapter.insert_deltas(part)
    if isinstance(result, Err):
        assert isinstance(result.error, AdapterUnreachable)
        adapter.insert_deltas(part).unwrap()
    assert adapter.latest_state(table, "r1").unwrap() == {"n": 2}
