"""Transactions in a destination: one connection, opened when needed; errors are translated."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TypeVar

from lakesync.adapters.sql.ledger import Ledger
from lakesync.errors import ConstraintViolated, LakeSyncError, OutcomeUnknown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lakesync.adapters.sql.dialect import Connection, Cursor, Dialect

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
        """Run work in one transaction."""
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
