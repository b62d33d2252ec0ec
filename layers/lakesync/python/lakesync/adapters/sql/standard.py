"""Most of a `Dialect`, as the SQL standard and most databases have it.

A dialect of one's own connects, names its types, and overrides what its database does otherwise;
see ``docs/guide/adapters.md``, whose dialect of SQLite passes both contracts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Final

from lakesync.adapters.sql.dialect import SCOPE, STAGE, fill_stage, lists, quoted
from lakesync.core.column_types import precision_scale
from lakesync.errors import AdapterFailed, AdapterUnreachable, ConstraintViolated, LakeSyncError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from lakesync.adapters.sql.dialect import Connection

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
