"""The ledger: LakeSync's own tables in the destination, by which a batch takes effect exactly once.

``lakesync_commits`` is the history, ``lakesync_rows`` the merged rows with the stamp of each
column, ``lakesync_marks`` each table's mark. Tables to query are beside them. A transaction takes
one connection, opened when needed, and gives its ledger; errors are translated.

A table to query has a `Definition`: its name, columns and keys, how they may change, and row states
as its rows.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from lakesync.adapters.database import DeadLetter
from lakesync.adapters.ledger_database import check_history, deltas_behind
from lakesync.adapters.sql.standard import SCOPE
from lakesync.core.clock import stamp_ms
from lakesync.core.column_types import Unfit, converter, precision_scale, widens
from lakesync.core.delta import NULL
from lakesync.core.merge import as_read, view
from lakesync.core.names import folded
from lakesync.core.schema import ROW_ID, schema_from_stored, schema_to_json
from lakesync.errors import ConstraintViolated, LakeSyncError, OutcomeUnknown, SchemaMismatch
from lakesync.wire.records import decode_row_state, encode_row_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from lakesync.adapters.database import PlacedDelta, Position
    from lakesync.adapters.sql.standard import Connection, Cursor, Dialect
    from lakesync.core.clock import Stamp
    from lakesync.core.merge import RowState
    from lakesync.core.schema import TableSchema

COMMITS_READ: Final = 100
"""History commits that are read at a time; each has at most the deltas of one push."""
REASON_CHARACTERS_MAX: Final = 500
"""Characters of a dead letter's reason."""


