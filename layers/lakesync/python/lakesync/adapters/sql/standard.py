"""A dialect: everything in which SQL databases differ; and most of one, as the standard has it.

A dialect of one's own is a `StandardDialect`: it connects, names its types, and overrides what its
database does otherwise; see ``docs/guide/adapters.md``, whose dialect of SQLite passes both
contracts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from lakesync.core.column_types import precision_scale
from lakesync.errors import AdapterFailed, AdapterUnreachable, ConstraintViolated, LakeSyncError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

SCOPE = ("gateway", "table_name")
"""The first columns of all ledger tables: the rows' gateway and table."""
STAGE = "lakesync_stage"
"""The temporary table through which rows are loaded; one at a time for each connection."""


class Cursor(Protocol):
    """The part of a driver's cursor that is used (PEP 249)."""

    rowcount: int

    def execute(self, query: Any, params: Sequence[object] = ..., /) -> object:
        """Run one statement."""
        ...

    def fetchone(self) -> Sequence[Any] | None:
        """Return the next row."""
        ...

    def fetchall(self) -> Sequence[Sequence[Any]]:
        """Return the remaining rows."""
        ...


class Connection(Protocol):
    """The part of a driver's connection that is used (PEP 249)."""

    def cursor(self) -> Any:
        """Return a cursor."""
        ...

    def commit(self) -> None:
        """Commit the transaction."""
        ...

    def rollback(self) -> None:
        """Roll the transaction back."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


@runtime_checkable
class Dialect(Protocol):
    """One SQL database. Statements take parameters as ``%s``."""

    @property
    def bytes_type(self) -> str:
        """The type of bytes of any length."""
        ...

    @property
    def key_bytes_type(self) -> str:
        """The type of up to 512 bytes that may be part of a key, compared byte by byte."""
        ...

    @property
    def name_type(self) -> str:
        """The type of a name or a gateway's id, which may be part of a key."""
        ...

    @property
    def instant_type(self) -> str:
        """The type of an instant, to the microsecond."""
        ...

    @property
    def updated_options(self) -> str:
        """The end of the definition of a table whose rows are updated often."""
        ...

    @property
    def row_lock(self) -> str:
        """The end of a statement that locks the rows that it reads, until the transaction ends."""
        ...

    @property
    def stage_drop(self) -> str:
        """The statement that drops `STAGE`, if it exists."""
        ...

    @property
    def stage_number(self) -> str:
        """The SQL after the type of the first column of `STAGE`, which numbers its rows."""
        ...

    def connect(self) -> Connection:
        """Connect: strict, in UTC, each statement seeing what was committed before it."""
        ...

    def quote(self, name: str) -> str:
        """Quote a name as an identifier; a dot in it separates the schema from the name."""
        ...

    def column_type(self, type_name: str, *, in_key: bool) -> str:
        """Return the SQL type of a column type.

        Raises:
            SchemaMismatch: this database has no type for its values.
        """
        ...

    def load(
        self, cursor: Any, table: str, columns: Mapping[str, str], rows: Iterable[Sequence[object]]
    ) -> None:
        """Load new rows into `STAGE`, or a ledger table, by the fastest way.

        Args:
            cursor: the transaction's.
            table: the table that they are loaded into.
            columns: names with their SQL types.
            rows: their values, in the order of the columns.
        """
        ...

    def among(self, column: str, values: Sequence[bytes]) -> Iterator[tuple[str, Sequence[object]]]:
        """Return conditions, with their parameters, for rows whose column has one of some values.

        Each is for one statement; together they cover all values.
        """
        ...

    def upserting(
        self,
        cursor: Any,
        table: str,
        scope: Sequence[object],
        columns: Mapping[str, str],
        rows: Iterable[Sequence[object]],
        *,
        keys: Sequence[str],
        keep: bool = False,
    ) -> Callable[[], None]:
        """Return the call that upserts rows into a ledger table, which has no other unique key.

        The call may run in another thread, while Python prepares the next rows. Statements that
        must run first may be sent before this method returns.

        Args:
            cursor: the transaction's.
            table: the ledger table.
            scope: the values of `SCOPE`, which the rows lack.
            columns: the other names with their SQL types.
            rows: their values, in the order of the columns.
            keys: the columns that identify a row.
            keep: whether an existing row stays as it is.
        """
        ...

    def merge(
        self, table: str, columns: Sequence[tuple[str, str]], condition: str
    ) -> Sequence[str]:
        """Return the statements that copy rows of `STAGE` into a table to query, by its ``row_id``.

        A row that violates another unique key is refused, and never overwrites another row.

        Args:
            table: the quoted table.
            columns: each quoted column, and the expression of its value in ``s``, the stage.
            condition: selects rows of ``s``; occurs once in each statement.
        """
        ...

    def update(self, table: str, assignments: Sequence[tuple[str, str]], condition: str) -> str:
        """Return the statement that updates rows of a table from those of `STAGE`; see `merge`."""
        ...

    def staged(self, expression: str, type_name: str) -> str:
        """Get the expression that turns a stage's column, where JSON is text, into its table's."""
        ...

    def changed_type(self, table: str, column: str, type_name: str) -> str:
        """Return the statement that widens a column."""
        ...

    def existing_columns(self, cursor: Any, table: str) -> set[str]:
        """Return the names of a table's columns, none if there is no such table."""
        ...

    def definitions_locked(self, cursor: Any) -> AbstractContextManager[None]:
        """Lock out other processes that change tables, during the block."""
        ...

    def value(self, value: object) -> object:
        """Return a value in the form that the driver accepts.

        Raises:
            Unfit: the database cannot represent the value.
        """
        ...

    def is_row_fault(self, error: Exception) -> bool:
        """Return whether the database refused a row: a constraint, or a value out of range."""
        ...

    def translate(self, error: Exception) -> LakeSyncError | None:
        """Return the driver's error as ours; None for what is a bug."""
        ...


