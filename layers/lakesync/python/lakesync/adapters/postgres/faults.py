"""Errors of PostgreSQL as ours: by SQLSTATE, which does not depend on the language."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import errors as pg

from lakesync.errors import (
    AdapterFailed,
    AdapterQuotaExceeded,
    AdapterRefused,
    AdapterTimedOut,
    AdapterUnreachable,
    ConstraintViolated,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lakesync.errors import LakeSyncError

_ERRORS: Final[Sequence[tuple[Any, type[LakeSyncError]]]] = (
    (
        (
            pg.InsufficientPrivilege, pg.ReadOnlySqlTransaction, pg.InvalidPassword,
            pg.InvalidAuthorizationSpecification, pg.InvalidCatalogName, pg.InvalidSchemaName,
        ),
        AdapterRefused,
    ),
    (
        (
            pg.QueryCanceled, pg.LockNotAvailable, pg.DeadlockDetected, pg.SerializationFailure,
            psycopg.errors.ConnectionTimeout,
        ),
        AdapterTimedOut,
    ),
    (
        (pg.DiskFull, pg.OutOfMemory, pg.InsufficientResources, pg.ConfigurationLimitExceeded),
        AdapterQuotaExceeded,
    ),
    ((psycopg.IntegrityError, psycopg.DataError), ConstraintViolated),
)  # fmt: skip


def is_row_fault(error: Exception) -> bool:
    """Distinguish data and constraint errors (SQLSTATE classes 22 and 23) from all others."""
    return isinstance(error, psycopg.DataError | psycopg.IntegrityError)


def translated(error: Exception) -> LakeSyncError | None:
    """Return our error for one of psycopg's; None for any other."""
    if not isinstance(error, psycopg.Error):
        return None
    message = f"PostgreSQL: {' '.join(str(error).split())[:300]}"
    kind = next((ours for theirs, ours in _ERRORS if isinstance(error, theirs)), AdapterFailed)
    if kind is AdapterFailed and isinstance(error, psycopg.OperationalError):
        kind = _connection_error(error.sqlstate, message)
    return kind(message)


def _connection_error(state: str | None, message: str) -> type[LakeSyncError]:
    """Recognise a connection that was never made or that broke: it committed nothing."""
    if state is None:
        refused = ("password authentication", "no password", "does not exist", "pg_hba")
        return AdapterRefused if any(words in message for words in refused) else AdapterUnreachable
    is_lost = state.startswith(("08", "57P")) or state == "53300"
    return AdapterUnreachable if is_lost else AdapterFailed