class Ledger:
    """`lakesync.adapters.ledger_database.TableLedger`, in one transaction."""

    def __init__(self, dialect: Dialect, cursor: Cursor, gateway: str) -> None:
        self._dialect = dialect
        self._cursor = cursor
        self.gateway = gateway

    # --- marks ------------------------------------------------------------------------------------

    def lock_mark(self, table: str) -> Stamp:
        """Return a table's mark, and lock the table for writers until this transaction ends."""
        mark = self._locked_mark(table)
        if mark is None:
            self._upserting("marks", table, [(0, 0)], keep=True)()
            mark = self._locked_mark(table)
        return mark or 0

    def _locked_mark(self, table: str) -> Stamp | None:
        self._cursor.execute(
            "SELECT mark FROM lakesync_marks WHERE gateway = %s AND table_name = %s"  # noqa: S608
            + self._dialect.row_lock,
            (self.gateway, table),
        )
        row = self._cursor.fetchone()
        return int(row[0]) if row else None

    def mark(self, table: str) -> Stamp:
        return self._marks(table)[0]

    def _marks(self, table: str) -> tuple[Stamp, Stamp]:
        """Return a table's mark, and the last commit that its history no longer contains."""
        self._cursor.execute(
            "SELECT mark, forgotten FROM lakesync_marks WHERE gateway = %s AND table_name = %s",
            (self.gateway, table),
        )
        row = self._cursor.fetchone()
        return (int(row[0]), int(row[1])) if row else (0, 0)

    def save_mark(self, table: str, mark: Stamp) -> None:
        self._cursor.execute(
            "UPDATE lakesync_marks SET mark = %s WHERE gateway = %s AND table_name = %s",
            (mark, self.gateway, table),
        )

    # --- history ----------------------------------------------------------------------------------

    def add_commits(self, table: str, commits: Iterable[tuple[Stamp, bytes]]) -> None:
        """Append commits with their records to the history; all of them are later than it."""
        rows = ((self.gateway, table, commit, records) for commit, records in commits)
        columns = definitions(self._dialect)["commits"]
        self._dialect.load(self._cursor, f"{PREFIX}commits", columns, rows)

    def deltas(self, table: str, since: Position, deltas_max: int) -> Iterator[PlacedDelta]:
        def commits_after(after: Stamp) -> Sequence[Any]:
            self._cursor.execute(
                "SELECT commit_stamp, records FROM lakesync_commits WHERE gateway = %s "
                "AND table_name = %s AND commit_stamp > %s ORDER BY commit_stamp LIMIT %s",
                (self.gateway, table, after, COMMITS_READ),
            )
            read = self._cursor.fetchall()
            # Read after the commits, so that commits that were forgotten meanwhile raise an error.
            check_history(table, since, self._marks(table)[1])
            return read

        return deltas_behind(since, deltas_max, commits_after)

    def forget_commits(self, table: str, until: Stamp) -> None:
        mark = self.lock_mark(table)
        until = max(min(until, mark), self._marks(table)[1])
        self._cursor.execute(
            "UPDATE lakesync_marks SET forgotten = %s WHERE gateway = %s AND table_name = %s",
            (until, self.gateway, table),
        )
        self._cursor.execute(
            "DELETE FROM lakesync_commits WHERE gateway = %s AND table_name = %s "
            "AND commit_stamp <= %s",
            (self.gateway, table, until),
        )

    def begin_anew(self, table: str) -> None:
        self.forget_commits(table, self.lock_mark(table))
        self.save_mark(table, 0)

    def forget_oldest(self, table: str, until: Stamp, commits_max: int) -> None:
        """Remove the oldest commits from the history up to a stamp, and store that stamp."""
        self._cursor.execute(
            "SELECT MAX(commit_stamp) FROM (SELECT commit_stamp FROM lakesync_commits "
            "WHERE gateway = %s AND table_name = %s AND commit_stamp > %s AND commit_stamp <= %s "
            "ORDER BY commit_stamp LIMIT %s) oldest",
            (self.gateway, table, self._marks(table)[1], until, commits_max),
        )
        if last := self._cursor.fetchall()[0][0]:
            self.forget_commits(table, int(last))

    # --- rows -------------------------------------------------------------------------------------

    def states(self, table: str, row_ids: Sequence[str]) -> dict[str, RowState]:
        states: dict[str, RowState] = {}
        for condition, values in self._among(row_ids):
            self._cursor.execute(
                "SELECT row_id, state FROM lakesync_rows WHERE gateway = %s AND table_name = %s "  # noqa: S608 - ours
                f"AND {condition}",
                (self.gateway, table, *values),
            )
            states |= _states(self._cursor.fetchall())
        return states

    def states_after(self, table: str, row_id: str, count: int) -> dict[str, RowState]:
        self._cursor.execute(
            "SELECT row_id, state FROM lakesync_rows WHERE gateway = %s AND table_name = %s "
            "AND row_id > %s ORDER BY row_id LIMIT %s",
            (self.gateway, table, row_id.encode(), count),
        )
        return _states(self._cursor.fetchall())

    def saving_states(self, table: str, states: Mapping[str, RowState]) -> Callable[[], None]:
        """Return the call that saves the states of rows, in any thread; see `Dialect.upserting`."""
        rows = ((row_id.encode(), encode_row_state(state)) for row_id, state in states.items())
        return self._upserting("rows", table, rows)

    def remove_states(self, table: str, row_ids: Sequence[str]) -> None:
        for condition, values in self._among(row_ids):
            self._cursor.execute(
                "DELETE FROM lakesync_rows WHERE gateway = %s AND table_name = %s "  # noqa: S608 - ours
                f"AND {condition}",
                (self.gateway, table, *values),
            )

    def _among(self, row_ids: Sequence[str]) -> Iterator[tuple[str, Sequence[object]]]:
        return self._dialect.among("row_id", [row_id.encode() for row_id in row_ids])

    # --- dead letters -----------------------------------------------------------------------------

    def dead_letters(self, table: str) -> tuple[DeadLetter, ...]:
        self._cursor.execute(
            "SELECT row_id, reason FROM lakesync_dead_letters WHERE gateway = %s "
            "AND table_name = %s ORDER BY row_id",
            (self.gateway, table),
        )
        return tuple(
            DeadLetter(table, bytes(row_id).decode(), reason)
            for row_id, reason in self._cursor.fetchall()
        )

    def save_dead_letters(self, table: str, letters: Sequence[DeadLetter]) -> None:
        self._cursor.execute(
            "DELETE FROM lakesync_dead_letters WHERE gateway = %s AND table_name = %s",
            (self.gateway, table),
        )
        rows = [
            (letter.row_id.encode(), letter.reason[:REASON_CHARACTERS_MAX]) for letter in letters
        ]
        if rows:
            self._upserting("dead_letters", table, rows)()

    # --- definitions of tables to query -----------------------------------------------------------

    def definition(self, table: str) -> Definition:
        """Return the definition of a synced table's table to query; without columns at first."""
        self._cursor.execute(
            "SELECT definition FROM lakesync_tables WHERE gateway = %s AND table_name = %s",
            (self.gateway, table),
        )
        row = self._cursor.fetchone()
        return from_json(table, row[0]) if row else Definition(table)

    def schema(self, table: str) -> TableSchema | None:
        return self.definition(table).schema

    def schemas(self) -> dict[str, TableSchema | None]:
        self._cursor.execute(
            "SELECT table_name, definition FROM lakesync_tables WHERE gateway = %s "
            "ORDER BY table_name",
            (self.gateway,),
        )
        return {table: from_json(table, text).schema for table, text in self._cursor.fetchall()}

    def owner(self, destination: str) -> tuple[str, str] | None:
        """Return the gateway and the synced table whose rows are in a table to query."""
        self._cursor.execute(
            "SELECT gateway, table_name FROM lakesync_tables WHERE destination = %s", (destination,)
        )
        row = self._cursor.fetchone()
        return (row[0], row[1]) if row else None

    def save_definition(self, definition: Definition) -> None:
        """Store the definition of a table to query."""
        name, text = definition.destination, definition.to_json()
        self._upserting("tables", definition.table, [(name, text)])()

    def _upserting(
        self, name: str, table: str, rows: Iterable[tuple[object, ...]], *, keep: bool = False
    ) -> Callable[[], None]:
        """Return the call that saves rows in a ledger table; existing ones may be kept.

        Rows lack gateway and table, which are the same for all.
        """
        types = definitions(self._dialect)[name]
        columns = {column: kind for column, kind in types.items() if column not in SCOPE}
        return self._dialect.upserting(
            self._cursor, PREFIX + name, (self.gateway, table), columns, rows,
            keys=KEYS[name], keep=keep,
        )  # fmt: skip


