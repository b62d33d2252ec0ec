"""PostgreSQL: rows come in by ``COPY``, and are merged by ``INSERT … ON CONFLICT``."""

from __future__ import annotations

import re
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import ceil
from typing import TYPE_CHECKING, Any, Final, cast

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.types.string import BytesBinaryDumper

from lakesync.adapters.hosts import addresses_of, first_answer, unanswered
from lakesync.adapters.postgres.faults import is_row_fault, not_connected, translated
from lakesync.adapters.postgres.timed import Timed
from lakesync.adapters.sql.adapter import SqlAdapter
from lakesync.adapters.sql.dialect import SCOPE, STAGE
from lakesync.adapters.sql.staging import fill_stage
from lakesync.adapters.sql.standard import StandardDialect
from lakesync.adapters.sql.values import Unfit
from lakesync.adapters.tls import libpq_options
from lakesync.core.column_types import precision_scale
from lakesync.errors import AdapterRefused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from lakesync.adapters.sql.dialect import Connection
    from lakesync.errors import LakeSyncError

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
    """`lakesync.adapters.sql.dialect.Dialect` of PostgreSQL 13 or newer."""

    dsn: str = field(repr=False)
    """A connection string or URL; tables are in the first schema of its search path."""
    hosts: tuple[str, ...] = ()
    """Which hosts that are not public it may be at; see `lakesync.adapters.hosts`."""
    tls: str = ""
    """One of `lakesync.adapters.tls.MODES`; empty for what the connection string says."""
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
        """The SQL type of each column type."""
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
        """Insert or update rows by their row id."""
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
        """Read a table's columns from the catalogue."""
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


def postgres_adapter(
    dialect: Postgres, gateway: str, *, history_ms: int | None = None
) -> SqlAdapter:
    """Return the adapter of a gateway in a PostgreSQL database; nothing is connected yet."""
    return SqlAdapter(dialect, gateway, history_ms=history_ms)


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
