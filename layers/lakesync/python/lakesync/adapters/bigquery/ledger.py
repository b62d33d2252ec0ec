"""The ledger in BigQuery: it makes a batch take effect exactly once.

Each synced table has three ledger tables: ``lakesync_rows_…`` holds its row states and marks
refused rows, ``lakesync_commits_…`` its history, and ``lakesync_mark_…`` one row with its mark and
its count of writes. Every change raises that count, so a writer can check that the states it read
are current. BigQuery aborts one of two transactions that change the same table, so synced tables
share none of these. ``lakesync_tables`` holds the definitions of the tables to query.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lakesync.adapters.batches import deltas_behind
from lakesync.adapters.bigquery.faults import is_missing_table
from lakesync.adapters.bigquery.names import (
    COMMITS_COLUMNS,
    ROWS_COLUMNS,
    TABLES,
    TABLES_COLUMNS,
    destination_name,
    ledger_tables,
    quoted,
)
from lakesync.adapters.bigquery.statements import (
    begun_anew,
    definition_added,
    definition_changed,
    history_forgotten,
    mark_created,
)
from lakesync.adapters.database import DeadLetter, check_history
from lakesync.adapters.sql.definition import Definition, from_json
from lakesync.errors import AdapterFailed
from lakesync.wire.row_state import decode_row_state

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lakesync.adapters.bigquery.jobs import Jobs
    from lakesync.adapters.database import PlacedDelta, Position
    from lakesync.core.clock import Stamp
    from lakesync.core.merge import RowState
    from lakesync.core.schema import TableSchema

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
    """One gateway's ledger. Tables that do not exist yet read as empty."""

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

    def marks(self, table: str) -> tuple[Stamp, Stamp]:
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
        """Yield deltas behind a position, in order: at least ``deltas_max``, or all of them."""
        commits = quoted(ledger_tables(self._gateway, table).commits)

        def commits_after(after: Stamp) -> Sequence[Any]:
            read = self._read(
                f"SELECT commit_stamp, records FROM {commits} WHERE commit_stamp > @after "  # noqa: S608
                f"ORDER BY commit_stamp LIMIT {COMMITS_READ}",
                after=after,
            )
            # Read after the commits, so that commits that were forgotten meanwhile raise an error.
            check_history(table, since, self.marks(table)[1])
            return read

        return deltas_behind(since, deltas_max, commits_after)

    def forget_commits(self, table: str, until: Stamp) -> None:
        """Remove commits from the history, and record the last one removed."""
        self.create(table)
        self._jobs.transact(history_forgotten(ledger_tables(self._gateway, table), until))

    def begin_anew(self, table: str) -> None:
        """Reset a table's mark and history; rows stay."""
        self.create(table)
        self._jobs.transact(begun_anew(ledger_tables(self._gateway, table)))

    # --- rows -------------------------------------------------------------------------------------

    def states(self, table: str, row_ids: Sequence[str]) -> dict[str, RowState]:
        """Return the states of those rows that exist."""
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

    def states_after(self, table: str, after: str, count: int) -> dict[str, RowState]:
        """Return the states of a table's rows behind a row id, in the order of its bytes."""
        rows = quoted(ledger_tables(self._gateway, table).rows)
        return self._states(
            f"SELECT row_id, state FROM {rows} WHERE row_id > @after "  # noqa: S608 - quoted
            f"ORDER BY row_id LIMIT {count:d}",
            after=after,
        )

    def dead_letters(self, table: str) -> tuple[DeadLetter, ...]:
        """Return the rows that BigQuery refused."""
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

    def schemas(self) -> dict[str, TableSchema | None]:
        """Return the newest schema of each table."""
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