def _states(rows: Sequence[Sequence[Any]]) -> dict[str, RowState]:
    return {bytes(row_id).decode(): decode_row_state(bytes(state)) for row_id, state in rows}


# --- its tables -----------------------------------------------------------------------------------


KEYS: Final = {
    "commits": (*SCOPE, "commit_stamp"),
    "rows": (*SCOPE, "row_id"),
    "marks": SCOPE,
    "dead_letters": (*SCOPE, "row_id"),
    "tables": SCOPE,
}


def definitions(dialect: Dialect) -> dict[str, dict[str, str]]:
    """Return the columns of our tables, with their SQL types."""
    key = dict.fromkeys(SCOPE, dialect.name_type)
    stamp = "BIGINT NOT NULL"
    row = {"row_id": dialect.key_bytes_type}
    text = dialect.column_type("string", in_key=False)
    return {
        "commits": key | {"commit_stamp": stamp, "records": dialect.bytes_type},
        "rows": key | row | {"state": dialect.bytes_type},
        "marks": key | {"mark": stamp, "forgotten": stamp},
        "dead_letters": key | row | {"reason": text},
        "tables": key | {"destination": dialect.name_type, "definition": text},
    }  # fmt: skip


def create_ledger(dialect: Dialect, cursor: Cursor) -> None:
    """Create our missing tables."""
    for name, columns in definitions(dialect).items():
        if dialect.existing_columns(cursor, PREFIX + name):
            continue
        lines = [f"{column} {kind}" for column, kind in columns.items()]
        lines.append(f"PRIMARY KEY ({', '.join(KEYS[name])})")
        options = dialect.updated_options if name == "rows" else ""
        cursor.execute(f"CREATE TABLE {PREFIX}{name} ({', '.join(lines)}){options}", ())


# --- transactions ---------------------------------------------------------------------------------


T = TypeVar("T")


