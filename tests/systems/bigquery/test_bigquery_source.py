"""BigQuery as a source: its values, one query for a poll, what is refused, what it may cost."""

# ruff: noqa: S608 - statements of an application, on names of these tests

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import pytest
from dateutil.relativedelta import relativedelta  # type: ignore[import-untyped]  # no stubs
from google.api_core import exceptions as api
from google.cloud.bigquery import SchemaField, Table, TimePartitioning

from lakesync.connectors import Outside, Storage
from lakesync.connectors.port import BroughtRows, SourceColumn
from lakesync.connectors.registry import configured
from lakesync.errors import AdapterRefused, LakeSyncError, ValidationFailed
from lakesync.result import Err
from lakesync.systems.bigquery.bigquery_jobs import Field, Look, Trial, field_of, look_of
from lakesync.systems.bigquery.bigquery_queries import (
    all_rows,
    changed_rows,
    origin_of,
    rows_with_keys,
    untimed_row,
)
from lakesync.systems.bigquery.bigquery_settings import BIGQUERY, TOKEN_URI, BigQuerySettings
from lakesync.systems.bigquery.bigquery_source import BigQueryValues
from lakesync.systems.bigquery.bigquery_statements import translated
from lakesync.testing.connector_contract import Reader
from tests.support.bigquery import EmulatedJobs, check_statement
from tests.support.bigquery_sources import BigQuerySource
from tests.support.lake import Objects

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lakesync.systems.bigquery.bigquery_jobs import ReadRows
    from tools.local_stack.bigquery import BigQueryServer

    Make = Callable[..., BigQuerySource]

WAYS: Final = ("time", "difference")
REFUSED: Final = {
    "a deletion": "DELETE FROM {table} WHERE TRUE",
    "an insertion": "INSERT INTO {table} (id) VALUES (99)",
    "a definition": "CREATE TABLE other_of_{table} (id INT64)",
    "two statements": "SELECT id, changed FROM {table}; SELECT id, changed FROM {table}",
    "one that leaves its parentheses": (
        "SELECT id, changed FROM {table}) AS x; DELETE FROM {table} WHERE TRUE; SELECT (1"
    ),
    "no SQL": "SELEC id FROM {table}",
    "a table that is not there": "SELECT id, changed FROM none_such_{table}",
    "no column of the key": "SELECT value, changed FROM {table}",
    "no cursor column": "SELECT id, value FROM {table}",
    "a cursor column of no times": "SELECT id, id AS changed FROM {table}",
    "rows without a time": "SELECT id, IF(id = 1, NULL, changed) AS changed FROM {table}",
}
KEY: Final = json.dumps({"type": "service_account", "token_uri": TOKEN_URI})
SETTINGS: Final = {
    "project": "a-project", "dataset": "d", "credentials": KEY,
    "tables": [{"name": "t", "key": ["id"]}],
}  # fmt: skip


@pytest.fixture
def make(bigquery: BigQueryServer) -> Iterator[Make]:
    """Make sources, which are closed in the end."""
    made: list[BigQuerySource] = []

    def source(**options: Any) -> BigQuerySource:
        made.append(BigQuerySource(bigquery, **options))
        return made[-1]

    yield source
    for each in made:
        each.close()


class WatchedJobs(EmulatedJobs):
    """Jobs that note which queries are started, and forget or delay them when they are told."""

    def __init__(self, server: BigQueryServer) -> None:
        super().__init__(server)
        self.started: list[dict[str, Any]] = []
        self.waits = 0
        self.lost: set[str] = set()
        self.bytes = 0
        self.fault: Exception | None = None

    def start(self, statement: str, *parameters: Any, **more: Any) -> None:
        self.started.append(more)
        super().start(statement, *parameters, **more)

    def trial(self, statement: str, parameters: Any = ()) -> Trial:
        if self.fault is not None:
            error = translated(self.fault)
            assert error is not None
            raise error from self.fault
        return super().trial(statement, parameters)._replace(bytes=self.bytes)

    def rows(self, job_id: str, *more: Any) -> ReadRows | None:
        self.waits -= 1
        if self.waits >= 0:
            return None
        return super().rows("lost" if job_id in self.lost else job_id, *more)