def quoted(name: str, mark: str) -> str:
    """Quote each dot-separated part of a name; ``%`` is doubled, as it would begin a parameter."""
    parts = (part.replace(mark, mark * 2).replace("%", "%%") for part in name.split("."))
    return ".".join(f"{mark}{part}{mark}" for part in parts)


# --- what any dialect does ------------------------------------------------------------------------


def fill_stage(
    dialect: Dialect,
    cursor: Cursor,
    columns: Mapping[str, str],
    rows: Iterable[Sequence[object]],
) -> None:
    """Create `STAGE` with rows; an iterator of rows is consumed while the database loads others.

    The first column has another value in each row, if the dialect has a `stage_number`.
    """
    cursor.execute(dialect.stage_drop, ())
    first, *others = (f"{dialect.quote(name)} {kind}" for name, kind in columns.items())
    lines = ", ".join([f"{first}{dialect.stage_number}", *others])
    cursor.execute(f"CREATE TEMPORARY TABLE {STAGE} ({lines})", ())
    dialect.load(cursor, STAGE, columns, rows)


LIST_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bytes of values in one list: a quarter of the smallest default of ``max_allowed_packet``."""
LISTED_MAX: Final = 20_000
"""Values in one list of a row look-up: as many as a transaction has deltas."""


def lists(
    column: str, values: Sequence[object], listed_max: int = LISTED_MAX
) -> Iterator[tuple[str, Sequence[object]]]:
    """Yield conditions by a column's values, each with a list as long as allowed."""
    some: list[object] = []
    size = 0
    for value in values:
        if some and (len(some) == listed_max or size > LIST_BYTES_MAX):
            yield f"{column} IN ({', '.join(['%s'] * len(some))})", some
            some, size = [], 0
        some.append(value)
        size += 2 * len(value) if isinstance(value, bytes) else len(str(value))
    if some:
        yield f"{column} IN ({', '.join(['%s'] * len(some))})", some


# --- the standard ---------------------------------------------------------------------------------


_LISTED_MAX: Final = 1_000
"""Values in one list of a row look-up: databases limit the parameters of a statement."""
_ERRORS: Final[Mapping[str, type[LakeSyncError]]] = {
    "IntegrityError": ConstraintViolated,
    "DataError": ConstraintViolated,
    "OperationalError": AdapterUnreachable,
    "InterfaceError": AdapterUnreachable,
    "Error": AdapterFailed,
}
"""Ours, by the names that errors of drivers have (PEP 249); the most specific first."""


