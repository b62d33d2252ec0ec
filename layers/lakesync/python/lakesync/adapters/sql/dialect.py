"""A dialect: everything in which one SQL database differs from the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from lakesync.errors import LakeSyncError

SCOPE = ("gateway", "table_name")
"""The columns that all tables of ours begin with: whose rows they are, and of which table."""
STAGE = "lakesync_stage"
"""The temporary table through which rows come in; one at a time for each connection."""


class Cursor(Protocol):
    """What is used of a driver's cursor (PEP 249)."""

    rowcount: int

    def execute(self, query: Any, params: Sequence[object] = ..., /) -> object:
        """Run one statement."""
        ...

    def fetchone(self) -> Sequence[Any] | None:
        """Give the next row."""
        ...

    def fetchall(self) -> Sequence[Sequence[Any]]:
        """Give the rows that are left."""
        ...


class Connection(Protocol):
    """What is used of a driver's connection (PEP 249)."""

    def cursor(self) -> Any:
        """Give a cursor."""
        ...

    def commit(self) -> None:
        """End the transaction."""
        ...

    def rollback(self) -> None:
        """Give the transaction up."""
        ...

    def close(self) -> None:
        """End the connection."""
        ...


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
        """What ends the definition of a table whose rows are updated again and again."""
        ...

    @property
    def stage_drop(self) -> str:
        """The statement that drops `STAGE`, if it is there."""
        ...

    @property
    def stage_number(self) -> str:
        """What follows the type of the first column of `STAGE`, which numbers its rows."""
        ...

    def connect(self) -> Connection:
        """Connect: strict, in UTC, each statement seeing what was committed before it."""
        ...

    def quote(self, name: str) -> str:
        """Give a name as an identifier; a dot in it parts it from the schema it is in."""
        ...

    def column_type(self, type_name: str, *, in_key: bool) -> str:
        """Give the SQL type of a column type.

        Raises:
            SchemaMismatch: this database has none that holds its values.
        """
        ...

    def load(
        self, cursor: Any, table: str, columns: Mapping[str, str], rows: Iterable[Sequence[object]]
    ) -> None:
        """Load rows that are new into `STAGE`, or a table of ours, as fast as it takes them.

        Args:
            cursor: of the transaction.
            table: where to.
            columns: names with their SQL types.
            rows: their values, in the order of the columns.
        """
        ...

    def among(
        self, column: str, values: Sequence[object]
    ) -> Iterator[tuple[str, Sequence[object]]]:
        """Give conditions, each with its parameters: by which rows have one of some values there.

        Each is one statement's, and together they mean all of the values.
        """
        ...

    def save(
        self,
        cursor: Any,
        table: str,
        scope: Sequence[object],
        columns: Mapping[str, str],
        rows: Iterable[Sequence[object]],
        *,
        keys: Sequence[str],
        keep: bool = False,
    ) -> None:
        """Save rows, of which each may be there, in a table of ours with no other unique key.

        Args:
            cursor: of the transaction.
            table: where to.
            scope: the values of `SCOPE`, which the rows lack.
            columns: the other names with their SQL types.
            rows: their values, in the order of the columns.
            keys: which columns tell rows apart.
            keep: whether a row that is there stays as it is.
        """
        ...

    def merge(
        self, table: str, columns: Sequence[tuple[str, str]], condition: str
    ) -> Sequence[str]:
        """Give the statements that copy rows of `STAGE` into a table to query, by its ``row_id``.

        A row that another unique key stands against is refused, and never written over another.

        Args:
            table: the quoted table.
            columns: each quoted column, and the expression of its value in ``s``, the stage.
            condition: which rows of ``s`` are meant; occurs once in each statement.
        """
        ...

    def update(self, table: str, assignments: Sequence[tuple[str, str]], condition: str) -> str:
        """Give the statement that updates rows of a table from the rows of `STAGE`, as `merge`."""
        ...

    def staged(self, expression: str, type_name: str) -> str:
        """Give the value of a column in the stage, where JSON is text, as its table has it."""
        ...

    def changed_type(self, table: str, column: str, type_name: str) -> str:
        """Give the statement that widens a column."""
        ...

    def existing_columns(self, cursor: Any, table: str) -> set[str]:
        """Give the names of a table's columns, none if there is no such table."""
        ...

    def definitions_locked(self, cursor: Any) -> AbstractContextManager[None]:
        """Be the only one who changes tables meanwhile."""
        ...

    def value(self, value: object) -> object:
        """Give a value as the driver takes it.

        Raises:
            Unfit: the database has no such value.
        """
        ...

    def is_row_fault(self, error: Exception) -> bool:
        """Tell whether the database refused a row: a constraint, or a value out of range."""
        ...

    def translate(self, error: Exception) -> LakeSyncError | None:
        """Give the driver's error as ours; None for what is a bug."""
        ...


def quoted(name: str, mark: str) -> str:
    """Quote a name between marks, each part that a dot divides; ``%`` would be a parameter's."""
    parts = (part.replace(mark, mark * 2).replace("%", "%%") for part in name.split("."))
    return ".".join(f"{mark}{part}{mark}" for part in parts)
