"""SQL databases as sources: late commits, ranges, deletions, types, what is refused."""

from __future__ import annotations

from contextlib import suppress
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import ValidationError

from lakesync.adapters.connect import database_adapter
from lakesync.buffer.memory_buffer import MemoryBuffer
from lakesync.connectors.connector_admin import schemas_of
from lakesync.connectors.pages import deltas_of
from lakesync.connectors.poll import Poll, Route
from lakesync.connectors.state import DeadLetters, Deletions, state_from
from lakesync.declare.schemas import read_schema
from lakesync.errors import AdapterRefused, AdapterUnreachable, Backpressure
from lakesync.result import Err, Ok
from lakesync.systems.mysql.mysql_source import MySqlValues
from lakesync.systems.postgres.postgres_dialect import Postgres
from lakesync.systems.postgres.postgres_settings import PostgresSettings
from lakesync.systems.postgres.postgres_source import PostgresSource, PostgresValues
from lakesync.systems.sql.database_values import json_value
from lakesync.systems.sql.sql_settings import place_of, quoted_table, written
from lakesync.systems.sql.sql_source import SqlConnector
from lakesync.testing.connector_contract import Reader
from lakesync.testing.database_contract import batch
from tests.support.gateways import GivenTime, pulled, pusher
from tests.support.hosts import LOOPBACK
from tests.support.lake import Killed
from tests.support.sources import SqlSource

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lakesync.connectors import SourcePage
    from lakesync.connectors.state import PollState
    from lakesync.core.messages import Push, PushReceipt
    from lakesync.systems.sql.database_values import Values
    from tools.local_stack.databases import Database


@pytest.fixture
def by_time(postgres: Database) -> Iterator[SqlSource]:
    """A table with a column of change times."""
    source = SqlSource(postgres, "postgres", by_time=True)
    yield source
    source.close()


@pytest.fixture(params=["postgres", "mariadb"])
def by_time_of_each(request: pytest.FixtureRequest) -> Iterator[SqlSource]:
    """A table with a column of change times, of each kind of database."""
    source = SqlSource(request.getfixturevalue(request.param), request.param, by_time=True)
    yield source
    source.close()


@pytest.fixture
def by_difference(postgres: Database) -> Iterator[SqlSource]:
    """A table without."""
    source = SqlSource(postgres, "postgres", by_time=False)
    yield source
    source.close()


def ids(pages: list[SourcePage]) -> list[str]:
    """Return the row ids of all changes."""
    return [change.row_id for page in pages for change in page.changes]


@pytest.mark.emulator
@pytest.mark.law("N5")
def test_a_transaction_that_commits_late_is_read_by_the_next_poll(by_time: SqlSource) -> None:
    reader = Reader(by_time)
    late = by_time.source.dialect.connect()
    late.cursor().execute(f"INSERT INTO {by_time.table} VALUES (1, 'late', clock_timestamp())")  # noqa: S608
    by_time.put({"2": "in time"})
    reader.poll()
    assert reader.rows == {"2": "in time"}
    late.commit()
    late.close()
    reader.poll()

    assert reader.rows == {"1": "late", "2": "in time"}


@pytest.mark.emulator
@pytest.mark.law("N5")
def test_unchanged_source_is_not_read_again_after_the_overlap(
    postgres: Database,
) -> None:
    source = SqlSource(postgres, "postgres", by_time=True, overlap_s=0)
    source.put({"1": "a"})
    reader = Reader(source)
    reader.poll()

    assert ids(reader.poll()) == []
    source.close()


@pytest.mark.emulator
@pytest.mark.law("N5")
def test_rows_younger_than_the_settle_time_wait(postgres: Database) -> None:
    source = SqlSource(postgres, "postgres", by_time=True, settle_s=3_600)
    source.put({"1": "a"})

    assert ids(Reader(source).poll()) == []
    source.close()