class StandardDialect(ABC):
    """`Dialect` of a database that is like the standard; `connect` and `types` are its own."""

    @property
    @abstractmethod
    def types(self) -> Mapping[str, str]:
        """The SQL type of each column type, except decimals and ``null``, which is as text."""

    @abstractmethod
    def connect(self) -> Connection:
        """Connect: strict, in UTC, each statement seeing what was committed before it.

        A driver whose parameters are ``?`` is wrapped by `lakesync.adapters.sql.question_marks`.
        """

    # --- types ------------------------------------------------------------------------------------

    @property
    def bytes_type(self) -> str:
        """The type of bytes of any length."""
        return f"{self.types['bytes']} NOT NULL"

    @property
    def key_bytes_type(self) -> str:
        """The type of up to 512 bytes in a key."""
        return self.bytes_type

    @property
    def name_type(self) -> str:
        """The type of a name, compared by its bytes."""
        return f"{self.column_type('string', in_key=True)} NOT NULL"

    @property
    def instant_type(self) -> str:
        """The type of an instant."""
        return self.types["timestamp"]

    def column_type(self, type_name: str, *, in_key: bool) -> str:
        """Return the SQL type of a column type."""
        del in_key
        if digits := precision_scale(type_name):
            return f"numeric({digits[0]},{digits[1]})"
        return self.types["string" if type_name == "null" else type_name]

    def value(self, value: object) -> object:
        """Return a value as it is."""
        return value

    # --- words ------------------------------------------------------------------------------------

    @property
    def updated_options(self) -> str:
        """Return nothing."""
        return ""

    @property
    def row_lock(self) -> str:
        """Lock what is read."""
        return " FOR UPDATE"

    @property
    def stage_drop(self) -> str:
        """Drop the stage."""
        return f"DROP TABLE IF EXISTS {STAGE}"

    @property
    def stage_number(self) -> str:
        """Return nothing."""
        return ""

    def quote(self, name: str) -> str:
        """Quote a name as the standard does."""
        return quoted(name, '"')

    def staged(self, expression: str, type_name: str) -> str:
        """Return JSON as the text that it is in the stage."""
        del type_name
        return expression

    def changed_type(self, table: str, column: str, type_name: str) -> str:
        """Widen a column."""
        return f"ALTER TABLE {table} ALTER COLUMN {column} TYPE {type_name}"

    # --- rows -------------------------------------------------------------------------------------

    def load(
        self, cursor: Any, table: str, columns: Mapping[str, str], rows: Iterable[Sequence[object]]
    ) -> None:
        """Load rows by ``executemany``, which every driver has."""
        names = ", ".join(map(self.quote, columns))
        values = ", ".join(["%s"] * len(columns))
        cursor.executemany(f"INSERT INTO {table} ({names}) VALUES ({values})", rows)  # noqa: S608 - quoted

    def among(self, column: str, values: Sequence[bytes]) -> Iterator[tuple[str, Sequence[object]]]:
        """Return lists that a statement may have as parameters."""
        return lists(column, values, _LISTED_MAX)

    def upserting(
        self,
        cursor: Any,
        table: str,
        scope: Sequence[object],
        columns: Mapping[str, str],
        rows: Iterable[Sequence[object]],
        *,
        keys: Sequence[str],
        keep: bool = False,
    ) -> Callable[[], None]:
        """Fill the stage; the call removes the rows that are replaced, and inserts all of it."""
        rows = list(rows)
        scoped = dict.fromkeys(SCOPE, self.name_type)
        loaded = ((*row, *scope) for row in rows)
        fill_stage(self, cursor, {**columns, **scoped}, loaded)
        same = " AND ".join(f"s.{key} = {table}.{key}" for key in keys)
        there = f"EXISTS (SELECT 1 FROM {STAGE} s WHERE {same})"  # noqa: S608 - our own names
        names = ", ".join((*columns, *SCOPE))
        insert = f"INSERT INTO {table} ({names}) SELECT {names} FROM {STAGE} s"  # noqa: S608 - ours
        absent = f" WHERE NOT EXISTS (SELECT 1 FROM {table} WHERE {same})"  # noqa: S608 - ours

        def upserted() -> None:
            if not keep:
                cursor.execute(f"DELETE FROM {table} WHERE {there}", ())  # noqa: S608 - ours
            cursor.execute(insert + (absent if keep else ""), ())

        return upserted

    def merge(
        self, table: str, columns: Sequence[tuple[str, str]], condition: str
    ) -> Sequence[str]:
        """Update rows, then insert those that are not there.

        An upsert would write over a row of another id that has the same unique value.
        """
        names = ", ".join(name for name, _ in columns)
        values = ", ".join(value for _, value in columns)
        row_id = columns[0][0]
        inserted = (
            f"INSERT INTO {table} ({names}) SELECT {values} FROM {STAGE} s "  # noqa: S608 - quoted
            f"LEFT JOIN {table} t ON t.{row_id} = s.{row_id} "
            f"WHERE t.{row_id} IS NULL AND {condition}"
        )
        return [self.update(table, columns[1:], condition), inserted]

    def update(self, table: str, assignments: Sequence[tuple[str, str]], condition: str) -> str:
        """Update rows by their row id."""
        values = ", ".join(f"{name} = {value}" for name, value in assignments)
        return (
            f"UPDATE {table} AS t SET {values} FROM {STAGE} s "  # noqa: S608 - quoted
            f"WHERE t.row_id = s.row_id AND {condition}"
        )

    # --- the database -----------------------------------------------------------------------------

    def existing_columns(self, cursor: Any, table: str) -> set[str]:
        """Read a table's columns from the standard's catalogue."""
        schema, _, name = table.rpartition(".")
        cursor.execute(
            "SELECT column_name FROM information_schema.columns WHERE table_name = %s "
            "AND table_schema = COALESCE(NULLIF(%s, ''), CURRENT_SCHEMA)",
            (name, schema),
        )
        return {column for (column,) in cursor.fetchall()}

    def definitions_locked(self, cursor: Any) -> AbstractContextManager[None]:
        """Lock nothing: of two who create the same table one gets an error, and repeats."""
        del cursor
        return nullcontext()

    # --- errors -----------------------------------------------------------------------------------

    def is_row_fault(self, error: Exception) -> bool:
        """Recognise what drivers call errors of data and of integrity."""
        return _kind(error) is ConstraintViolated

    def translate(self, error: Exception) -> LakeSyncError | None:
        """Translate by the names that errors of drivers have."""
        kind = _kind(error)
        said = " ".join(str(error).split())[:300]
        return None if kind is None else kind(f"{type(self).__name__}: {said}")


def _kind(error: Exception) -> type[LakeSyncError] | None:
    names = [base.__name__ for base in type(error).__mro__]
    return next((kind for name, kind in _ERRORS.items() if name in names), None)
