"""A gateway's tables in BigQuery: the ledger, the tables to query, and the stages of a write.

The ledger makes a batch take effect exactly once. Each synced table has three ledger tables:
``lakesync_rows_…`` holds its row states and marks refused rows, ``lakesync_commits_…`` its history,
and ``lakesync_mark_…`` one row with its mark and its count of writes. Every change raises that
count, so a writer can check that the states it read are current. BigQuery aborts one of two
transactions that change the same table, so synced tables share none of these. ``lakesync_tables``
holds the definitions of the tables to query.

Stages are temporary tables of one write, filled by load jobs with rows and commits as lines of
JSON, and then read by one script.
"""

from __future__ import annotations

import base64
import json
from contextlib import suppress
from datetime import date, datetime
from decimal import Decimal
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar
from uuid import uuid4

from lakesync.adapters.database import DeadLetter
from lakesync.adapters.ledger_database import check_history, check_refused, deltas_behind
from lakesync.adapters.sql.ledger import (
    DELETED_AT,
    PREFIX,
    REASON_CHARACTERS_MAX,
    Definition,
    deleted_at,
    from_json,
)
from lakesync.core.column_types import Unfit, precision_scale, sql_value
from lakesync.core.merge import view
from lakesync.core.schema import ROW_ID
from lakesync.errors import (
    AdapterFailed,
    AdapterTimedOut,
    Contention,
    LakeSyncError,
    SchemaMismatch,
)
from lakesync.systems.bigquery.bigquery_statements import (
    COMMITS_COLUMNS,
    ROWS_COLUMNS,
    TABLES,
    TABLES_COLUMNS,
    Move,
    batch_taken,
    begun_anew,
    column_dropped,
    column_name,
    column_type,
    column_widened,
    columns_added,
    definition_added,
    definition_changed,
    destination_name,
    history_forgotten,
    is_missing_table,
    ledger_tables,
    mark_created,
    quoted,
    stage_columns,
    stored,
    table_columns,
)
from lakesync.wire.records import decode_row_state, encode_records, encode_row_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from lakesync.adapters.database import PlacedDelta, Position
    from lakesync.core.clock import Stamp
    from lakesync.core.merge import RowState
    from lakesync.core.schema import TableSchema
    from lakesync.systems.bigquery.bigquery_jobs import Jobs

# --- stages ---------------------------------------------------------------------------------------


STAGE_BYTES_MAX: Final = 32_000_000
"""JSON bytes that a part of a large batch loads into one stage, plus its last row or commit."""


class Stage(NamedTuple):
    """A stage that a part of a batch loaded."""

    name: str
    rows: int = 0
    """Rows that its deltas changed."""
    deltas: int = 0
    """Deltas of the commits in it."""
    refused: tuple[DeadLetter, ...] = ()


class Stages:
    """Lines that become stages, each of bounded size."""

    def __init__(self, jobs: Jobs, definition: Definition) -> None:
        self._jobs = jobs
        self._definition = definition
        self._empty()

    def _empty(self) -> None:
        self._lines: list[bytes] = []
        self._bytes = self._rows = self._deltas = 0
        self._refused: list[DeadLetter] = []

    def add(self, line: dict[str, Any], *, rows: int = 0, deltas: int = 0) -> Iterator[Stage]:
        """Add a line; return the stage if it is full now."""
        if "refusal" in line:
            letter = DeadLetter(self._definition.table, line[ROW_ID], line["refusal"])
            self._refused.append(letter)
        text = json_line(line)
        self._lines.append(text)
        self._bytes += len(text)
        self._rows += rows
        self._deltas += deltas
        if self._bytes >= STAGE_BYTES_MAX:
            yield from self.rest()

    def rest(self) -> Iterator[Stage]:
        """Load the remaining lines; return their stage, if there are any."""
        if self._lines:
            name = new_stage()
            self._jobs.load(name, stage_columns(self._definition), self._lines)
            yield Stage(name, self._rows, self._deltas, tuple(self._refused))
            self._empty()


