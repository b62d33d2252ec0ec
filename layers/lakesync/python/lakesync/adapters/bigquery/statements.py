"""All SQL statements and scripts for BigQuery. Pure; tests parse all of them.

Names are quoted and checked; values are parameters or are read from the stage. A script takes no
parameters: the integers that change from batch to batch are written into its text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lakesync.adapters.bigquery.faults import MARK_MOVED
from lakesync.adapters.bigquery.names import (
    TABLES,
    column_name,
    column_type,
    destination_name,
    quoted,
    stored,
)
from lakesync.adapters.database import old_until
from lakesync.adapters.sql.definition import DELETED_AT, PROPS, SYNCED_AT
from lakesync.core.clock import stamp_ms

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lakesync.adapters.bigquery.names import LedgerTables
    from lakesync.adapters.sql.definition import Definition
    from lakesync.core.clock import Stamp

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
    """Widen a column."""
    return f"ALTER TABLE {quoted(table)} ALTER COLUMN {quoted(column)} SET DATA TYPE {sql_type}"


def column_dropped(table: str, column: str) -> str:
    """Drop a column."""
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
