"""A dialect whose connection is lost at one statement or commit, so that every step is cut."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lakesync.errors import AdapterUnreachable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lakesync.adapters.sql.standard import Dialect
    from lakesync.errors import LakeSyncError

CUTS_MAX: Final = 200
"""More statements than any operation of a test has."""


class Lost(Exception):
    """The connection is gone."""


class _Interrupted:
    """A dialect, but for the connection; what it does not say itself is the dialect's."""

    def __init__(self, dialect: Dialect, cut: int) -> None:
        self._dialect = dialect
        self._left = cut
        self.statements = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dialect, name)

    def step(self) -> None:
        self.statements += 1
        self._left -= 1
        if not self._left:
            raise Lost

    def connect(self) -> _Connection:
        return _Connection(self, self._dialect.connect())

    def load(self, cursor: _Cursor, table: str, columns: Mapping[str, str], rows: Any) -> None:
        self.step()
        self._dialect.load(cursor.cursor, table, columns, rows)

    def is_row_fault(self, error: Exception) -> bool:
        return self._dialect.is_row_fault(error)

    def translate(self, error: Exception) -> LakeSyncError | None:
        if isinstance(error, Lost):
            return AdapterUnreachable("the connection was lost")
        return self._dialect.translate(error)


class _Connection:
    def __init__(self, dialect: _Interrupted, connection: Any) -> None:
        self._dialect = dialect
        self._connection = connection

    def cursor(self) -> _Cursor:
        return _Cursor(self._dialect, self._connection.cursor())

    def commit(self) -> None:
        self._dialect.step()  # lost before
        self._connection.commit()
        self._dialect.step()  # lost behind: it happened, and nobody was told

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


class _Cursor:
    def __init__(self, dialect: _Interrupted, cursor: Any) -> None:
        self._dialect = dialect
        self.cursor = cursor

    def execute(self, query: Any, params: Sequence[object] = ()) -> None:
        self._dialect.step()
        self.cursor.execute(query, params)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.cursor, name)


def interrupted(dialect: Dialect, cut: int) -> Any:
    """Return the dialect, to be lost at the statement or commit with this number."""
    return _Interrupted(dialect, cut)
