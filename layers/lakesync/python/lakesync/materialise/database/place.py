"""Where Iceberg tables are: the catalogue that lists them, and its errors as LakeSync's.

Errors are those of PyIceberg, Arrow and boto3. A place also has the prefix of the names of the
catalogue's databases.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from lakesync.core.names import flow_database, lake_database
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
    from collections.abc import Callable, Iterator

    from pyiceberg.catalog import Catalog


@dataclass(frozen=True)
class LakePlace:
    """A catalogue, opened on first use."""

    open_catalogue: Callable[[], Catalog]
    prefix: str
    """The prefix of the names of databases."""
    warehouse: str = ""
    """Where tables are made; empty if the catalogue decides."""

    @cached_property
    def catalogue(self) -> Catalog:
        """The catalogue.

        Raises:
            LakeSyncError: it cannot be opened.
        """
        with asking():
            return self.open_catalogue()

    def database(self, keeper: str) -> str:
        """Return the catalogue's database of a gateway, or of one of its flows."""
        name = flow_database if "/" in keeper else lake_database
        return name(self.prefix, keeper)

    def made_at(self, database: str, name: str) -> dict[str, Any]:
        """Return the arguments by which PyIceberg places a new table."""
        return {"location": f"{self.warehouse}/{database}/{name}"} if self.warehouse else {}


# --- errors ---------------------------------------------------------------------------------------


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