@pytest.fixture(params=WAYS)
def watched(request: pytest.FixtureRequest, bigquery: BigQueryServer) -> Iterator[BigQuerySource]:
    """A source whose jobs are watched, read each way."""
    source = BigQuerySource(bigquery, by_time=request.param == "time")
    source.jobs = WatchedJobs(bigquery)
    source.put({f"{number}": f"v{number}" for number in range(1, 24)})
    yield source
    source.close()


@pytest.mark.emulator
@pytest.mark.law("N21")
def test_a_poll_is_one_query_however_many_pages_it_has(watched: Any) -> None:
    reader = Reader(watched)
    pages = reader.poll(rows_max=5)

    assert len(pages) > 4
    assert len(reader.rows) == 23
    [started] = watched.jobs.started
    assert started["bytes_billed_max"] == watched.settings.maximum_bytes_billed
    assert reader.poll(rows_max=5)
    assert len(watched.jobs.started) == 2


@pytest.mark.emulator
@pytest.mark.law("N1", "N21")
def test_expired_query_results_are_queried_again(watched: Any) -> None:
    reader = Reader(watched)
    reader.polls = 1
    cursor, has_more, lost = "", True, 0
    while has_more:
        page = reader.page(cursor, 5)
        reader.apply(page)
        cursor, has_more = page.cursor, page.has_more
        if lost < 2:
            watched.jobs.lost.add(watched.jobs.started[-1]["job_id"])
            lost += 1
            watched.put({"100": "later"})
        reader.again()
    reader.poll()

    assert len(watched.jobs.started) == 4
    assert set(reader.rows) == {*(f"{number}" for number in range(1, 24)), "100"}


@pytest.mark.emulator
@pytest.mark.law("N1", "N21")
def test_settings_that_change_within_a_poll_are_read_by_a_query_of_their_own(watched: Any) -> None:
    reader = Reader(watched)
    reader.polls = 1
    page = reader.page("", 5)
    assert page.has_more
    [table] = watched.settings.tables
    columns = table.model_copy(update={"columns": ["id"]})
    watched.settings = watched.settings.model_copy(update={"tables": [columns]})
    reader.again()
    rows: dict[str, set[str]] = {}
    cursor, has_more = page.cursor, True
    while has_more:
        page = reader.page(cursor, 5)
        assert page.unreadable == ()
        rows |= {change.row_id: set(change.columns or ()) for change in page.changes}
        cursor, has_more = page.cursor, page.has_more

    assert len(watched.jobs.started) == 2
    assert all("value" not in names for names in rows.values())
    assert len(rows) >= 18


@pytest.mark.emulator
@pytest.mark.law("N21")
def test_long_running_query_is_awaited_by_the_next_pages(watched: Any) -> None:
    watched.jobs.waits = 2
    reader = Reader(watched)
    pages = reader.poll()

    assert [len(page.changes) for page in pages[:2]] == [0, 0]
    assert len(reader.rows) == 23
    assert len(watched.jobs.started) == 1


@pytest.mark.emulator
@pytest.mark.law("N21")
def test_check_refuses_a_query_above_maximum_bytes_billed(watched: Any) -> None:
    watched.jobs.bytes = watched.settings.maximum_bytes_billed + 1
    refused = watched.connector().check()
    watched.jobs.bytes -= 1

    assert isinstance(refused, Err)
    assert isinstance(refused.error, AdapterRefused)
    assert "maximumBytesBilled" in refused.error.message
    assert f"{watched.jobs.bytes:,} bytes a poll" in watched.connector().check().unwrap()


@pytest.mark.emulator
@pytest.mark.law("N21")
def test_check_of_a_table_that_requires_a_partition_filter_names_partition_days(
    make: Make, bigquery: BigQueryServer
) -> None:
    source = make(by_time=True)
    jobs = WatchedJobs(bigquery)
    source.jobs = jobs
    jobs.fault = api.BadRequest(
        "Cannot query over table 'p.d.t' without a filter over column(s) 'day' that can be used "
        "for partition elimination"
    )
    refused = source.connector().check()

    assert isinstance(refused, Err)
    assert isinstance(refused.error, AdapterRefused)
    assert "partitionDays" in refused.error.message