class Transactions:
    """One gateway's transactions, one after another."""

    def __init__(self, dialect: Dialect, gateway: str) -> None:
        self._dialect = dialect
        self._gateway = gateway
        self._connection: Connection | None = None

    def close(self) -> None:
        """Close the connection; the next transaction opens a new one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def run(self, work: Callable[[Cursor, Ledger], T]) -> T:
        with self._translated():
            if self._connection is None:
                self._connection = self._dialect.connect()
            connection = self._connection
            try:
                cursor = connection.cursor()
                done = work(cursor, Ledger(self._dialect, cursor, self._gateway))
            except LakeSyncError:
                connection.rollback()
                raise
        with self._translated(is_commit=True):
            connection.commit()
        return done

    @contextmanager
    def _translated(self, *, is_commit: bool = False) -> Iterator[None]:
        """Translate the driver's errors; after one, a new connection is opened."""
        try:
            yield
        except LakeSyncError:
            raise
        except Exception as exc:
            error = self._dialect.translate(exc)
            with suppress(Exception):  # the first failure is the one to report
                self.close()
            if error is None:
                raise
            if is_commit and not isinstance(error, ConstraintViolated):
                raise OutcomeUnknown(
                    "the connection was lost during a commit; repeat the operation"
                ) from exc
            raise error from exc


# --- definitions of tables ------------------------------------------------------------------------


PREFIX: Final = "lakesync_"
"""The prefix of our own tables' names, which no other table may have."""
PROPS: Final = "props"
SYNCED_AT: Final = "synced_at"
DELETED_AT: Final = "deleted_at"
UNTYPED: Final = "json"
"""The type of columns that no schema declares."""
NAME_BYTES_MAX: Final = 63
"""Bytes of an identifier: PostgreSQL truncates longer ones, MySQL allows 64."""
_OWN: Final = frozenset({PROPS, SYNCED_AT, DELETED_AT})


@dataclass(frozen=True)
class Definition:
    """The definition of the table to query of one synced table."""

    table: str
    columns: Mapping[str, str] = field(default_factory=dict)
    """The type of each column, by its written name."""
    schema: TableSchema | None = None
    """The newest schema of the table that was received."""

    @property
    def destination(self) -> str:
        """The name of the table to query: the schema's ``sourceTable``, or the table's own."""
        name = (self.schema.source_table if self.schema else None) or self.table
        parts = name.split(".")
        is_own = folded(parts[-1]).startswith(PREFIX)
        return digested(name) if is_own or any(map(_is_unusable, parts)) else name

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.schema.primary_key if self.schema else ()) or (ROW_ID,)

    @property
    def external_id(self) -> str | None:
        """The column that is unique because it names the row in another system."""
        return self.schema.external_id_column if self.schema else None

    @property
    def keeps_deleted(self) -> bool:
        """Whether deleted rows stay, with the time of their deletion."""
        return bool(self.schema and self.schema.soft_delete)

    def as_read(self, state: RowState) -> RowState:
        """Return a row as its table reads it; see `lakesync.core.merge.as_read`."""
        return as_read(state, delete_wins=bool(self.schema and self.schema.delete_wins))

    def stored_columns(self) -> dict[str, str]:
        """Return the existing columns: those whose type is known."""
        return {name: kind for name, kind in self.columns.items() if kind != "null"}

    def reads_as(self, other: Definition) -> bool:
        """Return whether another definition reads rows in the same way."""
        return bool(self.schema and self.schema.delete_wins) is bool(
            other.schema and other.schema.delete_wins
        )

    def covers(self, schema: TableSchema | None, written: Iterable[str]) -> bool:
        """Return whether the definition fits deltas with these columns and this schema."""
        is_known = schema is None or bool(
            self.schema and (schema == self.schema or schema.version < self.schema.version)
        )
        return is_known and self.columns.keys() >= set(written)

    def evolved(self, schema: TableSchema | None, written: Iterable[str]) -> Definition:
        """Return the definition for a schema and the columns of new deltas.

        Raises:
            SchemaMismatch: a type would change in a way that is not allowed.
        """
        newest = schema
        if self.schema and (schema is None or schema.version < self.schema.version):
            newest = self.schema
        columns = dict(self.columns)
        for column in newest.columns if newest else ():
            current = columns.get(column.name)
            columns[column.name] = _evolved(column.name, current, column.type)
        columns |= {name: UNTYPED for name in sorted(written) if name not in columns}
        return replace(self, columns=columns, schema=newest)

    def to_json(self) -> str:
        schema = schema_to_json(self.schema) if self.schema else None
        return json.dumps({"columns": dict(self.columns), "schema": schema})