def new_stage() -> str:
    return f"{PREFIX}stage_{uuid4().hex}"


def json_line(line: object) -> bytes:
    return json.dumps(line, ensure_ascii=False).encode()


def drop_stages(jobs: Jobs, names: Iterable[str]) -> None:
    """Try to remove stages; BigQuery removes the rest after a day."""
    for name in names:
        with suppress(LakeSyncError):
            jobs.drop(name)


# --- lines of JSON --------------------------------------------------------------------------------


def commit_lines(deltas: Sequence[PlacedDelta]) -> Iterator[dict[str, Any]]:
    for commit, placed in groupby(deltas, key=lambda placed: placed.position.commit):
        records = encode_records(delta for _, delta in placed)
        yield {"commit_stamp": str(commit), "records": _base64(records)}


def row_line(definition: Definition, row_id: str, state: RowState | None) -> dict[str, Any]:
    """Return a row as a line of the stage: with its values, or with the reason for its refusal.

    A state of None removes the row and its state.
    """
    if state is None:
        return {ROW_ID: row_id}
    line: dict[str, Any] = {ROW_ID: row_id, "state": _base64(encode_row_state(state))}
    values = view(definition.as_read(state))
    if values is None:
        return line | {DELETED_AT: deleted_at(state).isoformat()}
    row = {}
    for place, (name, kind) in enumerate(stored(definition)):
        try:
            value = sql_value(kind, values.get(name))
        except Unfit as exc:
            return line | {"refusal": f"column {name}: {exc}"[:REASON_CHARACTERS_MAX]}
        if value is None and name in definition.keys and name != ROW_ID:
            return line | {"refusal": f"column {name}: a primary key is never empty"}
        if value is not None:
            row[f"v{place}"] = _staged(value)
    return line | row


def _staged(value: object) -> object:
    """Return a value in a form that JSON represents exactly."""
    if isinstance(value, bytes):
        return _base64(value)
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, bool | float | str):
        return value
    return str(value) if isinstance(value, int | Decimal) else value


def _base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


# --- the ledger and the tables to query -----------------------------------------------------------


COMMITS_READ: Final = 1_000
"""History commits that are read at a time; each has at most the deltas of one push."""
ROW_IDS_BYTES_MAX: Final = 4_000_000
"""Bytes of row ids that one statement is given; a request may have 10 MB."""


class Standing(NamedTuple):
    """A table's mark, its count of writes, and its refused rows."""

    mark: Stamp
    writes: int
    refused: Sequence[str]


