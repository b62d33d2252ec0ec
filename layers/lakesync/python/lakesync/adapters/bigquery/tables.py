"""The tables to query of one gateway in BigQuery: their definitions, and their rows."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar

from lakesync.adapters.batches import check_refused
from lakesync.adapters.bigquery.names import (
    column_name,
    column_type,
    destination_name,
    ledger_tables,
    stage_columns,
    stored,
    table_columns,
)
from lakesync.adapters.bigquery.stage_lines import commit_lines, row_line
from lakesync.adapters.bigquery.stages import drop_stages, json_line, new_stage
from lakesync.adapters.bigquery.statements import (
    Move,
    batch_taken,
    column_dropped,
    column_widened,
    columns_added,
)
from lakesync.adapters.database import DeadLetter
from lakesync.core.column_types import precision_scale
from lakesync.core.schema import ROW_ID
from lakesync.errors import (
    AdapterTimedOut,
    Contention,
    SchemaMismatch,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from lakesync.adapters.bigquery.jobs import Jobs
    from lakesync.adapters.bigquery.ledger import BigQueryLedger
    from lakesync.adapters.database import PlacedDelta
    from lakesync.adapters.sql.definition import Definition
    from lakesync.core.merge import RowState
    from lakesync.core.schema import TableSchema

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
            table: the synced table.
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