@pytest.mark.emulator
@pytest.mark.law("N5")
def test_rows_of_one_instant_are_all_read_however_small_the_pages(by_time: SqlSource) -> None:
    by_time.run(
        f"INSERT INTO {by_time.table} SELECT n, 'x', now() - interval '1 day' "  # noqa: S608
        "FROM generate_series(1, 25) n"
    )

    assert sorted(map(int, ids(Reader(by_time).poll(rows_max=4)))) == list(range(1, 26))


@pytest.mark.emulator
@pytest.mark.law("N5")
def test_row_without_a_change_time_is_reported_by_check_and_by_each_poll(
    by_time_of_each: SqlSource,
) -> None:
    source = by_time_of_each
    source.put({"1": "a", "3": "c"})
    connector = source.connector()
    assert isinstance(connector.check(), Ok)
    source.run(f"INSERT INTO {source.table} VALUES (2, 'b', NULL)")  # noqa: S608
    checked = connector.check()
    reader = Reader(source)
    pages = reader.poll(rows_max=1)

    assert isinstance(checked, Err)
    assert isinstance(checked.error, AdapterRefused)
    for said in (f"rows of {source.table} have no changed", "such as 2", "all rows"):
        assert said in checked.error.message
    assert reader.rows == {"1": "a", "3": "c"}, "it harms no other"
    unreadable = [each for page in pages for each in page.unreadable]
    assert [each.row_id for each in unreadable] == ["2"], "it is said once a poll"
    assert "changed is NULL" in unreadable[0].reason

    source.put({"2": "b"})
    assert isinstance(connector.check(), Ok)
    assert reader.poll()[0].unreadable == ()
    assert reader.rows == {"1": "a", "2": "b", "3": "c"}


@pytest.mark.emulator
@pytest.mark.law("N5")
def test_growing_ranges_are_split_and_lose_no_deletion(by_difference: SqlSource) -> None:
    def insert(first: int, last: int, step: int) -> None:
        by_difference.run(
            f"INSERT INTO {by_difference.table} "  # noqa: S608
            f"SELECT n, 'x', NULL FROM generate_series({first}, {last}, {step}) n"
        )

    insert(10, 400, 10)
    reader = Reader(by_difference)
    reader.poll(rows_max=5)
    insert(11, 399, 10)
    for step in range(12, 16):
        insert(step, 60, 10)
    by_difference.run(f"DELETE FROM {by_difference.table} WHERE id IN (10, 30, 50, 51, 400)")  # noqa: S608
    reader.poll(rows_max=5)

    connection = by_difference.source.dialect.connect()
    cursor = connection.cursor()
    cursor.execute(f"SELECT id FROM {by_difference.table}")  # noqa: S608
    assert set(reader.rows) == {str(row[0]) for row in cursor.fetchall()}
    connection.close()
    assert ids(reader.poll(rows_max=5)) == []


@pytest.mark.emulator
@pytest.mark.law("N2", "N5")
def test_page_read_by_difference_is_repeated_although_the_table_changed(
    by_difference: SqlSource,
) -> None:
    by_difference.put({"1": "a", "2": "b"})
    reader = Reader(by_difference)
    first = reader.page("", 50)
    by_difference.put({"1": "later"})
    reader.again()

    assert reader.page("", 50) == first
    reader.polls += 1
    reader.apply(reader.page("", 50))
    assert reader.rows == {"1": "later"}