class BigQueryLedger:
    """`lakesync.adapters.ledger_database.TableLedger` in BigQuery."""

    def __init__(self, jobs: Jobs, gateway: str) -> None:
        self._jobs = jobs
        self._gateway = gateway

    def create(self, table: str) -> None:
        """Create the missing tables of a synced table's ledger."""
        names = ledger_tables(self._gateway, table)
        self._jobs.create(names.rows, ROWS_COLUMNS, cluster_by="row_id")
        self._jobs.create(names.commits, COMMITS_COLUMNS, cluster_by="commit_stamp")
        self._jobs.change(mark_created(names.mark))

    # --- marks and history ------------------------------------------------------------------------

    def mark(self, table: str) -> Stamp:
        return self._marks(table)[0]

    def _marks(self, table: str) -> tuple[Stamp, Stamp]:
        """Return a table's mark, and the last commit that its history no longer contains."""
        mark = quoted(ledger_tables(self._gateway, table).mark)
        rows = self._read(f"SELECT mark, forgotten FROM {mark}")  # noqa: S608 - quoted
        return (int(rows[0][0]), int(rows[0][1])) if rows else (0, 0)

    def standing(self, table: str) -> Standing:
        """Return a table's mark, count of writes and refused rows, read together."""
        names = ledger_tables(self._gateway, table)
        ((mark, writes, refused),) = self._jobs.query(
            f"SELECT (SELECT mark FROM {quoted(names.mark)}) AS mark, "  # noqa: S608 - quoted
            f"(SELECT writes FROM {quoted(names.mark)}) AS writes, "
            f"ARRAY(SELECT row_id FROM {quoted(names.rows)} "
            "WHERE refusal IS NOT NULL ORDER BY row_id) AS refused"
        )
        return Standing(int(mark), int(writes), refused)

    def deltas(self, table: str, since: Position, deltas_max: int) -> Iterator[PlacedDelta]:
        commits = quoted(ledger_tables(self._gateway, table).commits)

        def commits_after(after: Stamp) -> Sequence[Any]:
            read = self._read(
                f"SELECT commit_stamp, records FROM {commits} WHERE commit_stamp > @after "  # noqa: S608
                f"ORDER BY commit_stamp LIMIT {COMMITS_READ}",
                after=after,
            )
            # Read after the commits, so that commits that were forgotten meanwhile raise an error.
            check_history(table, since, self._marks(table)[1])
            return read

        return deltas_behind(since, deltas_max, commits_after)

    def forget_commits(self, table: str, until: Stamp) -> None:
        self.create(table)
        self._jobs.transact(history_forgotten(ledger_tables(self._gateway, table), until))

    def begin_anew(self, table: str) -> None:
        self.create(table)
        self._jobs.transact(begun_anew(ledger_tables(self._gateway, table)))

    # --- rows -------------------------------------------------------------------------------------

    def states(self, table: str, row_ids: Sequence[str]) -> dict[str, RowState]:
        rows = quoted(ledger_tables(self._gateway, table).rows)
        states: dict[str, RowState] = {}
        for some in _portions(row_ids):
            # The table is clustered by row id: for adjacent ids only a part of it is read.
            states |= self._states(
                f"SELECT row_id, state FROM {rows} "  # noqa: S608 - quoted
                "WHERE row_id BETWEEN @first AND @last AND row_id IN UNNEST(@row_ids)",
                first=min(some, default=""),
                last=max(some, default=""),
                row_ids=some,
            )
        return states

    def states_after(self, table: str, row_id: str, count: int) -> dict[str, RowState]:
        rows = quoted(ledger_tables(self._gateway, table).rows)
        return self._states(
            f"SELECT row_id, state FROM {rows} WHERE row_id > @after "  # noqa: S608 - quoted
            f"ORDER BY row_id LIMIT {count:d}",
            after=row_id,
        )

    def dead_letters(self, table: str) -> tuple[DeadLetter, ...]:
        rows = quoted(ledger_tables(self._gateway, table).rows)
        refused = self._read(
            f"SELECT row_id, refusal FROM {rows} WHERE refusal IS NOT NULL ORDER BY row_id"  # noqa: S608
        )
        return tuple(DeadLetter(table, row_id, reason) for row_id, reason in refused)

    # --- definitions of tables to query -----------------------------------------------------------

    def definition(self, table: str) -> tuple[Definition, str]:
        """Return the definition of a table to query, and its stored text; both may be empty."""
        rows = self._read(
            f"SELECT definition FROM {quoted(TABLES)} "  # noqa: S608 - quoted
            "WHERE gateway = @gateway AND table_name = @name",
            gateway=self._gateway,
            name=table,
        )
        return (from_json(table, rows[0][0]), rows[0][0]) if rows else (Definition(table), "")

    def schema(self, table: str) -> TableSchema | None:
        return self.definition(table)[0].schema

    def schemas(self) -> dict[str, TableSchema | None]:
        rows = self._read(
            f"SELECT table_name, definition FROM {quoted(TABLES)} "  # noqa: S608 - quoted
            "WHERE gateway = @gateway ORDER BY table_name",
            gateway=self._gateway,
        )
        return {table: from_json(table, text).schema for table, text in rows}

    def owner(self, destination: str) -> tuple[str, str] | None:
        """Return the gateway and the synced table whose rows are in a table to query."""
        rows = self._read(
            f"SELECT gateway, table_name FROM {quoted(TABLES)} "  # noqa: S608 - quoted
            "WHERE destination = @destination",
            destination=destination,
        )
        return (rows[0][0], rows[0][1]) if rows else None

    def save_definition(self, definition: Definition, before: str) -> bool:
        """Store the definition of a table to query, unless another writer has stored another."""
        parameters = {
            "gateway": self._gateway,
            "name": definition.table,
            "destination": destination_name(definition),
            "definition": definition.to_json(),
        }
        if before:
            return bool(self._jobs.change(definition_changed(), **parameters, before=before))
        self._jobs.create(TABLES, TABLES_COLUMNS, cluster_by="gateway")
        return bool(self._jobs.change(definition_added(), **parameters))

    # --- reading ----------------------------------------------------------------------------------

    def _states(self, statement: str, **parameters: str | Sequence[str]) -> dict[str, RowState]:
        rows = self._read(statement, **parameters)
        return {row_id: decode_row_state(state) for row_id, state in rows}

    def _read(self, statement: str, **parameters: str | int | Sequence[str]) -> list[Any]:
        try:
            return self._jobs.query(statement, **parameters)
        except AdapterFailed as error:
            if is_missing_table(error):
                return []
            raise


