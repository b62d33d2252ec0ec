"""Maps BigQuery's errors to LakeSync's, by class, status and reason."""

from __future__ import annotations

import concurrent.futures
from typing import Final

import requests
from google.api_core import exceptions as api
from google.auth import exceptions as auth

from lakesync.errors import (
    AdapterFailed,
    AdapterQuotaExceeded,
    AdapterRefused,
    AdapterTimedOut,
    AdapterUnreachable,
    ConstraintViolated,
    Contention,
    LakeSyncError,
)

MARK_MOVED: Final = "lakesync: the mark moved"
"""The message of a script that finds another writer's mark."""
_ABORTED: Final = "aborted due to concurrent update"
_QUOTA: Final = frozenset({"quotaExceeded", "rateLimitExceeded", "jobRateLimitExceeded"})
_UNFILTERED: Final = "without a filter over column"
"""The table may be read only with a filter by which partitions are left out."""
_TOO_MANY_BYTES: Final = "exceeded limit for bytes billed"
_ROW_FAULTS: Final = (
    "cannot be assigned",
    "cannot be null",
    "Required field",
    "out of range",
    "Bad double value",
    "Could not cast",
)
"""How BigQuery's message begins if the columns of an existing table do not fit the values."""
_CREDENTIALS: Final = (
    "BigQuery: no Application Default Credentials: run `gcloud auth application-default login`, or "
    "set up workload identity federation where this runs"
)


def is_missing(error: LakeSyncError) -> bool:
    """Return whether the error means that something does not exist: a table, a job, its rows."""
    return isinstance(error.__cause__, api.NotFound)


def is_statement_fault(error: LakeSyncError) -> bool:
    """Return whether BigQuery refuses a statement for what it says, at any time."""
    return isinstance(error.__cause__, api.BadRequest | api.NotFound)


def is_missing_table(error: LakeSyncError) -> bool:
    """Return whether the error means that a table does not exist: never created, or dropped."""
    return type(error) is AdapterFailed and isinstance(error.__cause__, api.NotFound)


def translated(error: Exception) -> LakeSyncError | None:
    """Translate an error of the client, its transport or Google's sign-in to one of ours.

    Return None for a bug. `Contention` means that another writer was first and nothing was written.
    """
    cause = getattr(error, "cause", None)
    if isinstance(error, api.RetryError) and isinstance(cause, Exception):
        return translated(cause) or AdapterTimedOut(_message(error))
    if isinstance(error, api.GoogleAPICallError):
        return _refused(error)
    if isinstance(error, auth.TransportError):
        return AdapterUnreachable(_message(error))
    if isinstance(error, auth.DefaultCredentialsError):
        return AdapterRefused(_CREDENTIALS)
    if isinstance(error, auth.GoogleAuthError):
        return AdapterRefused(_message(error))
    if isinstance(error, TimeoutError | concurrent.futures.TimeoutError | requests.Timeout):
        return AdapterTimedOut("BigQuery was too slow; the job was cancelled; repeat the operation")
    if isinstance(error, requests.RequestException | OSError):
        return AdapterUnreachable("BigQuery could not be reached, or the connection was lost")
    return None


def _refused(error: api.GoogleAPICallError) -> LakeSyncError:
    message = _message(error)
    reasons = {item.get("reason") for item in error.errors or () if isinstance(item, dict)}
    if reasons & _QUOTA or isinstance(error, api.TooManyRequests):
        return AdapterQuotaExceeded(message)
    if MARK_MOVED in message or _ABORTED in message:
        return Contention("BigQuery: another writer was first; repeat the operation")
    if isinstance(error, api.NotFound):
        is_table = "table" in message.lower()
        return (
            AdapterFailed(message) if is_table else AdapterRefused(f"{message}; create the dataset")
        )
    is_refused = isinstance(error, api.Forbidden | api.Unauthorized)
    if is_refused or _UNFILTERED in message or _TOO_MANY_BYTES in message:
        return AdapterRefused(message)
    if isinstance(error, api.GatewayTimeout | api.DeadlineExceeded):
        return AdapterTimedOut(message)
    if isinstance(error, api.ServiceUnavailable | api.BadGateway):
        return AdapterUnreachable(message)
    if isinstance(error, api.BadRequest) and any(words in message for words in _ROW_FAULTS):
        return ConstraintViolated(message)
    return AdapterFailed(message)


def _message(error: Exception) -> str:
    """Return BigQuery's message in one line, without the request's address."""
    message = getattr(error, "message", None) or str(error)
    return f"BigQuery: {' '.join(str(message).split())[:300]}"