@pytest.mark.emulator
@pytest.mark.law("N1", "N5")
@pytest.mark.parametrize("first", [Backpressure("full"), Killed()], ids=["backpressure", "kill"])
def test_recorded_range_is_pushed_although_the_credentials_expire_first(
    by_difference: SqlSource, first: Exception
) -> None:
    tables = {by_difference.table: "things"}
    buffer, time, saved = MemoryBuffer(), GivenTime(1_800_000_000_000), [b""]
    pushes = pusher(buffer, time_=time)
    fails: list[Exception] = []

    def push(push: Push) -> PushReceipt:
        if fails:
            raise fails.pop(0)
        return pushes.push("g", push)

    def save(state: PollState, *, ends: bool = False) -> None:
        saved.append(state.to_json())

    def poll(connector: SqlConnector) -> None:
        time.sleep_ms(60_000)
        storage = by_difference.storage
        Poll(
            "c", Route(connector, tables, push), letters=DeadLetters(storage),
            deletions=Deletions(storage), save=save, wall_clock=time.wall_clock,
        ).run(state_from(saved[-1]), lambda: True)  # fmt: skip

    by_difference.put({"1": "a", "2": "b"})
    poll(by_difference.connector())
    by_difference.put({"2": "changed", "3": "new"})
    fails.append(first)
    with suppress(Killed):
        poll(by_difference.connector())
    body = by_difference.settings.model_dump(by_alias=True) | {"user": "nobody"}
    settings = PostgresSettings.model_validate(body)
    poll(SqlConnector(PostgresSource(settings, LOOPBACK), settings, by_difference.storage))
    fault = state_from(saved[-1]).fault
    assert fault is not None
    assert fault.code == "ADAPTER_REFUSED"
    poll(by_difference.connector())

    rows = {delta.row_id: dict(delta.columns)["value"] for delta in pulled(buffer, "g")}
    assert rows == {"1": b'"a"', "2": b'"changed"', "3": b'"new"'}
    assert state_from(saved[-1]).begun == {}


@pytest.mark.emulator
@pytest.mark.law("N5")
def test_truncated_table_is_emptied(by_difference: SqlSource) -> None:
    by_difference.put({str(number): "x" for number in range(12)})
    reader = Reader(by_difference)
    reader.poll(rows_max=5)
    by_difference.run(f"TRUNCATE {by_difference.table}")
    reader.poll(rows_max=5)

    assert reader.rows == {}


@pytest.mark.emulator
def test_every_type_is_read_as_json_of_its_column_type(by_difference: SqlSource) -> None:
    by_difference.run(f"DROP TABLE {by_difference.table}")
    by_difference.run(
        f"CREATE TABLE {by_difference.table} (id uuid PRIMARY KEY, n numeric(10,2), b bytea, "
        'j jsonb, t timestamptz, d date, big bigint, f double precision, y boolean, "a b" text[], '
        "p point)"
    )
    by_difference.run(
        f"INSERT INTO {by_difference.table} VALUES ('6f1e2d3c-0000-4000-8000-000000000001', 1.50, "  # noqa: S608
        "'\\x00ff', '{\"x\": [1]}', '2026-01-02T03:04:05.000006+01:00', '2026-01-02', "
        "9007199254740993, 0.5, true, '{q,NULL}', '(1,2)')"
    )
    connector = by_difference.connector()
    (page,) = Reader(by_difference).poll()
    (row,) = page.changes

    assert row.row_id == "6f1e2d3c-0000-4000-8000-000000000001"
    assert row.columns == {
        "id": row.row_id, "n": "1.50", "b": "AP8=", "j": {"x": [1]},
        "t": "2026-01-02T02:04:05.000006Z", "d": "2026-01-02", "big": "9007199254740993",
        "f": 0.5, "y": True, "a_b": ["q", None], "p": "(1,2)",
    }  # fmt: skip
    tables = connector.discover().unwrap()
    table = next(each for each in tables if each.name == by_difference.table)
    assert {column.name: column.type for column in table.columns}["n"] == "decimal(10,2)"


@pytest.mark.emulator
def test_a_row_that_json_cannot_hold_is_reported_and_its_neighbours_are_read(
    by_difference: SqlSource,
) -> None:
    by_difference.run(f"ALTER TABLE {by_difference.table} ADD COLUMN f double precision")
    by_difference.run(
        f"INSERT INTO {by_difference.table} (id, f) VALUES (1, 'NaN'), (2, 1)"  # noqa: S608
    )
    reader = Reader(by_difference)
    (page,) = reader.poll()

    assert ids([page]) == ["2"]
    assert [each.row_id for each in page.unreadable] == ["1"]
    assert "column f" in page.unreadable[0].reason
    assert reader.poll()[0].unreadable == (), "it is told once"