def from_json(table: str, text: str) -> Definition:
    body = json.loads(text)
    schema = schema_from_stored(body["schema"]) if body["schema"] else None
    return Definition(table, body["columns"], schema)


def sql_name(column: str) -> str:
    """Return the name of a synced column: its own, unless that is reserved or too long."""
    is_own = folded(column) in _OWN or folded(column).startswith(PREFIX)
    is_taken = folded(column) == ROW_ID != column
    return digested(column) if is_own or is_taken or _is_long(column) else column


def digested(name: str) -> str:
    digest = hashlib.sha256(name.encode()).hexdigest()[:10]
    plain = "".join(character if character.isalnum() else "_" for character in name[:40])
    return f"c_{plain}_{digest}" if plain.isascii() else f"c_{digest}"


def _is_long(name: str) -> bool:
    return len(name.encode()) > NAME_BYTES_MAX


def _is_unusable(name: str) -> bool:
    """Return whether some database takes no table of this name."""
    # MySQL takes no character beyond U+FFFF, and no space at the end; no database takes U+0000.
    is_odd = not name or name.endswith(" ") or not "\0" < min(name) <= max(name) <= "\uffff"
    return is_odd or _is_long(name)


def _evolved(name: str, current: str | None, wanted: str) -> str:
    """Return a column's type when another is declared; an older schema changes nothing."""
    if current in {None, "null", UNTYPED}:
        return UNTYPED if current == UNTYPED and wanted == "null" else wanted
    if current == wanted or widens(wanted, current or ""):
        return current or wanted
    if precision_scale(wanted) and widens(current or "", wanted):
        return wanted
    raise SchemaMismatch(
        f"column {name} is {current} in the destination and cannot become {wanted}; add a new "
        "column",
        field=name,
    )


# --- row states as rows ---------------------------------------------------------------------------


EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def deleted_at(state: RowState) -> datetime:
    return EPOCH + timedelta(milliseconds=stamp_ms(state.deleted))


class Row(NamedTuple):
    """A row in the form of the destination."""

    row_id: str
    deleted_at: datetime | None
    """When it was deleted; None if it exists."""
    values: Sequence[object]


class Converted(NamedTuple):
    """Rows in the types of their columns."""

    rows: Sequence[Row]
    refused: Sequence[DeadLetter]
    """Rows with a value that does not fit its column, each with the reason."""


NO_ROWS: Final = Converted((), ())


class RowConverter:
    """Converts the rows of one table; does not use the connection, so any thread may use it."""

    def __init__(self, dialect: Dialect, definition: Definition) -> None:
        self._table = definition.table
        self._as_read = definition.as_read
        self._driver_value = dialect.value
        columns = definition.stored_columns()
        self._converters = [(name, converter(kind)) for name, kind in columns.items()]

    def converted(self, states: Mapping[str, RowState]) -> Converted:
        rows: list[Row] = []
        refused: list[DeadLetter] = []
        for row_id, state in states.items():
            try:
                rows.append(self._row(row_id, state))
            except Unfit as exc:
                refused.append(DeadLetter(self._table, row_id, str(exc)))
        return Converted(rows, refused)

    def _row(self, row_id: str, state: RowState) -> Row:
        driver_value = self._driver_value
        driver_value(row_id)
        values = view(self._as_read(state))
        if values is None:
            return Row(row_id, deleted_at(state), [None] * len(self._converters))
        converted: list[object] = []
        for name, convert in self._converters:
            value = values.get(name, NULL)
            if value == NULL:
                converted.append(None)
                continue
            try:
                converted.append(driver_value(convert(value)))
            except Unfit as exc:
                raise Unfit(f"column {name}: {exc}") from exc
        return Row(row_id, None, converted)
