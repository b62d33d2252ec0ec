"""What BigQuery does otherwise than other databases. Laws: ``docs/spec/databases.md``.

The emulator runs statements on DuckDB. It has no conflicts between transactions, no quotas and no
sign-in, so what BigQuery says then is given to the adapter in BigQuery's own words; and it takes
SQL that BigQuery would refuse, so each statement of these and of the contract's tests is parsed in
BigQuery's dialect (`tests.support.bigquery.check_statement`).
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
import requests
from google.api_core import exceptions as api
from google.auth import exceptions as auth
from google.auth.credentials import AnonymousCredentials
from google.cloud import bigquery as google

from lakesync.adapters.sql.ledger import Definition
from lakesync.core.delta import Op, make_delta
from lakesync.errors import (
    AdapterFailed,
    AdapterQuotaExceeded,
    AdapterRefused,
    AdapterTimedOut,
    AdapterUnreachable,
    ConstraintViolated,
    Contention,
    LakeSyncError,
    OutcomeUnknown,
    SchemaMismatch,
)
from lakesync.result import Err
from lakesync.systems.bigquery.bigquery_database import BigQueryAdapter
from lakesync.systems.bigquery.bigquery_jobs import Jobs
from lakesync.systems.bigquery.bigquery_statements import (
    Move,
    batch_taken,
    column_name,
    column_type,
    columns_added,
    destination_name,
    history_forgotten,
    ledger_tables,
    quoted,
    translated,
)
from lakesync.testing.database_contract import batch, merged, schema
from tests.support.bigquery import DATASET, EmulatedJobs, bigquery_destination, check_statement
from tests.support.destinations import (
    new_gateway,
    new_table,
)

if TYPE_CHECKING:
    from lakesync.core.delta import Delta
    from tools.local_stack.bigquery import BigQueryServer

ABORTED = (
    "Query error: Transaction is aborted due to concurrent update against table acme:d.t. "
    "Transaction ID: 61e30eea at [2:9]"
)


def inserts(table: str, count: int) -> list[Delta]:
    return [
        make_delta(Op.INSERT, table, f"r{n}", {"n": n}, client_id="c", hlc=n + 1)
        for n in range(count)
    ]


def stages(jobs: EmulatedJobs) -> set[str]:
    """Return the stages that writers left."""
    tables = {item.table_id for item in jobs._client.list_tables(DATASET)}
    return {name for name in tables if name.startswith("lakesync_stage_")}


class Failing(EmulatedJobs):
    """Jobs whose transactions fail some times, before or behind what they do."""

    def __init__(self, server: BigQueryServer, error: Exception, times: int) -> None:
        super().__init__(server)
        self.error = error
        self.times = times

    def _finished(self, statement: str, parameters: Any) -> Any:
        if statement.startswith("BEGIN") and self.times:
            self.times -= 1
            raise self.error
        return super()._finished(statement, parameters)


@pytest.mark.emulator
def test_existing_table_is_not_looked_up(
    bigquery: BigQueryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs, table = EmulatedJobs(bigquery), new_table()
    monkeypatch.setattr(jobs._client, "get_table", lambda *_, **__: pytest.fail("asked for"))
    for _ in range(2):
        jobs.create(table, {"n": "INT64"})
    assert jobs.columns(table) == {"n"}


# --- writers at once ------------------------------------------------------------------------------


@pytest.mark.law("P4")
@pytest.mark.emulator
def test_transaction_aborted_by_bigquery_is_retried(
    bigquery: BigQueryServer,
) -> None:
    table = new_table()
    deltas = inserts(table, 4)
    jobs = Failing(bigquery, api.BadRequest(ABORTED), times=2)
    adapter, before = BigQueryAdapter(jobs, new_gateway()), stages(jobs)
    assert adapter.insert_deltas(batch(table, deltas)).unwrap().deltas == 4
    jobs.times = 99
    result = adapter.insert_deltas(batch(table, inserts(table, 6)))
    assert isinstance(result, Err)
    assert isinstance(result.error, AdapterTimedOut)
    assert adapter.mark(table).unwrap() == 2
    jobs.times = 0
    assert adapter.insert_deltas(batch(table, inserts(table, 6))).unwrap().deltas == 2
    assert stages(jobs) == before


@pytest.mark.law("P8")
@pytest.mark.emulator
def test_lost_transaction_is_reported_as_outcome_unknown(bigquery: BigQueryServer) -> None:
    table = new_table()
    jobs = Failing(bigquery, requests.ConnectionError("reset"), times=1)
    adapter = BigQueryAdapter(jobs, new_gateway())
    part = batch(table, inserts(table, 2))
    result = adapter.insert_deltas(part)
    assert isinstance(result, Err)
    assert isinstance(result.error, OutcomeUnknown)
    assert adapter.insert_deltas(part).unwrap().deltas == 2


@pytest.mark.law("P4")
@pytest.mark.emulator
def test_a_large_batch_is_several_transactions(
    bigquery: BigQueryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakesync.adapters.ledger_database.DELTAS_MAX", 4)
    monkeypatch.setattr("lakesync.systems.bigquery.bigquery_ledger.ROW_IDS_BYTES_MAX", 3)
    table, destination = new_table(), bigquery_destination(bigquery)
    adapter, deltas = destination.adapter(), inserts(table, 9)
    assert adapter.insert_deltas(batch(table, deltas)).unwrap().deltas == 9
    assert len(destination.rows(table)) == 9
    assert adapter.mark(table).unwrap() == 5
    destination.close()


# --- rows -----------------------------------------------------------------------------------------


@pytest.mark.law("P7")
@pytest.mark.emulator
def test_values_that_do_not_fit_and_empty_keys_are_dead_letters(bigquery: BigQueryServer) -> None:
    """BigQuery enforces no key and no constraint: only values and empty keys are refused."""
    table, destination = new_table(), bigquery_destination(bigquery)
    wanted = schema(table, {"k": "string", "n": "number"}, primary_key=("k",))
    adapter = destination.adapter()
    deltas = [
        make_delta(Op.INSERT, table, "good", {"k": "a", "n": 1}, client_id="c", hlc=1),
        make_delta(Op.INSERT, table, "text", {"k": "b", "n": "no number"}, client_id="c", hlc=1),
        make_delta(Op.INSERT, table, "empty", {"n": 3}, client_id="c", hlc=1),
    ]
    inserted = adapter.insert_deltas(batch(table, deltas, schema=wanted)).unwrap()
    letters = {letter.row_id: letter.reason for letter in inserted.dead_letters}
    assert letters.keys() == {"text", "empty"}
    assert "column n" in letters["text"]
    assert "column k" in letters["empty"]
    assert destination.rows(table, "n") == {"good": (1.0,)}
    assert adapter.dead_letters(table).unwrap() == inserted.dead_letters
    mended = [make_delta(Op.UPDATE, table, "text", {"n": 2}, client_id="c", hlc=9)]
    again = adapter.insert_deltas(batch(table, mended, after=2, schema=wanted)).unwrap()
    assert [letter.row_id for letter in again.dead_letters] == ["empty"]
    assert adapter.rewrite(table).unwrap() == 3
    assert destination.rows(table, "n") == {"good": (1.0,), "text": (2.0,)}
    assert adapter.latest_state(table, "empty").unwrap() == merged(deltas)["empty"]
    destination.close()


@pytest.mark.law("P7")
@pytest.mark.emulator
def test_batch_whose_rows_are_all_refused_fails_whole(
    bigquery: BigQueryServer,
) -> None:
    table, destination = new_table(), bigquery_destination(bigquery)
    adapter = destination.adapter()
    wanted = schema(table, {"n": "date"})
    result = adapter.insert_deltas(batch(table, inserts(table, 1_001), schema=wanted))
    assert isinstance(result, Err)
    assert isinstance(result.error, ConstraintViolated)
    assert adapter.mark(table).unwrap() == 0
    destination.close()


# --- names, types and statements ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ("decimal(12,2)", "NUMERIC(12, 2)"),
        ("decimal(38,9)", "NUMERIC(38, 9)"),
        ("decimal(38,8)", "BIGNUMERIC(38, 8)"),
        ("decimal(12,10)", "BIGNUMERIC(12, 10)"),
        ("integer", "INT64"),
        ("number", "FLOAT64"),
    ],
)
def test_decimals_take_the_type_that_holds_them(declared: str, expected: str) -> None:
    assert column_type(declared) == expected


@pytest.mark.parametrize(
    "name", ["naïve", "a b", "1st", "_PARTITIONTIME", "_table_x", "`x`", "a-b"]
)
def test_invalid_bigquery_column_name_gets_a_digest(name: str) -> None:
    assert column_name(name) != name
    check_statement(columns_added("t", {column_name(name): "INT64"}))


@pytest.mark.parametrize(
    ("source", "expected"),
    [("flights", "flights"), ("ops.flights", "ops.flights"), ("other-p.ops.f", "other-p.ops.f")],
)
def test_a_table_may_lie_in_another_dataset_or_project(source: str, expected: str) -> None:
    definition = Definition("t", schema=schema("t", {"n": "number"}, source_table=source))
    assert destination_name(definition) == expected


@pytest.mark.parametrize("source", ["a.b.c.d", "bad place.t", "a`b.t"])
def test_invalid_source_table_name_is_refused(source: str) -> None:
    with pytest.raises(SchemaMismatch):
        destination_name(Definition("t", schema=schema("t", {"n": "number"}, source_table=source)))


def test_unsafe_table_name_is_never_quoted() -> None:
    with pytest.raises(SchemaMismatch):
        quoted("t` WHERE TRUE --")


@pytest.mark.parametrize("soft_delete", [True, False])
def test_a_batch_is_one_transaction_with_exact_stamps(*, soft_delete: bool) -> None:
    kinds = {"s": "string", "j": "json", "d": "decimal(30,20)", "raw": "bytes", "i": "integer"}
    wanted = schema("t", kinds, soft_delete=soft_delete)
    definition = Definition("t").evolved(wanted, ())
    names, last = ledger_tables("acme", "t"), (1 << 63) - 1
    script = batch_taken(names, definition, ["lakesync_stage_x"], Move(7, last))
    check_statement(script)
    check_statement(history_forgotten(names, last))
    forgetful = batch_taken(names, definition, ["lakesync_stage_x"], Move(7, last, forgets=5))
    check_statement(forgetful)
    assert "WHERE commit_stamp <= 5" in forgetful
    assert forgetful.count("INSERT INTO") == script.count("INSERT INTO") == 1, "what is new is kept"
    assert "INSERT INTO" not in batch_taken(names, definition, ["s"], Move(7, 5, forgets=5))
    assert script.startswith("BEGIN TRANSACTION;")
    assert script.endswith("COMMIT TRANSACTION;")
    assert script.count("MERGE") == 2
    assert f"writes = 7, CAST({last} AS INT64)" in script


def test_ledger_tables_are_separate_by_gateway_and_table() -> None:
    names = {ledger_tables(gateway, table).rows for gateway in ("a", "b") for table in ("t", "u")}
    assert len(names) == 4


# --- errors ---------------------------------------------------------------------------------------


def forbidden(reason: str) -> api.Forbidden:
    return api.Forbidden("no", errors=[{"reason": reason}])


@pytest.mark.law("P8")
@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (api.BadRequest(ABORTED), Contention),
        (api.BadRequest("Query error: lakesync: the mark moved at [2:1]"), Contention),
        (api.BadRequest("Value of type STRING cannot be assigned to n"), ConstraintViolated),
        (api.BadRequest("Required field x cannot be null"), ConstraintViolated),
        (api.BadRequest("Syntax error"), AdapterFailed),
        (forbidden("accessDenied"), AdapterRefused),
        (forbidden("quotaExceeded"), AdapterQuotaExceeded),
        (forbidden("rateLimitExceeded"), AdapterQuotaExceeded),
        (api.TooManyRequests("slow down"), AdapterQuotaExceeded),
        (api.NotFound("Not found: Table p:d.t"), AdapterFailed),
        (api.NotFound("Not found: Dataset p:d"), AdapterRefused),
        (api.ServiceUnavailable("away"), AdapterUnreachable),
        (api.GatewayTimeout("slow"), AdapterTimedOut),
        (api.InternalServerError("oops"), AdapterFailed),
        (api.RetryError("gave up", cause=requests.ConnectionError("reset")), AdapterUnreachable),
        (requests.ConnectionError("reset"), AdapterUnreachable),
        (requests.ReadTimeout("slow"), AdapterTimedOut),
        (TimeoutError(), AdapterTimedOut),
        (auth.RefreshError("expired"), AdapterRefused),
        (auth.DefaultCredentialsError("none"), AdapterRefused),
        (auth.TransportError("no metadata server"), AdapterUnreachable),
    ],
)
def test_bigquery_error_is_translated(theirs: Exception, ours: type[LakeSyncError]) -> None:
    assert type(translated(theirs)) is ours


def test_unexpected_exception_is_not_translated() -> None:
    assert translated(KeyError("x")) is None


@pytest.mark.law("P8")
def test_closed_endpoint_is_reported_as_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BIGQUERY_EMULATOR_HOST", "http://127.0.0.1:1")
    client = google.Client(project="p", credentials=AnonymousCredentials())
    adapter = BigQueryAdapter(Jobs("p", "d", client=client, retry_s=0.1), "acme")
    result = adapter.mark("t")
    assert isinstance(result, Err)
    assert isinstance(result.error, AdapterUnreachable)
    adapter.close()


@pytest.mark.law("P8")
def test_missing_credentials_are_refused_with_the_login_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def none(*_: object, **__: object) -> None:
        raise auth.DefaultCredentialsError("none")

    monkeypatch.setattr("google.auth.default", none)
    result = BigQueryAdapter(Jobs("p", "d"), "acme").mark("t")
    assert isinstance(result, Err)
    assert isinstance(result.error, AdapterRefused)
    assert "gcloud auth application-default login" in str(result.error)


@pytest.mark.emulator
def test_int64_decimal_and_float_values_are_exact_in_their_columns(
    bigquery: BigQueryServer,
) -> None:
    table, destination = new_table(), bigquery_destination(bigquery)
    wanted = schema(table, {"i": "integer", "d": "decimal(38,9)", "n": "number"})
    values = {"i": "-9223372036854775808", "d": "12345678901234567890123456789.123456789", "n": 0.1}
    delta = make_delta(Op.INSERT, table, "r1", values, client_id="c", hlc=1)
    destination.adapter().insert_deltas(batch(table, [delta], schema=wanted)).unwrap()
    expected = (-(1 << 63), Decimal("12345678901234567890123456789.123456789"), 0.1)
    assert destination.rows(table, "i", "d", "n") == {"r1": expected}
    destination.close()
