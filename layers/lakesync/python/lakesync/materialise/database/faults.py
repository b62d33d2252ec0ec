"""Maps the errors of PyIceberg, Arrow and boto3 to LakeSync's."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from lakesync.errors import (
    AdapterFailed,
    AdapterQuotaExceeded,
    AdapterRefused,
    AdapterTimedOut,
    AdapterUnreachable,
    Conflict,
    Contention,
    LakeSyncError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

_DENIED: Final = ("AccessDenied", "ACCESS_DENIED", "UnrecognizedClient", "InvalidClientToken",
                  "ExpiredToken", "SignatureDoesNotMatch", "InvalidAccessKeyId")  # fmt: skip
_SLOW: Final = ("Throttling", "SlowDown", "TooManyRequests", "RequestLimitExceeded", "SLOW_DOWN")


@contextmanager
def asking() -> Iterator[None]:
    """Yield the errors of the catalogue and of the file store as LakeSync's.

    Raises:
        Contention: another writer was first, or it is not known which was: the table is read again.
        LakeSyncError: any other failure in operation.
    """
    try:
        yield
    except Conflict as error:
        raise Contention("Iceberg: another writer was first; repeat the operation") from error
    except LakeSyncError:
        raise
    except Exception as error:
        known = translated(error)
        if known is None:
            raise
        raise known from error


def translated(error: Exception) -> LakeSyncError | None:
    """Return an error as ours; None for a bug."""
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - with the others
    from pyiceberg import exceptions as iceberg  # noqa: PLC0415
    from requests import RequestException, Timeout  # noqa: PLC0415

    said = _said(error)
    kinds: dict[type[AdapterFailed | Contention], tuple[type[Exception], ...]] = {
        Contention: (iceberg.CommitFailedException, iceberg.CommitStateUnknownException),
        AdapterRefused: (iceberg.ForbiddenError, iceberg.UnauthorizedError, iceberg.OAuthError,
                         iceberg.BadRequestError),
        AdapterFailed: (iceberg.NoSuchNamespaceError, iceberg.NoSuchTableError),
        AdapterQuotaExceeded: (iceberg.TooManyRequestsError,),
        AdapterTimedOut: (TimeoutError, Timeout),
        AdapterUnreachable: (iceberg.RESTError, ClientError, OSError, BotoCoreError,
                             RequestException),
    }  # fmt: skip
    kind = next((ours for ours, theirs in kinds.items() if isinstance(error, theirs)), None)
    if kind is AdapterUnreachable and any(word in said for word in _DENIED):
        return AdapterRefused(said)
    if kind is AdapterUnreachable and any(word in said for word in _SLOW):
        return AdapterQuotaExceeded(said)
    return None if kind is None else kind(said)


def _said(error: Exception) -> str:
    """Return the other side's message in one line."""
    return f"Iceberg: {' '.join(str(error).split())[:300]}"