def test_bytes_billed_limit_error_becomes_adapter_refused() -> None:
    words = "Query exceeded limit for bytes billed: 1000000. 20971520 or higher required."

    assert isinstance(translated(api.InternalServerError(words)), AdapterRefused)


@pytest.mark.emulator
@pytest.mark.law("N5", "N21")
@pytest.mark.parametrize("fault", REFUSED)
def test_a_query_that_cannot_be_read_is_refused_when_it_is_registered(
    fault: str, make: Make
) -> None:
    source = make(by_time=True, query=REFUSED[fault])
    source.put({"1": "a"})

    checked = source.connector().check()

    assert isinstance(checked, Err)
    assert isinstance(checked.error, AdapterRefused)
    assert source.table in checked.error.message
    assert source.jobs.query(f"SELECT count(*) FROM {source.table}") == [(1,)]


@pytest.mark.emulator
@pytest.mark.law("N5", "N21")
def test_a_query_with_two_columns_of_one_name_is_refused_in_bigquerys_words(
    make: Make, bigquery: BigQueryServer
) -> None:
    """The emulator gives the second another name; BigQuery refuses the query."""
    source = make(by_time=True, query="SELECT id, value AS id, changed FROM {table}")
    jobs = WatchedJobs(bigquery)
    source.jobs = jobs
    words = "Duplicate column names in the result are not supported. Found duplicate(s): id"
    jobs.fault = api.BadRequest(words)
    checked = source.connector().check()

    assert isinstance(checked, Err)
    assert isinstance(checked.error, AdapterRefused)
    assert words in checked.error.message


@pytest.mark.emulator
@pytest.mark.law("N4", "N5")
@pytest.mark.parametrize("way", WAYS)
def test_row_with_a_null_key_is_reported_and_all_others_are_read(way: str, make: Make) -> None:
    query = "SELECT NULLIF(id, 7) AS id, value, changed FROM {table}"
    source = make(by_time=way == "time", query=query)
    source.put({f"{number}": f"v{number}" for number in range(1, 12)})
    reader = Reader(source)
    pages = reader.poll(rows_max=2)

    assert set(reader.rows) == {f"{number}" for number in range(1, 12) if number != 7}
    reasons = {row.reason for page in pages for row in page.unreadable}
    assert len(reasons) == 1
    assert "its key is NULL (id)" in reasons.pop()


@pytest.mark.emulator
@pytest.mark.law("N4", "N5")
def test_one_row_with_a_null_cursor_column_is_reported_at_each_poll(make: Make) -> None:
    source = make(by_time=True)
    source.put({"1": "a", "2": "b", "3": "c"})
    source.run(f"UPDATE {source.table} SET changed = NULL WHERE id > 1")
    reader = Reader(source)
    for _ in range(2):
        [unread] = [row for page in reader.poll() for row in page.unreadable]
        assert unread.row_id == "2"
        assert "its changed is NULL" in unread.reason
    assert set(reader.rows) == {"1"}


@pytest.mark.emulator
@pytest.mark.law("N5")
def test_times_without_a_zone_are_read_as_of_utc(make: Make) -> None:
    source = make(by_time=True, columns="id INT64 NOT NULL, value STRING, changed DATETIME")
    source.put({f"{number}": "a" for number in range(1, 8)})
    reader = Reader(source)
    reader.poll(rows_max=3)
    source.put({"3": "b", "9": "c"})
    reader.again()
    reader.poll(rows_max=3)

    assert reader.rows == {f"{number}": "a" for number in range(1, 8)} | {"3": "b", "9": "c"}


