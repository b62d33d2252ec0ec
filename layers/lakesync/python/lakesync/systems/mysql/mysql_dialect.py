"""MySQL 8 and MariaDB 10.6 or newer as source and destination: rows come in by inserts of many.

Tables of definitions are changed outside transactions, as these databases commit each such change:
a step may be found done, and is repeated harmlessly.

PyMySQL looks at a value three times, and formats each row separately. Inserts here write values in
PyMySQL's own forms, for the session's SQL mode, in which a backslash escapes. Errors are told apart
by number, which does not depend on the language.
"""

from __future__ import annotations

import socket
import ssl
import struct
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import parse_qs, unquote, urlsplit

import pymysql
from pymysql.connections import TEXT_TYPES
from pymysql.constants import CR, ER
from pymysql.converters import escape_datetime, escape_float, escape_string

from lakesync.adapters.connect import not_a_url
from lakesync.adapters.database_types import DatabaseType
from lakesync.adapters.network import addresses_of, context_of, first_answer, read_tls, unanswered
from lakesync.adapters.sql.adapter import SqlAdapter
from lakesync.adapters.sql.standard import SCOPE, STAGE, StandardDialect, lists, quoted
from lakesync.core.column_types import precision_scale
from lakesync.errors import (
    AdapterFailed,
    AdapterQuotaExceeded,
    AdapterRefused,
    AdapterTimedOut,
    AdapterUnreachable,
    ConstraintViolated,
    LakeSyncError,
    SchemaMismatch,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from lakesync.adapters.database_types import DatabasePlace
    from lakesync.adapters.sql.standard import Connection


# VECTOR, of MySQL 9: the driver does not know it, and would read its bytes as ASCII.
TEXT_TYPES.add(242)
CONNECT_S_MAX: Final = 10
"""How long connecting may take, with the handshake and the session's settings."""
STATEMENT_TIMEOUT_S: Final = 120
"""How long one statement may take, waiting for a lock included."""
ANSWER_S: Final = 10
"""How long a server's own end of a statement may be on its way."""
DECIMAL_SCALE_MAX: Final = 30
"""Digits behind the point that these databases take."""
_DEFINITIONS_LOCK: Final = "lakesync.definitions"
# No padding: 'a' and 'a ' are two row ids.
_COLLATION: Final = {"mysql": "utf8mb4_0900_bin", "mariadb": "utf8mb4_nopad_bin"}
_KEY_CHARACTERS: Final = 512
"""Characters of text in a key, of which there may be 3,072 bytes."""
_TYPES: Final[Mapping[str, str]] = {
    "number": "double",
    "boolean": "boolean",
    "json": "json",
    "null": "longtext",
    "integer": "bigint",
    "timestamp": "datetime(6)",
    "date": "date",
    "bytes": "longblob",
}


@dataclass(frozen=True)
class MySql(StandardDialect):
    """`lakesync.adapters.sql.standard.Dialect` of MySQL and MariaDB."""

    host: str
    user: str
    password: str = field(repr=False)
    database: str
    port: int = 3306
    is_mariadb: bool = False
    tls: ssl.SSLContext | None = None
    """How it is encrypted; None for TLS that verifies nothing, if the server offers it."""
    hosts: tuple[str, ...] = ()
    """Which hosts that are not public it may be at; see `lakesync.adapters.network`."""
    answer_s: float = STATEMENT_TIMEOUT_S + ANSWER_S
    """How long the server may say nothing; by then it ended the statement, with its locks."""
    bytes_type: str = "longblob NOT NULL"
    key_bytes_type: str = "varbinary(512) NOT NULL"
    instant_type: str = "datetime(6)"
    stage_drop: str = f"DROP TEMPORARY TABLE IF EXISTS {STAGE}"
    # A server may refuse every table without one (sql_require_primary_key).
    stage_number: str = " PRIMARY KEY"

    @property
    def name_type(self) -> str:
        """Names and gateway ids, compared by code point."""
        return f"varchar(200) {self._collated} NOT NULL"

    @property
    def _collated(self) -> str:
        return f"COLLATE {_COLLATION['mariadb' if self.is_mariadb else 'mysql']}"

    @property
    def types(self) -> Mapping[str, str]:
        """The SQL type of each column type; text has its own, in keys and outside."""
        return _TYPES

    def connect(self) -> Connection:
        """Connect to the host's addresses, one after another, until one answers.

        Raises:
            AdapterRefused: the host may not be reached.
            AdapterUnreachable: no address answers.
        """
        ends = time.monotonic() + CONNECT_S_MAX
        addresses = addresses_of(self.host, self.port, self.hosts)
        connection = first_answer(addresses, self._at, CONNECT_S_MAX)
        try:
            _silence(connection, max(ends - time.monotonic(), 1))
            self._set_up(connection)
            _silence(connection, self.answer_s)
        except BaseException as exc:
            connection._force_close()  # noqa: SLF001 - a normal close would wait for an answer
            if isinstance(exc, pymysql.MySQLError | OSError):
                raise not_connected(exc, self.host, self.port) from exc
            raise
        return cast("Connection", connection)

    def _at(self, address: str, seconds: float) -> Any:
        try:
            made = socket.create_connection((address, self.port), seconds)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            connection = pymysql.connect(
                host=self.host,  # the name in its certificate: the address is connected to already
                port=self.port,
                user=self.user,
                password=self.password,
                database=self.database,
                charset="utf8mb4",
                read_timeout=seconds,
                write_timeout=seconds,
                ssl=self.tls,
                sql_mode="STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION",
                init_command="SET time_zone = '+00:00'",
                defer_connect=True,
            )
            connection.connect(made)
        except NOT_MYSQL as exc:
            raise not_connected(exc, self.host, self.port) from exc
        return connection

    def _set_up(self, connection: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
            # By default a day, or a year, for a table that somebody else has locked.
            for name in ("lock_wait_timeout", "innodb_lock_wait_timeout"):
                cursor.execute(f"SET SESSION {name} = {STATEMENT_TIMEOUT_S}")
            if self.is_mariadb:
                cursor.execute(f"SET SESSION max_statement_time = {STATEMENT_TIMEOUT_S}")

    def quote(self, name: str) -> str:
        return quoted(name, "`")

    def column_type(self, type_name: str, *, in_key: bool) -> str:
        """Return a column's SQL type; in keys text and bytes are bounded."""
        digits = precision_scale(type_name)
        if digits:
            if digits[1] > DECIMAL_SCALE_MAX:
                raise SchemaMismatch(
                    f"{type_name}: MySQL takes {DECIMAL_SCALE_MAX} digits after the decimal point",
                    field="columns.type",
                )
            return f"decimal({digits[0]},{digits[1]})"
        if type_name == "string":
            return f"{f'varchar({_KEY_CHARACTERS})' if in_key else 'longtext'} {self._collated}"
        if type_name == "bytes" and in_key:
            return f"varbinary({_KEY_CHARACTERS})"
        return _TYPES[type_name]

    def load(
        self, cursor: Any, table: str, columns: Mapping[str, str], rows: Iterable[Sequence[object]]
    ) -> None:
        """Load rows by inserts as large as `inserts.STATEMENT_BYTES_MAX`."""
        names = ", ".join(map(self.quote, columns))
        self._insert(cursor, f"INSERT INTO {table} ({names}) VALUES", rows)

    def upserting(
        self,
        cursor: Any,
        table: str,
        scope: Sequence[object],
        columns: Mapping[str, str],
        rows: Iterable[Sequence[object]],
        *,
        keys: Sequence[str],
        keep: bool = False,
    ) -> Callable[[], None]:
        """Return the call that inserts as `load` does; a row that stays is set to itself."""
        updated = [] if keep else [name for name in columns if name not in keys]
        assignments = [f"{name} = VALUES({name})" for name in updated]
        assignments = assignments or [f"{keys[0]} = {table}.{keys[0]}"]
        return partial(
            self._insert,
            cursor,
            f"INSERT INTO {table} ({', '.join((*SCOPE, *columns))}) VALUES",
            ((*scope, *row) for row in rows),
            f" ON DUPLICATE KEY UPDATE {', '.join(assignments)}",
        )

    def _insert(
        self, cursor: Any, opening: str, rows: Iterable[Sequence[object]], ending: str = ""
    ) -> None:
        opening = opening.replace("%%", "%")  # there are no parameters
        for statement in inserts(opening, rows, cursor.connection.escape, ending):
            cursor.execute(statement)

    def among(self, column: str, values: Sequence[bytes]) -> Iterator[tuple[str, Sequence[object]]]:
        """Return one list, unless its statement would be too long."""
        return lists(column, values)

    def update(self, table: str, assignments: Sequence[tuple[str, str]], condition: str) -> str:
        values = ", ".join(f"t.{name} = {value}" for name, value in assignments)
        return (
            f"UPDATE {table} t JOIN {STAGE} s ON t.row_id = s.row_id "  # noqa: S608 - quoted
            f"SET {values} WHERE {condition}"
        )

    def changed_type(self, table: str, column: str, type_name: str) -> str:
        return f"ALTER TABLE {table} MODIFY COLUMN {column} {type_name}"

    def existing_columns(self, cursor: Any, table: str) -> set[str]:
        database, _, name = table.rpartition(".")
        cursor.execute(
            "SELECT column_name FROM information_schema.columns WHERE table_name = %s "
            "AND table_schema = COALESCE(NULLIF(%s, ''), DATABASE())",
            (name, database),
        )
        return {name for (name,) in cursor.fetchall()}

    @contextmanager
    def definitions_locked(self, cursor: Any) -> Iterator[None]:
        """Hold a named lock: these databases have no transactions for definitions."""
        cursor.execute("SELECT GET_LOCK(%s, %s)", (_DEFINITIONS_LOCK, STATEMENT_TIMEOUT_S))
        if cursor.fetchone() != (1,):
            raise AdapterTimedOut("another writer has been changing tables for too long")
        try:
            yield
        finally:
            cursor.execute("SELECT RELEASE_LOCK(%s)", (_DEFINITIONS_LOCK,))

    def value(self, value: object) -> object:
        """Return instants without a zone, as all are in UTC."""
        return value.replace(tzinfo=None) if isinstance(value, datetime) else value

    def is_row_fault(self, error: Exception) -> bool:
        """Distinguish data and constraint errors from all others."""
        return is_row_fault(error)

    def translate(self, error: Exception) -> LakeSyncError | None:
        """Translate PyMySQL's errors by their number."""
        return translated(error)


def _silence(connection: Any, seconds: float) -> None:
    """Set how long a server may say nothing; the driver has this for new connections alone."""
    connection._read_timeout = connection._write_timeout = seconds  # noqa: SLF001


# --- inserts of many rows -------------------------------------------------------------------------


STATEMENT_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bytes of one insert: a quarter of the smallest default of ``max_allowed_packet``."""
_LITERALS: Final[Mapping[type, Callable[[Any], str]]] = {
    str: lambda value: f"'{escape_string(value)}'",
    bytes: lambda value: f"X'{value.hex()}'",
    int: int.__repr__,
    float: escape_float,
    bool: lambda value: "1" if value else "0",
    type(None): lambda _: "NULL",
    datetime: escape_datetime,
}


def inserts(
    opening: str,
    rows: Iterable[Sequence[object]],
    escape: Callable[[object], str],
    ending: str = "",
    bytes_max: int = STATEMENT_BYTES_MAX,
) -> Iterator[bytes]:
    """Yield the statements that insert rows, each as large as allowed, or of one row.

    Args:
        opening: the text before the rows, ``INSERT INTO … VALUES``.
        escape: the connection's, for values of other types.
        ending: the text after the rows.
    """
    front, back = f"{opening} ".encode(), ending.encode()
    known = _LITERALS.get
    parts: list[bytes] = []
    size = 0
    for row in rows:
        literals = [(known(value.__class__) or escape)(value) for value in row]
        part = f"({','.join(literals)})".encode()
        if parts and len(front) + size + len(part) + len(back) > bytes_max:
            yield front + b",".join(parts) + back
            parts, size = [], 0
        parts.append(part)
        size += len(part) + 1
    if parts:
        yield front + b",".join(parts) + back


# --- errors ---------------------------------------------------------------------------------------


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


def _dialect_at(url: str, hosts: tuple[str, ...]) -> MySql:
    try:
        parts = urlsplit(url)
        port = parts.port or 3306
        options = parse_qs(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError as exc:
        raise not_a_url() from exc
    database = unquote(parts.path.lstrip("/"))
    if not parts.hostname or not parts.username or not database or options.keys() - {"ca", "tls"}:
        raise not_a_url()
    ca = options["ca"][0] if "ca" in options else None
    mode = read_tls(options) or ("verify" if ca else "")
    return MySql(
        parts.hostname,
        unquote(parts.username),
        unquote(parts.password or ""),
        database,
        port,
        is_mariadb=parts.scheme == "mariadb",
        tls=context_of(mode, ca) if mode else None,
        hosts=hosts,
    )


def _opened(place: DatabasePlace) -> SqlAdapter:
    dialect = _dialect_at(place.url, place.hosts)
    return SqlAdapter(dialect, place.keeper, history_ms=place.history_ms)


MYSQL: Final = DatabaseType("MySQL or MariaDB", _opened)
