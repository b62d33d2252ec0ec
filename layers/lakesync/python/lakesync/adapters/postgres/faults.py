"""Errors of PostgreSQL as ours: by SQLSTATE, which does not depend on the language."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import errors as pg

from lakesync.adapters.hosts import unanswered
from lakesync.errors import (
    AdapterFailed,
    AdapterQuotaExceeded,
    AdapterRefused,
    AdapterTimedOut,
    AdapterUnreachable,
    ConstraintViolated,
    LakeSyncError,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

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


_ANSWER: Final = re.compile(r"failed: (\S+:  .*)", re.DOTALL)
"""A server's own message, as libpq writes it: the severity in the server's language, two blanks."""
_OF_ITS_TLS: Final = (
    "certificate", "does not support SSL", "invalid ssl", "no password supplied", "channel binding",
)  # fmt: skip
"""What libpq says about a server that has answered, or about the connection string."""
_REFUSED: Final = ("password authentication", "does not exist", "pg_hba")


def is_row_fault(error: Exception) -> bool:
    """Distinguish data and constraint errors (SQLSTATE classes 22 and 23) from all others."""
    return isinstance(error, psycopg.DataError | psycopg.IntegrityError)


def not_connected(error: psycopg.Error, host: str, port: int) -> LakeSyncError:
    """Return our error for a connection that was not made.

    What a server of PostgreSQL answers is repeated, and what is wrong with its certificate;
    everything else is one error, so that nobody scans ports by it.
    """
    said = str(error)
    answer = _ANSWER.search(said)
    if answer is None and not any(words in said for words in _OF_ITS_TLS):
        return unanswered("PostgreSQL", host, port)
    said = " ".join((answer.group(1) if answer else said.rpartition("failed: ")[2]).split())
    refused = answer is None or any(words in said for words in _REFUSED)
    return (AdapterRefused if refused else AdapterUnreachable)(f"PostgreSQL: {said[:300]}")


def translated(error: Exception) -> LakeSyncError | None:
    """Return our error for one of psycopg's; None for any other."""
    if isinstance(error, LakeSyncError):
        return error
    if not isinstance(error, psycopg.Error):
        return None
    message = f"PostgreSQL: {' '.join(str(error).split())[:300]}"
    kind = next((ours for theirs, ours in _ERRORS if isinstance(error, theirs)), AdapterFailed)
    if kind is AdapterFailed and isinstance(error, psycopg.OperationalError):
        kind = _connection_error(error.sqlstate)
    return kind(message)


def _connection_error(state: str | None) -> type[LakeSyncError]:
    """Recognise a connection that broke: it committed nothing."""
    if state is None:
        return AdapterUnreachable
    is_lost = state.startswith(("08", "57P")) or state == "53300"
    return AdapterUnreachable if is_lost else AdapterFailed