@pytest.mark.emulator
@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"key": ["nothing"]}, "no column nothing"),
        ({"cursorColumn": "value"}, "holds no times"),
        ({"columns": ["value", "elsewhere"]}, "no column elsewhere"),
    ],
)
def test_missing_columns_and_unusable_cursors_are_reported_by_check(
    by_difference: SqlSource, asked: dict[str, Any], message: str
) -> None:
    body = by_difference.settings.model_dump(by_alias=True)
    body["tables"] = [{"name": by_difference.table, **asked}]
    settings = PostgresSettings.model_validate(body)
    connector = SqlConnector(PostgresSource(settings, LOOPBACK), settings, by_difference.storage)
    checked = connector.check()
    connector.close()

    assert isinstance(checked, Err)
    assert isinstance(checked.error, AdapterRefused)
    assert message in checked.error.message


@pytest.mark.emulator
def test_unreachable_and_refusing_sources_are_reported_without_the_password(
    by_difference: SqlSource,
) -> None:
    body = by_difference.settings.model_dump(by_alias=True) | {"password": "not-this-one"}
    answers = []
    for change in ({"port": 1}, {"user": "nobody"}):
        settings = PostgresSettings.model_validate({**body, **change})
        connector = SqlConnector(
            PostgresSource(settings, LOOPBACK), settings, by_difference.storage
        )
        answers.append(connector.check())

    assert [type(answer.error) for answer in answers if isinstance(answer, Err)] == [
        AdapterUnreachable, AdapterRefused,
    ]  # fmt: skip
    assert "not-this-one" not in str(answers)


@pytest.mark.emulator
def test_connector_session_at_the_source_is_read_only(by_time: SqlSource) -> None:
    connection = by_time.source.connect()

    with pytest.raises(Exception, match="read-only"):
        connection.cursor().execute(f"DELETE FROM {by_time.table}")  # noqa: S608
    connection.close()


@pytest.mark.emulator
def test_a_column_that_appears_is_read_by_the_next_poll(by_difference: SqlSource) -> None:
    by_difference.put({"1": "a"})
    reader = Reader(by_difference)
    reader.poll()
    by_difference.run(f"ALTER TABLE {by_difference.table} ADD COLUMN more int DEFAULT 5")
    reader.again()
    (page,) = reader.poll()

    assert page.changes[0].columns is not None
    assert page.changes[0].columns["more"] == 5


def test_every_fault_of_a_configuration_is_reported_and_no_value() -> None:
    table = {"name": "t", "as": "no name"}
    body = {"host": "", "user": "u", "password": "hidden", "tables": [table], "x": 1}
    with pytest.raises(ValidationError) as refused:
        PostgresSettings.model_validate(body)

    faults = {".".join(map(str, fault["loc"])) for fault in refused.value.errors()}
    assert faults >= {"host", "database", "x", "tables.0"}
    assert "hidden" not in str(refused.value)


@pytest.mark.parametrize(
    ("source", "sql", "ours"),
    [
        (PostgresValues(), "numeric(12,3)", "decimal(12,3)"),
        (PostgresValues(), "numeric", "string"),
        (PostgresValues(), "numeric(40,2)", "string"),
        (PostgresValues(), "numeric(2,-3)", "string"),
        (PostgresValues(), "timestamp(3) with time zone", "timestamp"),
        (PostgresValues(), "character varying(20)", "string"),
        (PostgresValues(), "integer[]", "json"),
        (PostgresValues(), "double precision", "number"),
        (PostgresValues(), "interval", "string"),
        (PostgresValues(), "bit(3)", "string"),
        (PostgresValues(), "bigint", "integer"),
        (MySqlValues(), "decimal(40,2)", "string"),
        (MySqlValues(), "decimal(12,3) unsigned", "decimal(12,3)"),
        (MySqlValues(), "tinyint(1)", "boolean"),
        (MySqlValues(), "int(11)", "integer"),
        (MySqlValues(), "bigint(20) unsigned", "string"),
        (MySqlValues(), "datetime(6)", "timestamp"),
        (MySqlValues(), "date", "date"),
        (MySqlValues(), "longblob", "bytes"),
        (MySqlValues(), "time(3)", "string"),
    ],
)
def test_a_source_type_has_a_column_type(source: Values, sql: str, ours: str) -> None:
    assert source.column_type(sql) == ours


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [float("nan")]])
def test_numbers_that_json_lacks_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match="no JSON number"):
        json_value(value, "json")


