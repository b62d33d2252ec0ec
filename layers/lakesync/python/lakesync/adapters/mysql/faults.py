"""Errors of MySQL and MariaDB as ours: by number, which does not depend on the language."""

from __future__ import annotations

import ssl
import struct
from typing import TYPE_CHECKING, Final

import pymysql
from pymysql.constants import CR, ER

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
    from collections.abc import Mapping

_INVALID_JSON: Final = 3140
_CHECKS: Final = (3819, 4025)
"""A CHECK constraint, of MySQL and of MariaDB."""
_ROW_FAULTS: Final = frozenset(
    {
        _INVALID_JSON,
        *_CHECKS,
        ER.TRUNCATED_WRONG_VALUE_FOR_FIELD,
        ER.WARN_DATA_OUT_OF_RANGE,
        ER.WARN_DATA_TRUNCATED,
    }
)
_CONNECTION_KILLED: Final = 1927
_STATEMENT_TIMEOUTS: Final = (1969, 3024)
"""A statement that took too long, of MariaDB and of MySQL."""
_READ_ONLY: Final = (1792, 1836)
"""A transaction, and a whole server."""
_OFFLINE: Final = 3032
_ACCOUNT_UNUSABLE: Final = (1820, 1862, 3118, 4151)
"""A password that has expired, of both and of MySQL; an account that is locked, of MySQL and of
MariaDB."""
_ERRORS: Final[Mapping[int, type[LakeSyncError]]] = {
    CR.CR_CONN_HOST_ERROR: AdapterUnreachable,
    CR.CR_CONNECTION_ERROR: AdapterUnreachable,
    CR.CR_SERVER_GONE_ERROR: AdapterUnreachable,
    CR.CR_SERVER_LOST: AdapterUnreachable,
    ER.CON_COUNT_ERROR: AdapterUnreachable,
    ER.TOO_MANY_USER_CONNECTIONS: AdapterUnreachable,
    ER.SERVER_SHUTDOWN: AdapterUnreachable,
    _CONNECTION_KILLED: AdapterUnreachable,
    _OFFLINE: AdapterUnreachable,
    ER.LOCK_WAIT_TIMEOUT: AdapterTimedOut,
    ER.LOCK_DEADLOCK: AdapterTimedOut,
    ER.QUERY_INTERRUPTED: AdapterTimedOut,
    **dict.fromkeys(_STATEMENT_TIMEOUTS, AdapterTimedOut),
    ER.USER_LIMIT_REACHED: AdapterQuotaExceeded,
    ER.DISK_FULL: AdapterQuotaExceeded,
    ER.RECORD_FILE_FULL: AdapterQuotaExceeded,
    ER.ACCESS_DENIED_ERROR: AdapterRefused,
    ER.DBACCESS_DENIED_ERROR: AdapterRefused,
    ER.TABLEACCESS_DENIED_ERROR: AdapterRefused,
    ER.SPECIFIC_ACCESS_DENIED_ERROR: AdapterRefused,
    ER.BAD_DB_ERROR: AdapterRefused,
    ER.OPTION_PREVENTS_STATEMENT: AdapterRefused,
    CR.CR_SSL_CONNECTION_ERROR: AdapterRefused,  # TLS was asked for, and the server has none
    **dict.fromkeys((*_READ_ONLY, *_ACCOUNT_UNUSABLE), AdapterRefused),
}


_DRIVERS: Final = 2
"""The thousands of the driver's own errors."""
NOT_MYSQL: Final = (
    pymysql.MySQLError, OSError, struct.error, IndexError, ValueError, AttributeError, TypeError,
)  # fmt: skip
"""What the driver raises when what answers does not speak MySQL's protocol."""


def is_row_fault(error: Exception) -> bool:
    """Distinguish data and constraint errors from all others."""
    if isinstance(error, pymysql.err.DataError | pymysql.err.IntegrityError):
        return True
    return isinstance(error, pymysql.MySQLError) and _code(error) in _ROW_FAULTS


def not_connected(error: Exception, host: str, port: int) -> LakeSyncError:
    """Return our error for a connection that was not made.

    What a server of MySQL answers is repeated, and what is wrong with its certificate; everything
    else is one error, so that nobody scans ports by it.
    """
    cause = getattr(error, "original_exception", error)
    if isinstance(cause, ssl.SSLCertVerificationError):
        return AdapterRefused(f"MySQL: the certificate of {host}: {cause.verify_message}")
    if isinstance(error, pymysql.MySQLError) and _is_answer(_code(error)):
        return _kind_of(error)(f"MySQL: {' '.join(str(error).split())[:300]}")
    return unanswered("MySQL", host, port)


def _is_answer(number: int) -> bool:
    """Tell a server's own errors, and that it has no TLS, from the driver's (2000 to 2999)."""
    return number > 0 and (number // 1000 != _DRIVERS or number == CR.CR_SSL_CONNECTION_ERROR)


def translated(error: Exception) -> LakeSyncError | None:
    """Return our error for one of PyMySQL's or the connection's; None for any other."""
    if isinstance(error, LakeSyncError):
        return error
    if isinstance(error, OSError):
        return AdapterUnreachable(f"MySQL: {error}")
    if isinstance(error, RuntimeError) and "cryptography" in str(error):
        return AdapterRefused(f"MySQL: {error}; pip install 'pymysql[rsa]', or use TLS")
    if not isinstance(error, pymysql.MySQLError):
        return None
    return _kind_of(error)(f"MySQL: {' '.join(str(error).split())[:300]}")


def _kind_of(error: pymysql.MySQLError) -> type[LakeSyncError]:
    if is_row_fault(error):
        return ConstraintViolated
    if "No space left" in str(error):  # the system's message, under several numbers
        return AdapterQuotaExceeded
    if _code(error) == CR.CR_SERVER_LOST and "timed out" in str(error):
        return AdapterTimedOut
    return _ERRORS.get(_code(error), AdapterFailed)


def _code(error: Exception) -> int:
    return error.args[0] if error.args and isinstance(error.args[0], int) else 0
