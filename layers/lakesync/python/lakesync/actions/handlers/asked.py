"""The meaning of a vendor's answer for an action: refused, not begun, or outcome unknown.

Part of the handlers that ask with `lakesync.connectors.http`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from lakesync.actions.port import Done
from lakesync.connectors.http_answers import CREDENTIALS
from lakesync.errors import (
    ActionFailed,
    AdapterFailed,
    AdapterQuotaExceeded,
    AdapterRefused,
    AdapterUnreachable,
    LakeSyncError,
    NotFound,
    OutcomeUnknown,
)
from lakesync.result import Err, Ok

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lakesync.result import Result

T = TypeVar("T")


def done(work: Callable[[], Mapping[str, Any]]) -> Result[Done, LakeSyncError]:
    """Do something; a refusal by the other side is final, and reported to the client."""
    try:
        return Ok(Done(work()))
    except LakeSyncError as error:
        return Err(meaning(error))


def written(write: Callable[[], T]) -> T:
    """Ask for a change.

    Raises:
        OutcomeUnknown: the request was sent, and no answer arrived that states the outcome.
        LakeSyncError: it was not carried out.
    """
    try:
        return write()
    except (AdapterUnreachable, AdapterQuotaExceeded, AdapterRefused):
        raise
    except AdapterFailed as error:
        raise OutcomeUnknown(error.message) from error


def meaning(error: LakeSyncError) -> LakeSyncError:
    """Return what an error of asking means for the client."""
    if isinstance(error, AdapterRefused) and error.field == CREDENTIALS:
        # Somebody will mend them: the action stays open until then.
        return AdapterFailed(error.message, retry_after_s=60)
    if isinstance(error, AdapterRefused | NotFound):
        return ActionFailed(error.message)
    return error