NAMES = {
    "a": ("", "a"), "s.a": ("s", "a"), '"a.b"': ("", "a.b"), 's."a.b"': ("s", "a.b"),
    '"s.t"."a""b"': ("s.t", 'a"b'), '"s.t".a': ("s.t", "a"), 'a"b': ("", 'a"b'),
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_double_quoted_name_part_is_taken_literally(name: str) -> None:
    schema, table = NAMES[name]
    assert place_of(name) == (schema, table)
    assert place_of(written(table)) == ("", table)
    parts = [part for part in (schema, table) if part]
    doubled = [part.replace('"', '""') for part in parts]
    assert quoted_table(Postgres(""), name) == ".".join(f'"{part}"' for part in doubled)


@pytest.mark.emulator
@pytest.mark.law("N5")
@pytest.mark.parametrize("way", ["time", "difference", "changes"])
@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
def test_names_with_dots_are_read_in_every_way(
    kind: str, way: str, request: pytest.FixtureRequest
) -> None:
    database = request.getfixturevalue(kind)
    source = SqlSource(database, kind, by_time=way == "time", changes=way == "changes")
    plain, mark = source.table, '"' if kind == "postgres" else "`"
    name = f'"{plain}.x"'
    source.run(f"ALTER TABLE {plain} RENAME COLUMN value TO {mark}of.it{mark}")
    source.run(f"ALTER TABLE {plain} RENAME TO {mark}{plain}.x{mark}")
    polled = source.settings.tables[0].model_copy(update={"name": name})
    source.settings = source.settings.model_copy(update={"tables": [polled]})
    source.table, source.sources = name, (*source.sources[:-1], name)
    reader = Reader(source)
    source.run(f"INSERT INTO {mark}{plain}.x{mark} VALUES (1, 'a', {source.now})")  # noqa: S608
    pages = [*reader.poll(), *reader.poll()]
    discovered = [table.name for table in reader.connector.discover().unwrap()]
    table = polled.table
    source.table = f"{mark}{plain}.x{mark}"
    source.close()

    columns = [change.columns for page in pages for change in page.changes]
    assert {str(each["of_it"]) for each in columns if each} == {"a"}, columns
    assert (name in discovered, table) == (True, f"{plain}_x")


@pytest.mark.emulator
def test_destination_table_gets_column_types_from_the_discovered_schema(
    by_difference: SqlSource, postgres: Database
) -> None:
    table, arrived = by_difference.table, f"{by_difference.table}_arrived"
    by_difference.run(f"ALTER TABLE {table} ADD price numeric(10,2), ADD paid bool, ADD day date")
    by_difference.run(f"INSERT INTO {table} VALUES (1, 'a', now(), 154.5, true, '2026-05-17')")  # noqa: S608
    reader = Reader(by_difference)
    (page,) = reader.poll()
    made, refused = deltas_of(page, table, {table: arrived}, "connector:c", 1_000)
    [body] = schemas_of(reader.connector.discover().unwrap(), {table: arrived})
    url = f"postgresql://{postgres.user}:{postgres.password}@{postgres.host}:{postgres.port}"
    with database_adapter(f"{url}/{postgres.database}", arrived) as target:
        target.insert_deltas(batch(arrived, made, schema=read_schema(body))).unwrap()
    connection = by_difference.source.dialect.connect()
    cursor = connection.cursor()
    cursor.execute(f"SELECT price, paid, day::text, pg_typeof(price)::text FROM {arrived}")  # noqa: S608
    row = cursor.fetchone()
    connection.close()

    assert not refused
    assert row == (Decimal("154.50"), True, "2026-05-17", "numeric")