@pytest.mark.emulator
@pytest.mark.law("N5")
def test_deletions_are_found_after_the_key_columns_change(
    make: Make,
) -> None:
    source = make(by_time=False)
    brought = ("1", "2", '[1, "a"]', '[9, "x"]')
    source.storage = Storage(
        Objects(),
        "g",
        "c",
        lambda table, place: BroughtRows(brought, ""),  # noqa: ARG005
    )
    source.put({"1": "a", "2": "b"})
    Reader(source).poll()
    table = source.settings.tables[0].model_copy(update={"key": ["id", "value"]})
    source.settings = source.settings.model_copy(update={"tables": [table]})
    pages = Reader(source).poll()

    gone = {change.row_id for page in pages for change in page.changes if change.columns is None}
    assert gone == {"1", "2", '[9, "x"]'}
    there = {change.row_id for page in pages for change in page.changes if change.columns}
    assert there == {'[1, "a"]', '[2, "b"]'}


VALUES: Final[dict[str, tuple[str, str, Any]]] = {
    "STRING": ("'é'", "string", "é"),
    "BYTES": ("FROM_HEX('00ff')", "bytes", "AP8="),
    "INT64": ("9007199254740993", "integer", "9007199254740993"),
    "FLOAT64": ("0.1", "number", 0.1),
    "BOOL": ("TRUE", "boolean", True),
    "TIMESTAMP": (
        "TIMESTAMP '2026-05-17 08:00:00.1+02'",
        "timestamp",
        "2026-05-17T06:00:00.100000Z",
    ),
    "DATETIME": ("DATETIME '2026-05-17 08:00:00'", "timestamp", "2026-05-17T08:00:00"),
    "DATE": ("DATE '2026-05-17'", "date", "2026-05-17"),
    "TIME": ("TIME '08:00:00.5'", "string", "08:00:00.500000"),
    "NUMERIC": ("NUMERIC '-1.5'", "decimal(38,9)", "-1.500"),
    "JSON": ("""JSON '{"a": [1, "2", null]}'""", "json", {"a": [1, "2", None]}),
    "ARRAY<STRING>": ("['a', 'b']", "json", ["a", "b"]),
    "STRUCT<x INT64, y STRING>": ("STRUCT(1 AS x, 'y' AS y)", "json", {"x": 1, "y": "y"}),
}


@pytest.mark.emulator
@pytest.mark.law("N5", "N21")
@pytest.mark.parametrize("way", WAYS)
def test_every_type_is_read_in_the_same_form_by_time_and_by_difference(
    way: str, make: Make
) -> None:
    columns = ", ".join(f"c{place} {kind}" for place, kind in enumerate(VALUES))
    columns = f"id INT64 NOT NULL, changed TIMESTAMP, {columns}"
    # The emulator tells the type of JSON of a query alone.
    source = make(by_time=way == "time", columns=columns, query="SELECT * FROM {table}")
    values = ", ".join(sql for sql, _, _ in VALUES.values())
    source.run(f"INSERT INTO {source.table} SELECT 1, CURRENT_TIMESTAMP(), {values}")
    source.run(f"INSERT INTO {source.table} (id, changed) VALUES (2, CURRENT_TIMESTAMP())")
    connector = source.connector()
    rows: dict[str, Any] = {}
    cursor, has_more = "", True
    while has_more:
        page = connector.read(source.table, cursor, rows_max=9, poll_ms=1).unwrap()
        rows |= {change.row_id: change.columns or {} for change in page.changes}
        cursor, has_more = page.cursor, page.has_more

    expected = [value for _, _, value in VALUES.values()]
    assert [rows["1"][f"c{place}"] for place in range(len(VALUES))] == expected
    assert [rows["2"][f"c{place}"] for place in range(len(VALUES))][:10] == [None] * 10


