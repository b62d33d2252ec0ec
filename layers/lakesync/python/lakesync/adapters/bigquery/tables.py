"""The tables to query of one gateway in BigQuery: brought to their definitions, and written."""

from __future__ import annotations

import base64
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from lakesync.adapters.bigquery.names import (
    column_name,
    column_type,
    destination_name,
    ledger_tables,
    stage_columns,
    stored,
    table_columns,
)
from lakesync.adapters.bigquery.statements import (
    batch_taken,
    column_dropped,
    column_widened,
    columns_added,
)
from lakesync.adapters.database import DeadLetter
from lakesync.adapters.sql.definition import DELETED_AT, PREFIX
from lakesync.adapters.sql.destination_table import DEAD_LETTERS_MAX
from lakesync.adapters.sql.ledger import REASON_CHARACTERS_MAX
from lakesync.adapters.sql.values import Unfit, sql_value
from lakesync.core.clock import stamp_ms
from lakesync.core.column_types import precision_scale
from lakesync.core.merge import view
from lakesync.core.schema import ROW_ID
from lakesync.errors import (
    AdapterTimedOut,
    ConstraintViolated,
    Contention,
    LakeSyncError,
    SchemaMismatch,
)
from lakesync.wire.records import encode_records
from lakesync.wire.row_state import encode_row_state

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from lakesync.adapters.bigquery.jobs import Jobs
    from lakesync.adapters.bigquery.ledger import BigQueryLedger
    from lakesync.adapters.database import PlacedDelta
    from lakesync.adapters.sql.definition import Definition
    from lakesync.core.clock import Stamp
    from lakesync.core.merge import RowState
    from lakesync.core.schema import TableSchema

ROWS_PAGE: Final = 10_000
"""Rows that are written at a time when a table is written anew."""
ATTEMPTS_MAX: Final = 5
"""How often a writer begins again because another one was first."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class BigQueryTables:
    """The tables to query of one gateway, as one adapter knows them."""

    def __init__(self, jobs: Jobs, ledger: BigQueryLedger, gateway: str) -> None:
        self._jobs = jobs
        self._ledger = ledger
        self._gateway = gateway
        self._known: dict[str, Definition] = {}

    def forget(self) -> None:
        """Read again what is there."""
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
        """Make the table to query have every column; costs nothing once it has.

        Rows are written anew where they are not in it, or `always`; gives how many. The definition
        is noted last, so whoever is stopped on the way begins again.
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
            if self._made(wanted, current) or always:
                rows = self._rows_rewritten(wanted)
            if wanted.to_json() == text or self._ledger.save_definition(wanted, text):
                self._known[table] = wanted
                return rows
        raise AdapterTimedOut(f"others keep changing what {table} looks like; repeat the same")

    def _check_owner(self, wanted: Definition) -> None:
        destination = destination_name(wanted)
        if self._ledger.owner(destination) not in {None, (self._gateway, wanted.table)}:
            raise SchemaMismatch(
                f"{destination} holds the rows of another table; name one of its own for "
                f"{wanted.table} with sourceTable in the schema",
                field="sourceTable",
            )

    def _made(self, wanted: Definition, current: Definition) -> bool:
        """Bring the table to its definition; returns whether rows have to be written anew."""
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
            mark = self._ledger.standing(definition.table).mark
            states = self._ledger.states_after(definition.table, after, ROWS_PAGE)
            if not states:
                return rows
            self._known[definition.table] = definition
            with suppress(Contention):  # then the page is read again
                self.write(definition.table, mark, mark, (), states)
                rows, after = rows + len(states), max(states, key=str.encode)

    # --- rows -------------------------------------------------------------------------------------

    def write(
        self,
        table: str,
        seen: Stamp,
        last: Stamp,
        deltas: Sequence[PlacedDelta],
        states: Mapping[str, RowState],
    ) -> tuple[DeadLetter, ...]:
        """Write history, states and rows, and move the mark, in one transaction.

        Args:
            table: the synced table.
            seen: its mark when the states were read.
            last: what its mark becomes.
            deltas: whole commits behind the mark.
            states: of rows that changed, and of those that were refused before.

        Returns:
            The rows that are refused.

        Raises:
            Contention: another writer was first.
            ConstraintViolated: too many rows are refused.
        """
        definition = self._known[table]
        lines = [_row_line(definition, row_id, state) for row_id, state in states.items()]
        letters = [
            DeadLetter(table, line[ROW_ID], line["refusal"]) for line in lines if "refusal" in line
        ]
        refused = tuple(sorted(letters, key=lambda letter: letter.row_id.encode()))
        if len(refused) > DEAD_LETTERS_MAX:
            raise ConstraintViolated(
                f"more than {DEAD_LETTERS_MAX} rows of {table} were refused, the first because "
                f"{refused[0].reason}; mend the schema or the rows, then repeat"
            )
        lines += _commit_lines(deltas)
        self._transact(definition, lines, seen, last)
        return refused

    def _transact(
        self, definition: Definition, lines: Sequence[object], seen: Stamp, last: Stamp
    ) -> None:
        names = ledger_tables(self._gateway, definition.table)
        if not lines:
            self._jobs.transact(batch_taken(names, definition, None, seen, last))
            return
        stage = f"{PREFIX}stage_{uuid4().hex}"
        try:
            self._jobs.load(stage, stage_columns(definition), lines)
            self._jobs.transact(batch_taken(names, definition, stage, seen, last))
        finally:
            with suppress(LakeSyncError):  # BigQuery removes it by itself after a day
                self._jobs.drop(stage)


def _commit_lines(deltas: Sequence[PlacedDelta]) -> Iterator[dict[str, Any]]:
    for commit, placed in groupby(deltas, key=lambda placed: placed.position.commit):
        records = encode_records(delta for _, delta in placed)
        yield {"commit_stamp": str(commit), "records": _base64(records)}


def _row_line(definition: Definition, row_id: str, state: RowState) -> dict[str, Any]:
    """Give a row as the stage takes it: with its values, or with why it is refused."""
    line: dict[str, Any] = {ROW_ID: row_id, "state": _base64(encode_row_state(state))}
    values = view(state)
    if values is None:
        deleted_at = _EPOCH + timedelta(milliseconds=stamp_ms(state.deleted))
        return line | {DELETED_AT: deleted_at.isoformat()}
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
    """Give a value as JSON carries it exactly."""
    if isinstance(value, bytes):
        return _base64(value)
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, bool | float | str):
        return value
    return str(value) if isinstance(value, int | Decimal) else value


def _base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()
