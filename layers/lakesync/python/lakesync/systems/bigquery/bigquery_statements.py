"""All SQL statements and scripts for BigQuery, their names and types, and what its errors mean.

The statements are pure; tests parse all. Names are quoted and checked; values are parameters or are
read from the stage. A script takes no parameters: the integers that change from batch to batch are
written into its text.

BigQuery's errors become LakeSync's by class, status and reason.
"""

from __future__ import annotations

import concurrent.futures
import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import requests
from google.api_core import exceptions as api
from google.auth import exceptions as auth

from lakesync.adapters.ledger_database import old_until
from lakesync.adapters.sql.ledger import DELETED_AT, PREFIX, PROPS, SYNCED_AT, digested
from lakesync.adapters.sql.ledger import sql_name as common_name
from lakesync.core.clock import stamp_ms
from lakesync.core.column_types import precision_scale
from lakesync.core.schema import ROW_ID
from lakesync.errors import (
    AdapterFailed,
    AdapterQuotaExceeded,
    AdapterRefused,
    AdapterTimedOut,
    AdapterUnreachable,
    ConstraintViolated,
    Contention,
    LakeSyncError,
    SchemaMismatch,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lakesync.adapters.sql.ledger import Definition
    from lakesync.core.clock import Stamp

# --- names and types ------------------------------------------------------------------------------


_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLACE: Final = re.compile(r"[A-Za-z0-9_-]+")
_RESERVED: Final = (
    "_table_", "_file_", "_partition", "_row_timestamp", "__root__", "_colidentifier",
)  # fmt: skip
"""Prefixes that BigQuery does not allow in column names."""
_NAME_PARTS_MAX: Final = 3
"""Project, dataset and table."""
_NUMERIC: Final = (29, 9)
"""Digits before and after the point of a NUMERIC; a BIGNUMERIC has 38 of each."""
_TYPES: Final[Mapping[str, str]] = {
    "string": "STRING",
    "number": "FLOAT64",
    "boolean": "BOOL",
    "json": "JSON",
    "null": "STRING",
    "integer": "INT64",
    "timestamp": "TIMESTAMP",
    "date": "DATE",
    "bytes": "BYTES",
}
_STAGED_AS_TEXT: Final = {"JSON": "STRING", "BYTES": "STRING"}
TABLES: Final = f"{PREFIX}tables"
TABLES_COLUMNS: Final = {
    "gateway": "STRING NOT NULL",
    "table_name": "STRING NOT NULL",
    "destination": "STRING NOT NULL",
    "definition": "STRING NOT NULL",
}
ROWS_COLUMNS: Final = {"row_id": "STRING NOT NULL", "state": "BYTES NOT NULL", "refusal": "STRING"}
COMMITS_COLUMNS: Final = {"commit_stamp": "INT64 NOT NULL", "records": "BYTES NOT NULL"}


@dataclass(frozen=True)
class LedgerTables:
    """The names of the ledger of one synced table: no other writer shares them."""

    rows: str
    commits: str
    mark: str


def ledger_tables(gateway: str, table: str) -> LedgerTables:
    digest = hashlib.sha256(f"{gateway}\0{table}".encode()).hexdigest()[:16]
    plain = re.sub(r"[^A-Za-z0-9_]", "_", table)[:40]
    names = (f"{PREFIX}{kind}_{plain}_{digest}" for kind in ("rows", "commits", "mark"))
    return LedgerTables(*names)


# --- names and types ------------------------------------------------------------------------------


def quoted(name: str) -> str:
    """Quote a name of ours or one that `destination_name` or `column_name` gave."""
    if not all(_PLACE.fullmatch(part) for part in name.split(".")):
        raise SchemaMismatch(f"{name[:80]!r} is not a valid name in BigQuery", field="sourceTable")
    return f"`{name}`"


def column_name(column: str) -> str:
    """Return a column's name in BigQuery: its own if allowed there, else one with a digest."""
    name = common_name(column)
    is_fit = _PLAIN.fullmatch(name) and not name.lower().startswith(_RESERVED)
    return name if is_fit else digested(name)


def destination_name(definition: Definition) -> str:
    """Return the name of a table to query: its own if allowed there, else one with a digest.

    Raises:
        SchemaMismatch: its project or dataset is not a valid name.
    """
    *place, name = definition.destination.split(".")
    if len(place) >= _NAME_PARTS_MAX or not all(map(_PLACE.fullmatch, place)):
        raise SchemaMismatch(
            f"{definition.destination[:80]!r}: name a table, dataset.table or "
            "project.dataset.table with sourceTable in the schema",
            field="sourceTable",
        )
    return ".".join([*place, name if _PLAIN.fullmatch(name) else digested(name)])


def column_type(type_name: str) -> str:
    """Return a column's type in BigQuery."""
    digits = precision_scale(type_name)
    if digits is None:
        return _TYPES[type_name]
    precision, scale = digits
    fits = scale <= _NUMERIC[1] and precision - scale <= _NUMERIC[0]
    return f"{'' if fits else 'BIG'}NUMERIC({precision}, {scale})"


def table_columns(definition: Definition) -> dict[str, str]:
    columns = {column_name(name): column_type(kind) for name, kind in stored(definition)}
    own = {PROPS: "JSON", SYNCED_AT: "TIMESTAMP", DELETED_AT: "TIMESTAMP"}
    return {ROW_ID: "STRING"} | columns | own


def stage_columns(definition: Definition) -> dict[str, str]:
    """Return the columns of a stage; its rows are commits, or rows with states and values."""
    ours = {"commit_stamp": "INT64", "records": "STRING", "state": "STRING", "refusal": "STRING"}
    values = {f"v{place}": _staged_type(kind) for place, (_, kind) in enumerate(stored(definition))}
    return ours | {ROW_ID: "STRING", DELETED_AT: "TIMESTAMP"} | values


def stored(definition: Definition) -> Sequence[tuple[str, str]]:
    """Return the existing synced columns, in order, with their types."""
    return list(definition.stored_columns().items())


def _staged_type(kind: str) -> str:
    sql_type = column_type(kind)
    return "STRING" if "NUMERIC" in sql_type else _STAGED_AS_TEXT.get(sql_type, sql_type)


# --- statements -----------------------------------------------------------------------------------


_DAY_MS: Final = 86_400_000

# --- definitions ----------------------------------------------------------------------------------


def mark_created(mark: str) -> str:
    """Create the table of a mark together with its one row, if it does not exist."""
    return (
        f"CREATE TABLE IF NOT EXISTS {quoted(mark)} "
        "AS SELECT CAST(0 AS INT64) AS mark, CAST(0 AS INT64) AS forgotten, "
        "CAST(0 AS INT64) AS writes"
    )


def columns_added(table: str, columns: Mapping[str, str]) -> str:
    """Add columns in one statement, because BigQuery limits the number of changes of a table."""
    added = ", ".join(
        f"ADD COLUMN IF NOT EXISTS {quoted(name)} {kind}" for name, kind in columns.items()
    )
    return f"ALTER TABLE {quoted(table)} {added}"


def column_widened(table: str, column: str, sql_type: str) -> str:
    return f"ALTER TABLE {quoted(table)} ALTER COLUMN {quoted(column)} SET DATA TYPE {sql_type}"


def column_dropped(table: str, column: str) -> str:
    return f"ALTER TABLE {quoted(table)} DROP COLUMN IF EXISTS {quoted(column)}"


def definition_added() -> str:
    """Store the definition of a new table, unless another synced table has the same destination."""
    return (
        f"MERGE {quoted(TABLES)} t USING (SELECT @gateway AS gateway, @name AS table_name, "  # noqa: S608
        "@destination AS destination, @definition AS definition) s "
        "ON t.destination = s.destination "
        "WHEN NOT MATCHED THEN INSERT (gateway, table_name, destination, definition) "
        "VALUES (s.gateway, s.table_name, s.destination, s.definition)"
    )


def definition_changed() -> str:
    """Replace a definition, unless another writer has replaced it meanwhile."""
    return (
        f"UPDATE {quoted(TABLES)} SET definition = @definition, destination = @destination "  # noqa: S608
        "WHERE gateway = @gateway AND table_name = @name AND definition = @before"
    )


# --- a batch --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Move:
    """How a write changes a table's mark."""

    writes: int
    """The table's count of writes when its states were read."""
    mark: Stamp
    """The new mark."""
    forgets: Stamp = 0
    """The last commit to remove from the history; 0 removes nothing."""


def moved_on(writes: int, mark: Stamp, last: Stamp, history_ms: int | None) -> Move:
    """Return the move of the mark by a batch; the first batch of a day also forgets old history."""
    is_first = stamp_ms(mark) // _DAY_MS < stamp_ms(last) // _DAY_MS
    return Move(writes, last, old_until(last, history_ms) if is_first else 0)


def batch_taken(
    names: LedgerTables, definition: Definition, stages: Sequence[str], move: Move
) -> str:
    """Return the script that writes the staged rows and moves the mark, in one transaction.

    The mark is updated first. BigQuery aborts one of two concurrent writers, because both change
    the mark's table. A later writer finds a higher count of writes than it read, which ends its
    script and rolls it back.
    """
    guard = f"IF(writes = {move.writes:d}, CAST({move.mark:d} AS INT64), ERROR('{MARK_MOVED}'))"
    moved = f"mark = {guard}, writes = writes + 1"
    if move.forgets:
        moved += f", forgotten = GREATEST(forgotten, {_forgotten_until(names.commits, move)})"
    steps = [f"UPDATE {quoted(names.mark)} SET {moved} WHERE TRUE"]  # noqa: S608 - quoted
    if move.forgets:
        steps += [f"DELETE FROM {quoted(names.commits)} WHERE commit_stamp <= {move.forgets:d}"]  # noqa: S608
    if stages:
        staged = _all_of(stages)
        steps += [] if move.forgets >= move.mark else [_commits_added(names.commits, staged)]
        steps += [_states_merged(names.rows, staged), _rows_merged(definition, staged)]
    return transaction(steps)


def _forgotten_until(commits: str, move: Move) -> str:
    """Return the last forgotten commit: a reader that has read it can continue."""
    if move.forgets >= move.mark:
        return f"{move.forgets:d}"
    last = f"SELECT MAX(commit_stamp) FROM {quoted(commits)} WHERE commit_stamp <= {move.forgets:d}"  # noqa: S608
    return f"IFNULL(({last}), 0)"


def begun_anew(names: LedgerTables) -> str:
    """Return the script that forgets all history and the mark; rows stay."""
    moved = "forgotten = GREATEST(forgotten, mark), mark = 0, writes = writes + 1"
    return transaction(
        [
            f"UPDATE {quoted(names.mark)} SET {moved} WHERE TRUE",  # noqa: S608 - quoted
            f"DELETE FROM {quoted(names.commits)} WHERE TRUE",  # noqa: S608 - quoted
        ]
    )


def history_forgotten(names: LedgerTables, until: Stamp) -> str:
    """Return the script that forgets commits, none above the mark."""
    bound = f"GREATEST(forgotten, LEAST(mark, {until:d}))"
    known = f"(SELECT forgotten FROM {quoted(names.mark)})"  # noqa: S608 - quoted
    return transaction(
        [
            f"UPDATE {quoted(names.mark)} SET forgotten = {bound} WHERE TRUE",  # noqa: S608 - quoted
            f"DELETE FROM {quoted(names.commits)} WHERE commit_stamp <= {known}",  # noqa: S608 - quoted
        ]
    )


def transaction(steps: Sequence[str]) -> str:
    """Return a script that runs all of the steps in one transaction."""
    return ";\n".join(["BEGIN TRANSACTION", *steps, "COMMIT TRANSACTION"]) + ";"


def _all_of(stages: Sequence[str]) -> str:
    """Return the FROM clause that reads all stages as one table."""
    if len(stages) == 1:
        return quoted(stages[0])
    return f"({' UNION ALL '.join(f'SELECT * FROM {quoted(one)}' for one in stages)})"  # noqa: S608


def _commits_added(commits: str, staged: str) -> str:
    return (
        f"INSERT INTO {quoted(commits)} (commit_stamp, records) "  # noqa: S608 - quoted
        f"SELECT commit_stamp, FROM_BASE64(records) FROM {staged} "
        "WHERE commit_stamp IS NOT NULL"
    )


def _states_merged(rows: str, staged: str) -> str:
    return (
        f"MERGE {quoted(rows)} t USING (SELECT row_id, FROM_BASE64(state) AS state, refusal "  # noqa: S608
        f"FROM {staged} WHERE row_id IS NOT NULL) s ON t.row_id = s.row_id "
        "WHEN MATCHED AND s.state IS NULL THEN DELETE "
        "WHEN MATCHED THEN UPDATE SET state = s.state, refusal = s.refusal "
        "WHEN NOT MATCHED AND s.state IS NOT NULL THEN INSERT (row_id, state, refusal) "
        "VALUES (s.row_id, s.state, s.refusal)"
    )


def _rows_merged(definition: Definition, staged: str) -> str:
    """Write the staged rows that were not refused to the table to query, and remove deleted ones.

    A row without a state is removed together with its state.
    """
    synced = stored(definition)
    names = [quoted(column_name(name)) for name, _ in synced]
    values = [_value(f"v{place}", kind) for place, (_, kind) in enumerate(synced)]
    chosen = "".join(f", {value} AS v{place}" for place, value in enumerate(values))
    assigned = "".join(f"{name} = s.v{place}, " for place, name in enumerate(names))
    listed = "".join(f", {name}" for name in names)
    given = "".join(f", s.v{place}" for place in range(len(names)))
    now = f"{SYNCED_AT} = CURRENT_TIMESTAMP(), {DELETED_AT} = s.{DELETED_AT}"
    gone = f"UPDATE SET {now}" if definition.keeps_deleted else "DELETE"
    return (
        f"MERGE {quoted(destination_name(definition))} t "  # noqa: S608 - quoted
        f"USING (SELECT row_id, state, {DELETED_AT}{chosen} FROM {staged} "
        "WHERE row_id IS NOT NULL AND refusal IS NULL) s ON t.row_id = s.row_id "
        "WHEN MATCHED AND s.state IS NULL THEN DELETE "
        f"WHEN MATCHED AND s.{DELETED_AT} IS NOT NULL THEN {gone} "
        f"WHEN MATCHED THEN UPDATE SET {assigned}{now} "
        f"WHEN NOT MATCHED AND s.{DELETED_AT} IS NULL AND s.state IS NOT NULL THEN "
        f"INSERT (row_id{listed}, {PROPS}, {SYNCED_AT}) "
        f"VALUES (s.row_id{given}, PARSE_JSON('{{}}'), CURRENT_TIMESTAMP())"
    )


def _value(staged: str, kind: str) -> str:
    """Return the expression that converts a staged value to its column's type."""
    sql_type = column_type(kind)
    if sql_type == "JSON":
        return f"PARSE_JSON({staged}, wide_number_mode => 'round')"
    if sql_type == "BYTES":
        return f"FROM_BASE64({staged})"
    base = sql_type.partition("(")[0]
    return f"PARSE_{base}({staged})" if base.endswith("NUMERIC") else staged


# --- errors ---------------------------------------------------------------------------------------


MARK_MOVED: Final = "lakesync: the mark moved"
"""The message of a script that finds another writer's mark."""
_ABORTED: Final = "aborted due to concurrent update"
_QUOTA: Final = frozenset({"quotaExceeded", "rateLimitExceeded", "jobRateLimitExceeded"})
_UNFILTERED: Final = "without a filter over column"
"""The table may be read only with a filter by which partitions are left out."""
_TOO_MANY_BYTES: Final = "exceeded limit for bytes billed"
_ROW_FAULTS: Final = (
    "cannot be assigned",
    "cannot be null",
    "Required field",
    "out of range",
    "Bad double value",
    "Could not cast",
)
"""How BigQuery's message begins if the columns of an existing table do not fit the values."""
_CREDENTIALS: Final = (
    "BigQuery: no Application Default Credentials: run `gcloud auth application-default login`, or "
    "set up workload identity federation where this runs"
)


def is_missing(error: LakeSyncError) -> bool:
    """Return whether the error means that something does not exist: a table, a job, its rows."""
    return isinstance(error.__cause__, api.NotFound)


def is_statement_fault(error: LakeSyncError) -> bool:
    """Return whether BigQuery refuses a statement for what it says, at any time."""
    return isinstance(error.__cause__, api.BadRequest | api.NotFound)


def is_missing_table(error: LakeSyncError) -> bool:
    """Return whether the error means that a table does not exist: never created, or dropped."""
    return type(error) is AdapterFailed and isinstance(error.__cause__, api.NotFound)


def translated(error: Exception) -> LakeSyncError | None:
    """Translate an error of the client, its transport or Google's sign-in to one of ours.

    Return None for a bug. `Contention` means that another writer was first and nothing was written.
    """
    cause = getattr(error, "cause", None)
    if isinstance(error, api.RetryError) and isinstance(cause, Exception):
        return translated(cause) or AdapterTimedOut(_message(error))
    if isinstance(error, api.GoogleAPICallError):
        return _refused(error)
    if isinstance(error, auth.TransportError):
        return AdapterUnreachable(_message(error))
    if isinstance(error, auth.DefaultCredentialsError):
        return AdapterRefused(_CREDENTIALS)
    if isinstance(error, auth.GoogleAuthError):
        return AdapterRefused(_message(error))
    if isinstance(error, TimeoutError | concurrent.futures.TimeoutError | requests.Timeout):
        return AdapterTimedOut("BigQuery was too slow; the job was cancelled; repeat the operation")
    if isinstance(error, requests.RequestException | OSError):
        return AdapterUnreachable("BigQuery could not be reached, or the connection was lost")
    return None


def _refused(error: api.GoogleAPICallError) -> LakeSyncError:
    message = _message(error)
    reasons = {item.get("reason") for item in error.errors or () if isinstance(item, dict)}
    if reasons & _QUOTA or isinstance(error, api.TooManyRequests):
        return AdapterQuotaExceeded(message)
    if MARK_MOVED in message or _ABORTED in message:
        return Contention("BigQuery: another writer was first; repeat the operation")
    if isinstance(error, api.NotFound):
        is_table = "table" in message.lower()
        return (
            AdapterFailed(message) if is_table else AdapterRefused(f"{message}; create the dataset")
        )
    is_refused = isinstance(error, api.Forbidden | api.Unauthorized)
    if is_refused or _UNFILTERED in message or _TOO_MANY_BYTES in message:
        return AdapterRefused(message)
    if isinstance(error, api.GatewayTimeout | api.DeadlineExceeded):
        return AdapterTimedOut(message)
    if isinstance(error, api.ServiceUnavailable | api.BadGateway):
        return AdapterUnreachable(message)
    if isinstance(error, api.BadRequest) and any(words in message for words in _ROW_FAULTS):
        return ConstraintViolated(message)
    return AdapterFailed(message)


def _message(error: Exception) -> str:
    """Return BigQuery's message in one line, without the request's address."""
    message = getattr(error, "message", None) or str(error)
    return f"BigQuery: {' '.join(str(message).split())[:300]}"