@pytest.mark.parametrize(
    ("field", "source_type", "ours"),
    [
        (SchemaField("a", "INTEGER", "REQUIRED"), "INT64", "integer"),
        (SchemaField("a", "NUMERIC"), "NUMERIC", "decimal(38,9)"),
        (SchemaField("a", "NUMERIC", precision=12, scale=2), "NUMERIC(12, 2)", "decimal(12,2)"),
        (SchemaField("a", "NUMERIC", precision=12), "NUMERIC(12)", "decimal(12,0)"),
        (SchemaField("a", "BIGNUMERIC"), "BIGNUMERIC", "string"),
        (SchemaField("a", "BIGNUMERIC", precision=38, scale=30), "BIGNUMERIC(38, 30)",
         "decimal(38,30)"),
        (SchemaField("a", "BIGNUMERIC", precision=60, scale=30), "BIGNUMERIC(60, 30)", "string"),
        (SchemaField("a", "FLOAT", "REPEATED"), "ARRAY<FLOAT64>", "json"),
        (SchemaField("a", "RECORD", fields=[SchemaField("x", "DATE", "REPEATED")]),
         "STRUCT<x ARRAY<DATE>>", "json"),
        (SchemaField("a", "STRING", max_length=7), "STRING", "string"),
        (SchemaField("a", "GEOGRAPHY"), "GEOGRAPHY", "string"),
        (SchemaField("a", "INTERVAL"), "INTERVAL", "string"),
        (SchemaField("a", "RANGE", range_element_type="DATE"), "RANGE", "json"),
        (SchemaField("a", "TIME"), "TIME", "string"),
    ],
)  # fmt: skip
def test_bigquery_field_maps_to_a_source_type_and_a_column_type(
    field: SchemaField, source_type: str, ours: str
) -> None:
    read = field_of(field)

    assert read == Field("a", source_type, field.mode == "REQUIRED")
    assert BigQueryValues().column_type(read.type) == ours


def test_values_missing_in_the_emulator_are_converted() -> None:
    def shown(source_type: str, value: object) -> Any:
        values = BigQueryValues()
        column = SourceColumn("c", values.column_type(source_type), source_type=source_type)
        return values.converter(column)(value)

    assert shown("BIGNUMERIC", Decimal("1e38")) == "1" + "0" * 38
    assert shown("INTERVAL", relativedelta(months=-14, days=3, hours=-4, microseconds=-500000)) == (
        "-1-2 3 -4:0:0.5"
    )
    assert shown("ARRAY<INTERVAL>", [relativedelta(days=1)]) == ["0-0 1 0:0:0"]
    assert shown("RANGE", {"start": date(2026, 1, 1), "end": None}) == {
        "start": "2026-01-01", "end": None,
    }  # fmt: skip
    assert shown("JSON", "text") == "text"
    with pytest.raises(ValueError, match="no JSON number"):
        shown("FLOAT64", float("nan"))


def test_table_metadata_has_key_partition_and_location() -> None:
    body = {
        "tableReference": {"projectId": "p", "datasetId": "d", "tableId": "t"}, "location": "EU",
        "schema": {"fields": [{"name": "id", "type": "INTEGER", "mode": "REQUIRED"}]},
        "tableConstraints": {"primaryKey": {"columns": ["id"]}},
        "timePartitioning": {"type": "DAY", "field": "day"},
    }  # fmt: skip
    table = Table.from_api_repr(body)
    assert look_of(table) == Look((Field("id", "INT64", True),), ("id",), "day", "EU")
    table.time_partitioning = TimePartitioning()
    assert look_of(table).partition == "_PARTITIONTIME"


@pytest.mark.parametrize("query", [None, "SELECT 1 AS id -- a comment"])
def test_every_statement_is_valid_bigquery_sql(query: str | None) -> None:
    origin, key, now = origin_of("p-1.d.a table", query), ["id", "o`ther"], datetime.now(UTC)
    partition = ("_PARTITIONTIME", now)
    statements = [
        changed_rows(origin, ["id", "t"], key, "t", (None, now), None),
        changed_rows(origin, ["id", "t"], key, "t", (now, now), partition),
        all_rows(origin, ["id"], key, None),
        all_rows(origin, ["id"], ["id"], "abc"),
        rows_with_keys(origin, key, [[1, "a"], [2, "b"]]),
        untimed_row(origin, key, "t"),
    ]
    for statement in statements:
        check_statement(statement.text)
        named = [f"@p{place}" for place in range(len(statement.parameters))]
        assert all(name in statement.text for name in named)
        assert statement.text.count("@") == len(named) + (statement.parameters == (now, now))
    assert "(`_PARTITIONTIME` >= @p2 OR `_PARTITIONTIME` IS NULL)" in statements[1].text