def _portions(row_ids: Sequence[str]) -> Iterator[list[str]]:
    """Cut row ids into as few portions as statements can take; one empty portion without ids."""
    portion: list[str] = []
    size = 0
    for row_id in row_ids:
        length = len(row_id.encode())
        if portion and size + length > ROW_IDS_BYTES_MAX:
            yield portion
            portion, size = [], 0
        portion.append(row_id)
        size += length
    yield portion


# --- tables to query ------------------------------------------------------------------------------


T = TypeVar("T")

ROWS_PAGE: Final = 10_000
"""Rows that are written at a time when a table is rewritten."""
ATTEMPTS_MAX: Final = 5
"""How often a writer starts again because another writer was first."""


class BigQueryTables:
    """The tables to query of one gateway. Definitions are cached."""

    def __init__(self, jobs: Jobs, ledger: BigQueryLedger, gateway: str) -> None:
        self._jobs = jobs
        self._ledger = ledger
        self._gateway = gateway
        self._known: dict[str, Definition] = {}

    def forget(self) -> None:
        """Clear the cached definitions."""
        self._known.clear()

    # --- definitions ------------------------------------------------------------------------------

    def prepare(
        self,
        table: str,
        schema: TableSchema | None,
        written: Iterable[str],
        *,
        always: bool = False,
    ) -> int:
        """Create the table to query, or add its missing columns; costs nothing if it is complete.

        Rows are rewritten if the change requires it, or if `always`; returns how many. The
        definition is stored last, so after a crash this starts again.
        """
        known = self._known.get(table)
        if known and known.covers(schema, written) and not always:
            return 0
        for _ in range(ATTEMPTS_MAX):
            current, text = self._ledger.definition(table)
            wanted = current.evolved(schema, written)
            self._check_owner(wanted)
            self._ledger.create(table)
            rows = 0
            if self._made(wanted, current) or always or not wanted.reads_as(current):
                rows = self._rows_rewritten(wanted)
            if wanted.to_json() == text or self._ledger.save_definition(wanted, text):
                self._known[table] = wanted
                return rows
        raise AdapterTimedOut(
            f"other writers keep changing the definition of {table}; repeat the operation"
        )

    def _check_owner(self, wanted: Definition) -> None:
        destination = destination_name(wanted)
        if self._ledger.owner(destination) not in {None, (self._gateway, wanted.table)}:
            raise SchemaMismatch(
                f"{destination} holds the rows of another table; name one of its own for "
                f"{wanted.table} with sourceTable in the schema",
                field="sourceTable",
            )

    def _made(self, wanted: Definition, current: Definition) -> bool:
        """Change the table to its definition; return whether rows must be rewritten."""
        destination, columns = destination_name(wanted), table_columns(wanted)
        there = self._jobs.columns(destination)
        if there is None:
            self._jobs.create(destination, columns, cluster_by=ROW_ID)
            return bool(current.columns)
        present = {name.lower() for name in there}
        for name, kind in stored(current):
            ours, sql_type = column_name(name), column_type(wanted.columns[name])
            if wanted.columns[name] == kind or ours.lower() not in present:
                continue
            if precision_scale(kind):
                self._jobs.change(column_widened(destination, ours, sql_type))
            else:
                self._jobs.change(column_dropped(destination, ours))
                present.remove(ours.lower())
        missing = {name: kind for name, kind in columns.items() if name.lower() not in present}
        if missing:
            self._jobs.change(columns_added(destination, missing))
        return any(column_name(name).lower() not in present for name, _ in stored(current))

    def _rows_rewritten(self, definition: Definition) -> int:
        rows, after = 0, ""
        while True:
            standing = self._ledger.standing(definition.table)
            move = Move(standing.writes, standing.mark)
            states = self._ledger.states_after(definition.table, after, ROWS_PAGE)
            if not states:
                return rows
            self._known[definition.table] = definition
            with suppress(Contention):  # then the page is read again
                self.write(definition.table, move, (), states)
                rows, after = rows + len(states), max(states, key=str.encode)

    # --- rows -------------------------------------------------------------------------------------

    def write(
        self,
        table: str,
        move: Move,
        deltas: Sequence[PlacedDelta],
        states: Mapping[str, RowState | None],
    ) -> tuple[DeadLetter, ...]:
        """Write history, states and rows, and move the mark, in one transaction.

        Args:
            move: the count of writes when the states were read, and the new mark.
            deltas: whole commits behind the mark.
            states: of rows that changed, and of those that were refused earlier; None to remove a
                row together with its state.

        Returns:
            The rows that are refused.

        Raises:
            Contention: another writer was first.
            ConstraintViolated: too many rows are refused.
        """
        definition = self._known[table]
        lines = [row_line(definition, row_id, state) for row_id, state in states.items()]
        refused = few_enough(
            table,
            [DeadLetter(table, line[ROW_ID], line["refusal"]) for line in lines
             if "refusal" in line],
        )  # fmt: skip
        lines += commit_lines(deltas)
        stages = [new_stage()] if lines else []
        try:
            for stage in stages:
                self._jobs.load(stage, stage_columns(definition), map(json_line, lines))
            self.take(table, move, stages)
        finally:
            drop_stages(self._jobs, stages)
        return refused

    def take(self, table: str, move: Move, stages: Sequence[str]) -> None:
        """Write staged rows, and move the mark, in one transaction; see `write`."""
        names = ledger_tables(self._gateway, table)
        self._jobs.transact(batch_taken(names, self._known[table], stages, move))

    def definition(self, table: str) -> Definition:
        """Return the definition of a table for which `prepare` was called."""
        return self._known[table]


def few_enough(table: str, letters: Iterable[DeadLetter]) -> tuple[DeadLetter, ...]:
    """Return refused rows in order.

    Raises:
        ConstraintViolated: they are too many.
    """
    refused = tuple(sorted(letters, key=lambda letter: letter.row_id.encode()))
    check_refused(table, [letter.reason for letter in refused])
    return refused


def retried(work: Callable[[], T]) -> T:
    """Run work that reads a mark and then writes; repeat it if another writer was first.

    Raises:
        AdapterTimedOut: another writer was first each time.
    """
    for _ in range(ATTEMPTS_MAX):
        with suppress(Contention):
            return work()
    raise others_first()


def others_first() -> AdapterTimedOut:
    """Return the error of a write that lost to other writers each time."""
    return AdapterTimedOut("BigQuery: others keep writing the same table; repeat the operation")
