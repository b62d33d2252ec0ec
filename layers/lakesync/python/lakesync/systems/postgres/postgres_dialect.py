"""PostgreSQL as source and destination, of tables and of objects.

Rows come in by ``COPY``, and are merged by ``INSERT … ON CONFLICT``. Objects are in a table of
their own, for an archive where there is no bucket.

The server's own time limits bind a server that works, and not one that no longer answers: a
connection here does not wait for ever. Errors are told apart by SQLSTATE, which does not depend on
the language.
"""

from __future__ import annotations

import hashlib
import re
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import ceil
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast
from urllib.parse import parse_qs

import psycopg
from psycopg import errors as pg
from psycopg.conninfo import conninfo_to_dict
from psycopg.types.string import BytesBinaryDumper

from lakesync.adapters.database_types import DatabaseType
from lakesync.adapters.lake.adapter import (
    PAGE_KEYS_MAX,
    ObjectHead,
    ObjectPage,
    check_key,
    check_page,
)
from lakesync.adapters.network import (
    addresses_of,
    first_answer,
    libpq_options,
    read_tls,
    unanswered,
)
from lakesync.adapters.sql.adapter import SqlAdapter
from lakesync.adapters.sql.ledger import Transactions
from lakesync.adapters.sql.standard import SCOPE, STAGE, StandardDialect, fill_stage
from lakesync.core.column_types import Unfit, precision_scale
from lakesync.errors import (
    AdapterFailed,
    AdapterQuotaExceeded,
    AdapterRefused,
    AdapterTimedOut,
    AdapterUnreachable,
    ConstraintViolated,
    LakeSyncError,
    NotFound,
    ValidationFailed,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence

    from lakesync.adapters.database_types import DatabasePlace
    from lakesync.adapters.sql.standard import Connection, Cursor

    Rows = Sequence[Sequence[Any]]


PORT: Final = 5432
FORM: Final = "postgresql://user:password@host:5432/database"
CONNECT_S_MAX: Final = 10
"""How long connecting may take, with the handshake and the session's settings."""
STATEMENT_TIMEOUT_MS: Final = 120_000
"""How long one statement may take, waiting for a lock included."""
ANSWER_S: Final = 10
"""How long a server's own end of a statement may be on its way."""
_SETTINGS: Final = {
    "timezone": "UTC",
    "statement_timeout": str(STATEMENT_TIMEOUT_MS),
    "default_transaction_isolation": "read committed",
    "client_min_messages": "warning",
}
_DEFINITIONS_LOCK: Final = 0x6C616B65
"""The advisory lock of those who change tables."""
_TYPES: Final[Mapping[str, str]] = {
    "string": "text",
    "number": "double precision",
    "boolean": "boolean",
    "json": "jsonb",
    "null": "text",
    "integer": "bigint",
    "timestamp": "timestamptz",
    "date": "date",
    "bytes": "bytea",
}
_TYPE_NAME: Final = re.compile("double precision|[a-z]+", re.IGNORECASE)
"""The start of a type: its name, without precision, collation or constraint."""


@dataclass(frozen=True)
class Postgres(StandardDialect):
    """`lakesync.adapters.sql.standard.Dialect` of PostgreSQL 13 or newer."""

    dsn: str = field(repr=False)
    """A connection string or URL; tables are in the first schema of its search path."""
    hosts: tuple[str, ...] = ()
    """Which hosts that are not public it may be at; see `lakesync.adapters.network`."""
    tls: str = ""
    """One of `lakesync.adapters.network.TLS_MODES`; empty for what the connection string says."""
    answer_s: float = STATEMENT_TIMEOUT_MS / 1000 + ANSWER_S
    """How long one exchange may take; by then the server ended the statement, with its locks."""
    bytes_type: str = "bytea NOT NULL"
    key_bytes_type: str = "bytea NOT NULL"
    name_type: str = 'text COLLATE "C" NOT NULL'
    instant_type: str = "timestamptz"
    # With free space on its page, a new row version needs no new index entries.
    updated_options: str = " WITH (fillfactor = 70)"
    stage_drop: str = f"DROP TABLE IF EXISTS pg_temp.{STAGE}"

    @property
    def types(self) -> Mapping[str, str]:
        return _TYPES

    def connect(self) -> Connection:
        """Connect to the host's addresses, one after another, until one answers.

        Raises:
            AdapterRefused: the host may not be reached.
            AdapterUnreachable: no address answers.
        """
        host, port = _place(self.dsn)
        addresses = addresses_of(host, port, self.hosts)
        ends = time.monotonic() + CONNECT_S_MAX
        connection = first_answer(addresses, partial(self._at, host, port), CONNECT_S_MAX)
        try:
            connection.answer_s = max(ends - time.monotonic(), 1)
            self._set_up(connection)
        except BaseException as exc:
            connection.close()
            if isinstance(exc, psycopg.OperationalError) and exc.sqlstate is None:
                raise unanswered("PostgreSQL", host, port) from exc
            raise
        connection.answer_s = self.answer_s
        return cast("Connection", connection)

    def _at(self, host: str, port: int, address: str, seconds: float) -> Timed:
        has_ca = "sslrootcert" in conninfo_to_dict(self.dsn)
        options: dict[str, Any] = libpq_options(self.tls, has_ca=has_ca)
        try:
            return Timed.connect(
                self.dsn, **options,
                host=host, hostaddr=address, port=port, connect_timeout=ceil(seconds),
                application_name="lakesync",
                prepare_threshold=None,  # a pooler may hand each transaction another session
            )  # fmt: skip
        except psycopg.Error as exc:
            raise not_connected(exc, host, port) from exc

    def _set_up(self, connection: Timed) -> None:
        # psycopg's first choice for `bytea` is written in Python, and inspects each value.
        connection.adapters.register_dumper(bytes, BytesBinaryDumper)
        # Session settings, not start-up parameters: poolers refuse those.
        settings = ", ".join("set_config(%s, %s, false)" for _ in _SETTINGS)
        given = [word for setting in _SETTINGS.items() for word in setting]
        connection.execute(f"SELECT {settings}", given)
        connection.commit()

    def column_type(self, type_name: str, *, in_key: bool) -> str:
        """Return a column's SQL type; text in keys is compared by its bytes."""
        digits = precision_scale(type_name)
        if digits:
            return f"numeric({digits[0]},{digits[1]})"
        collation = ' COLLATE "C"' if in_key and type_name == "string" else ""
        return _TYPES[type_name] + collation

    def load(
        self, cursor: Any, table: str, columns: Mapping[str, str], rows: Iterable[Sequence[object]]
    ) -> None:
        """Load rows by binary ``COPY``: as text, bytes would be twice as many."""
        names = ", ".join(map(self.quote, columns)).replace("%%", "%")  # COPY has no parameters
        with cursor.copy(f"COPY {table} ({names}) FROM STDIN (FORMAT BINARY)") as copy:
            copy.set_types([_TYPE_NAME.findall(kind)[0].lower() for kind in columns.values()])
            for row in rows:
                copy.write_row(row)

    def among(self, column: str, values: Sequence[bytes]) -> Iterator[tuple[str, Sequence[object]]]:
        """Yield one condition with an array: the statement is the same for any number of values."""
        if values:
            # The text of an array: psycopg makes one by looking at each element several times.
            elements = ",".join(f'"\\\\x{value.hex()}"' for value in values)
            yield f"{column} = ANY(%s::bytea[])", [f"{{{elements}}}"]

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
        """Copy rows to the stage; the call is one statement."""
        fill_stage(self, cursor, columns, rows)
        updated = [] if keep else [name for name in columns if name not in keys]
        assignments = ", ".join(f"{name} = EXCLUDED.{name}" for name in updated)
        action = f"DO UPDATE SET {assignments}" if updated else "DO NOTHING"
        names = ", ".join(columns)
        statement = (
            f"INSERT INTO {table} ({', '.join(SCOPE)}, {names}) SELECT %s, %s, {names} "  # noqa: S608 - our own names
            f"FROM {STAGE} ON CONFLICT ({', '.join(keys)}) {action}"
        )
        return partial(cursor.execute, statement, scope)

    def merge(
        self, table: str, columns: Sequence[tuple[str, str]], condition: str
    ) -> Sequence[str]:
        names = ", ".join(name for name, _ in columns)
        values = ", ".join(value for _, value in columns)
        assignments = ", ".join(f"{name} = EXCLUDED.{name}" for name, _ in columns[1:])
        statement = (
            f"INSERT INTO {table} ({names}) SELECT {values} FROM {STAGE} s WHERE {condition} "  # noqa: S608 - quoted
            f"ON CONFLICT ({columns[0][0]}) DO UPDATE SET {assignments}"
        )
        return [statement]

    def staged(self, expression: str, type_name: str) -> str:
        """Cast JSON, which is text in the stage, so that a bad value refuses only its own row."""
        return f"CAST({expression} AS jsonb)" if type_name == "json" else expression

    def existing_columns(self, cursor: Any, table: str) -> set[str]:
        cursor.execute(
            "SELECT attname FROM pg_attribute "
            "WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped",
            (self.quote(table).replace("%%", "%"),),
        )
        return {name for (name,) in cursor.fetchall()}

    @contextmanager
    def definitions_locked(self, cursor: Any) -> Iterator[None]:
        """Lock until the transaction ends, as the changes are part of it."""
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", (_DEFINITIONS_LOCK,))
        yield

    def value(self, value: object) -> object:
        """Refuse what text cannot hold."""
        if isinstance(value, str) and "\0" in value:
            raise Unfit("PostgreSQL's text cannot hold the character U+0000")
        return value

    def is_row_fault(self, error: Exception) -> bool:
        """Distinguish data and constraint errors from all others."""
        return is_row_fault(error)

    def translate(self, error: Exception) -> LakeSyncError | None:
        """Translate psycopg's errors by their SQLSTATE."""
        return translated(error)


def _place(dsn: str) -> tuple[str, int]:
    """Return the host and the port that a connection string names.

    Raises:
        AdapterRefused: it names none; the string has a password, and is not repeated.
    """
    try:
        named = conninfo_to_dict(dsn)
        host, port = str(named.get("host") or ""), int(named.get("port") or PORT)
    except (psycopg.ProgrammingError, ValueError):
        raise AdapterRefused(f"a URL of PostgreSQL is {FORM}") from None
    if not host:
        raise AdapterRefused(f"this URL of PostgreSQL names no host: use {FORM}")
    return host, port


# --- connections with a bounded wait --------------------------------------------------------------


T = TypeVar("T")


class Timed(psycopg.Connection[Any]):
    """A connection that ends when one exchange with its server takes too long.

    Attributes:
        answer_s: how long one may take, in seconds.
    """

    answer_s: float | None = None

    def wait(
        self, gen: Generator[Any, Any, T], interval: float = 0.1, timeout: float | None = None
    ) -> T:
        """Wait for an exchange with the server to end.

        Raises:
            psycopg.errors.ConnectionTimeout: it took too long; the connection is closed.
        """
        try:
            return super().wait(gen, interval, self.answer_s if timeout is None else timeout)
        except psycopg.errors._WaitTimeout as exc:  # noqa: SLF001 - it has no public name
            self.pgconn.finish()  # what the server would still answer is for nobody
            raise psycopg.errors.ConnectionTimeout("the server does not answer in time") from exc


# --- errors ---------------------------------------------------------------------------------------


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


# --- objects --------------------------------------------------------------------------------------


TABLE: Final = "lakesync_objects"
_MAKE: Final = (
    f'CREATE TABLE IF NOT EXISTS {TABLE} (key text COLLATE "C" PRIMARY KEY, body bytea NOT NULL, '
    "etag text NOT NULL, modified_at timestamptz NOT NULL)"
)
_ROW: Final = f"INSERT INTO {TABLE} (key, body, etag, modified_at) VALUES (%s, %s, %s, now())"  # noqa: S608 - a name of ours
_PUT: Final = (
    f"{_ROW} ON CONFLICT (key) DO UPDATE SET body = excluded.body, etag = excluded.etag, "
    f"modified_at = excluded.modified_at WHERE {TABLE}.etag <> excluded.etag"
)
_PUT_NEW: Final = f"{_ROW} ON CONFLICT (key) DO NOTHING"
_HEADS: Final = (
    f"SELECT key, length(body), etag, modified_at FROM {TABLE} "  # noqa: S608 - a name of ours
    "WHERE key LIKE %s AND key > %s ORDER BY key LIMIT %s"
)
_DELETED_AT_ONCE: Final = 1_000


class PostgresObjects:
    """`lakesync.adapters.lake.adapter.LakeAdapter` in one table of a database.

    The table `TABLE` is made with the first object. A key is any text without NUL; an object has
    less than 1 GB, and is written whole in one statement. Thread-safe, over one connection.
    """

    def __init__(self, dialect: Postgres) -> None:
        self._dialect = dialect
        self._transactions = Transactions(dialect, "")
        self._lock = threading.Lock()
        self._is_made = False

    def put_object(self, key: str, body: bytes, content_type: str) -> None:
        del content_type
        self._write(_PUT, key, body)

    def put_new_object(self, key: str, body: bytes, content_type: str) -> bool:
        del content_type
        return self._write(_PUT_NEW, key, body) == 1

    def get_object(self, key: str) -> bytes:
        return self._one("body", key)

    def get_range(self, key: str, start: int, size: int) -> bytes:
        part = self._one(f"substring(body FROM {int(start) + 1} FOR {int(size)})", key)
        if not part:
            raise NotFound(f"the object {key} ends before {start}")
        return part

    def head_object(self, key: str) -> ObjectHead:
        page = self._heads(_literally(_checked(key)), "", 1)
        if not page:
            raise NotFound(f"there is no object {key}")
        return page[0]

    def list_objects(self, prefix: str) -> list[str]:
        return [head.key for head in self._all(prefix)]

    def list_page(self, prefix: str, after: str = "", keys_max: int = PAGE_KEYS_MAX) -> ObjectPage:
        check_page(keys_max)
        heads = self._heads(f"{_literally(prefix)}%", after, keys_max + 1)
        return ObjectPage(tuple(heads[:keys_max]), len(heads) > keys_max)

    def delete_object(self, key: str) -> None:
        self.delete_objects([key])

    def delete_objects(self, keys: Iterable[str]) -> None:
        wanted = list(keys)
        for at in range(0, len(wanted), _DELETED_AT_ONCE):
            some = wanted[at : at + _DELETED_AT_ONCE]
            self._read(partial(_deleted, some), None)

    def close(self) -> None:
        """Close the connection; the next operation opens a new one."""
        with self._lock:
            self._transactions.close()

    def _write(self, statement: str, key: str, body: bytes) -> int:
        etag = hashlib.sha256(body).hexdigest()
        row = (_checked(key), bytes(body), etag)

        def work(cursor: Cursor) -> int:
            cursor.execute(statement, row)
            return cursor.rowcount

        with self._lock:
            if not self._is_there():
                self._transactions.run(self._make)
                self._is_made = True
            return self._transactions.run(lambda cursor, _: work(cursor))

    def _one(self, what: str, key: str) -> bytes:
        statement = f"SELECT {what} FROM {TABLE} WHERE key = %s"  # noqa: S608 - expressions of ours

        def work(cursor: Cursor) -> Rows:
            cursor.execute(statement, (_checked(key),))
            return cursor.fetchall()

        rows = self._rows(work)
        if not rows:
            raise NotFound(f"there is no object {key}")
        return bytes(rows[0][0])

    def _all(self, prefix: str) -> Iterator[ObjectHead]:
        after = ""
        while True:
            page = self.list_page(prefix, after)
            yield from page.objects
            if not page.has_more:
                return
            after = page.objects[-1].key

    def _heads(self, pattern: str, after: str, most: int) -> list[ObjectHead]:
        def work(cursor: Cursor) -> Rows:
            cursor.execute(_HEADS, (pattern, after, most))
            return cursor.fetchall()

        return [ObjectHead(*row) for row in self._rows(work)]

    def _rows(self, work: Callable[[Cursor], Rows]) -> Rows:
        nothing: Rows = ()
        return self._read(work, nothing)

    def _read(self, work: Callable[[Cursor], T], nothing: T) -> T:
        """Do what needs no table, if there is none; a reader may have no right to make one."""
        with self._lock:
            if not self._is_there():
                return nothing
            return self._transactions.run(lambda cursor, _: work(cursor))

    def _is_there(self) -> bool:
        def work(cursor: Cursor, _: object) -> bool:
            cursor.execute("SELECT to_regclass(%s) IS NOT NULL", (TABLE,))
            row = cursor.fetchone()
            return row is not None and bool(row[0])

        self._is_made = self._is_made or self._transactions.run(work)
        return self._is_made

    def _make(self, cursor: Cursor, _: object) -> None:
        with self._dialect.definitions_locked(cursor):
            cursor.execute(_MAKE)


def _deleted(keys: list[str], cursor: Cursor) -> None:
    cursor.execute(f"DELETE FROM {TABLE} WHERE key = ANY(%s)", (keys,))  # noqa: S608 - a name of ours


def _checked(key: str) -> str:
    check_key(key)
    if "\0" in key:
        raise ValidationFailed("a key in PostgreSQL has no NUL", field="key")
    return key


def _literally(text: str) -> str:
    """Return text as a pattern of LIKE that only it matches."""
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


def dialect_at(url: str, hosts: tuple[str, ...]) -> Postgres:
    """Return the dialect; ``tls`` and ``ca`` are ours, the rest is for PostgreSQL's library."""
    address, _, query = url.partition("?")
    parts = [part for part in query.split("&") if part]
    own = parse_qs("&".join(part for part in parts if part.startswith("tls=")), True)
    tls = read_tls(own) or ("verify" if any(part.startswith("ca=") for part in parts) else "")
    rest = [part.replace("ca=", "sslrootcert=", 1) if part.startswith("ca=") else part
            for part in parts if not part.startswith("tls=")]  # fmt: skip
    return Postgres(f"{address}?{'&'.join(rest)}" if rest else address, hosts, tls)


def _opened(place: DatabasePlace) -> SqlAdapter:
    dialect = dialect_at(place.url, place.hosts)
    return SqlAdapter(dialect, place.keeper, history_ms=place.history_ms)


POSTGRES: Final = DatabaseType("PostgreSQL", _opened)