@pytest.mark.emulator
@pytest.mark.law("N21")
def test_partitions_older_than_partition_days_are_not_read(make: Make) -> None:
    source = make(
        by_time=True, columns="id INT64 NOT NULL, day DATE, changed TIMESTAMP",
        table={"partitionDays": 7},
    )  # fmt: skip
    source.run(
        f"INSERT INTO {source.table} VALUES (1, DATE_SUB(CURRENT_DATE(), INTERVAL 30 DAY), "
        "CURRENT_TIMESTAMP()), (2, CURRENT_DATE(), CURRENT_TIMESTAMP())"
    )
    plain = source.connector()
    refused = plain.read(source.table, "", rows_max=9, poll_ms=1)
    look = source.jobs.look(source.table)
    source.jobs.look = lambda table: look._replace(partition="day")  # type: ignore[method-assign]  # noqa: ARG005
    [change] = plain.read(source.table, "", rows_max=9, poll_ms=1).unwrap().changes

    assert change.row_id == "2"
    assert isinstance(refused, Err)
    assert "no partitions" in refused.error.message


@pytest.mark.emulator
def test_missing_table_is_refused_and_not_read_as_empty(make: Make) -> None:
    source = make(by_time=False)
    source.put({"1": "a"})
    connector = source.connector()
    source.run(f"DROP TABLE {source.table}")
    read = connector.read(source.table, "", rows_max=9, poll_ms=1)
    source.settings = BigQuerySettings.model_validate(
        json.loads(source.settings.model_dump_json(by_alias=True)) | {"dataset": "no_such"}
    )
    assert isinstance(read, Err)
    assert "there is no table" in read.error.message
    assert connector.columns().unwrap() == ()


@pytest.mark.parametrize(
    "more",
    [
        {"credentials": None},
        {"credentials": "{}"},
        {"credentials": "secret"},
        {"credentials": KEY.replace(TOKEN_URI, "https://elsewhere.example.com/token")},
        {"credentials": KEY.replace("service_account", "external_account")},
        {"endpoint": "ftp://x"},
        {"endpoint": "https://user@x"},
        {"maximumBytesBilled": 0},
        {"project": "https://x"},
        {"tables": [{"name": "a.b.c.d"}]},
        {"tables": [{"name": "t", "partitionDays": 7}]},
        {"tables": [{"name": "t", "query": "SELECT 1 AS id"}]},
    ],
    ids=str,
)
def test_invalid_settings_are_refused_without_repeating_their_values(more: dict[str, Any]) -> None:
    with pytest.raises(ValidationFailed) as refused:
        configured(BIGQUERY, SETTINGS | more)
    assert "elsewhere" not in str(refused.value)
    assert "ervice_account" not in str(refused.value).replace("service account", "")


@pytest.mark.law("N19")
def test_another_endpoint_is_reached_only_if_the_operator_names_it() -> None:
    settings = configured(BIGQUERY, SETTINGS | {"endpoint": "https://bigquery.internal"})
    storage = Storage(Objects(), "g", "c")
    for hosts in ((), ("*",), ("other.internal",)):
        with pytest.raises(ValidationFailed, match="ConnectorHosts"):
            BIGQUERY.make(settings, storage, Outside(hosts))
    made = BIGQUERY.make(settings, storage, Outside(("bigquery.internal",)))
    with pytest.raises(LakeSyncError, match="incomplete"):
        made.check().unwrap()


def test_poll_by_time_can_restart_at_a_time_also_midway() -> None:
    settings = configured(
        BIGQUERY, SETTINGS | {"tables": [{"name": "t", "cursorColumn": "c"}, {"name": "u"}]}
    )
    assert BIGQUERY.begins_at is not None
    since = '{"since": "2026-05-17T08:00:00+00:00", "now": "2026-05-17T08:01:00+00:00"}'
    midway = json.dumps({"before": since, "at": 7, "job": "j", "latest": None})
    expected = BIGQUERY.begins_at(settings, "t", since, 0)

    assert BIGQUERY.begins_at(settings, "t", midway, 0) == expected
    assert "1969" in expected
    with pytest.raises(ValidationFailed, match="by difference"):
        BIGQUERY.begins_at(settings, "u", "", 0)
