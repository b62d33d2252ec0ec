"""Real databases that fail as operators see them fail: read-only, full, out of connections, locked.

Each fault is of the server, put on and taken off while an adapter is at work as a user who is no
administrator. The same for PostgreSQL and MariaDB, so that one test drives both.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import psycopg
import pymysql
import pytest
from pymysql.constants import ER

from lakesync.adapters.sql.adapter import SqlAdapter
from tests.support.destinations import (
    mariadb_dialect,
    new_table,
    postgres_dialect,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tools.local_stack.databases import Database

DISK_MB: Final = 64
"""Of a small disk: an empty database of PostgreSQL's has eight."""
SMALL_MARIADB: Final = (
    "--innodb-file-per-table=0",
    f"--innodb-data-file-path=ibdata1:12M:autoextend:max:{DISK_MB}M",
)
"""The options of a server whose tables share a file that may not grow beyond so much. Without
space on a disk MariaDB 11.4 aborts, so that would be a database that is down."""
USER: Final = "writer"
PASSWORD: Final = "s3cret"


class FailingDatabase(Protocol):
    """A database of its own, with a user of its own, whose administrator makes it fail."""

    def adapter(self, password: str = PASSWORD) -> SqlAdapter:
        """Return an adapter of one gateway, as the user."""
        ...

    def run(self, statement: str) -> list[Any]:
        """Run a statement as the administrator."""
        ...

    def queried(self, query: str) -> list[Any]:
        """Ask the database as its user."""
        ...

    def waiting(self) -> int:
        """Return how many statements of the user wait for a lock."""
        ...

    def read_only(self) -> Any:
        """Be read-only for a while."""
        ...

    def out_of_connections(self) -> Any:
        """Let nobody else in for a while, and end who is there."""
        ...

    def full_disk(self) -> Any:
        """Have no space left for a while."""
        ...

    def locked(self, table: str) -> Any:
        """Have a table's rows locked by somebody else for a while."""
        ...

    def end_sessions(self) -> None: ...

    def change_password(self, password: str) -> None:
        """Give the user another password."""
        ...

    def drop(self) -> None:
        """Remove the database with all that is in it, whoever is at work."""
        ...

    def create(self) -> None: ...


@contextmanager
def small_disk(owner: str = "") -> Iterator[Path]:
    """A file system with little space, in memory."""
    if os.geteuid() or sys.platform != "linux":
        pytest.skip("only root may mount a small disk, on Linux")
    with tempfile.TemporaryDirectory(prefix="lakesync-disk-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        options = f"size={DISK_MB}m,mode=700" + (f",uid={owner}" if owner else "")
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", name], check=True)
        try:
            yield folder
        finally:
            subprocess.run(["umount", "-l", name], check=True)


class FailingPostgres:
    """PostgreSQL, with a database in a tablespace of its own where a disk is given."""

    def __init__(self, server: Database, disk: Path | None = None) -> None:
        self._dialect, self._disk = postgres_dialect(server), disk
        self._name = new_table()
        self._user, self._password = f"{USER}_{self._name}", PASSWORD
        self._admin = psycopg.connect(self._dialect.dsn, autocommit=True)
        self.run(f"CREATE ROLE {self._user} LOGIN PASSWORD '{PASSWORD}'")
        if disk:
            self.run(f"CREATE TABLESPACE {self._name} OWNER {self._user} LOCATION '{disk}'")
        self.create()

    def create(self) -> None:
        place = f" TABLESPACE {self._name}" if self._disk else ""
        self.run(f"CREATE DATABASE {self._name} OWNER {self._user}{place}")

    def drop(self) -> None:
        self.run(f"DROP DATABASE IF EXISTS {self._name} WITH (FORCE)")

    def close(self) -> None:
        self.drop()
        if self._disk:
            self.run(f"DROP TABLESPACE {self._name}")
        self.run(f"DROP ROLE {self._user}")
        self._admin.close()

    def adapter(self, password: str = PASSWORD) -> SqlAdapter:
        return SqlAdapter(replace(self._dialect, dsn=self._dsn(password)), "acme")

    def run(self, statement: str) -> list[Any]:
        cursor = self._admin.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []

    def queried(self, query: str) -> list[Any]:
        with psycopg.connect(self._dsn(self._password)) as connection:
            return connection.execute(query.encode()).fetchall()

    def waiting(self) -> int:
        # S608: our own name, here and below.
        query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        [(count,)] = self.run(f"{query} AND usename = '{self._user}'")
        return int(count)

    @contextmanager
    def read_only(self) -> Iterator[None]:
        setting = f"ALTER DATABASE {self._name}"
        self.run(f"{setting} SET default_transaction_read_only = on")
        self.end_sessions()
        try:
            yield
        finally:
            self.run(f"{setting} RESET default_transaction_read_only")
            self.end_sessions()

    @contextmanager
    def out_of_connections(self) -> Iterator[None]:
        self.run(f"ALTER ROLE {self._user} CONNECTION LIMIT 0")
        self.end_sessions()
        try:
            yield
        finally:
            self.run(f"ALTER ROLE {self._user} CONNECTION LIMIT -1")

    @contextmanager
    def full_disk(self) -> Iterator[None]:
        assert self._disk
        ballast = self._disk / "ballast"
        with ballast.open("wb", buffering=0) as file, suppress(OSError):
            while file.write(b"\0" * 65_536) == 65_536:
                pass
        try:
            yield
        finally:
            ballast.unlink()

    @contextmanager
    def locked(self, table: str) -> Iterator[None]:
        with closing(psycopg.connect(self._dsn(PASSWORD))) as other:
            other.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE".encode())
            yield

    def end_sessions(self) -> None:
        # Who waits goes first: when the one that has the lock is ended, the others go on.
        self.run(
            f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "  # noqa: S608
            f"WHERE usename = '{self._user}' AND pid <> pg_backend_pid() "
            f"ORDER BY wait_event_type IS NOT DISTINCT FROM 'Lock' DESC"
        )

    def change_password(self, password: str) -> None:
        self._password = password
        self.run(f"ALTER ROLE {self._user} PASSWORD '{password}'")

    def _dsn(self, password: str) -> str:
        place = self._dialect.dsn.rpartition("@")[2].rpartition("/")[0]
        return f"postgresql://{self._user}:{password}@{place}/{self._name}"


class FailingMariaDb:
    """MariaDB; its disk is full where the server has `SMALL_MARIADB`."""

    def __init__(self, server: Database) -> None:
        self._dialect = mariadb_dialect(server)
        self._name = f"{server.database}_{new_table()}"
        self._user, self._password = f"{USER}_{self._name}", PASSWORD
        self._host = server.host
        self._admin = self._connected(self._dialect.user, self._dialect.password, "")
        self.run(f"CREATE USER {self._user}@'%' IDENTIFIED BY '{PASSWORD}'")
        self.run(f"GRANT ALL ON {self._name}.* TO {self._user}@'%'")
        self.create()

    def create(self) -> None:
        self.run(f"CREATE DATABASE {self._name}")

    def drop(self) -> None:
        self.end_sessions()
        self.run(f"DROP DATABASE IF EXISTS {self._name}")

    def close(self) -> None:
        self.end_sessions()
        self.drop()
        self.run(f"DROP USER {self._user}@'%'")
        self._admin.close()

    def adapter(self, password: str = PASSWORD) -> SqlAdapter:
        dialect = replace(self._dialect, user=self._user, password=password, database=self._name)
        return SqlAdapter(dialect, "acme")

    def run(self, statement: str) -> list[Any]:
        with self._admin.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())

    def queried(self, query: str) -> list[Any]:
        with (
            closing(self._connected(self._user, self._password, self._name)) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute(query)
            return list(cursor.fetchall())

    def waiting(self) -> int:
        # A row that is locked, or a table whose definition is.
        of_rows = "information_schema.innodb_lock_waits"
        if not self._dialect.is_mariadb:
            of_rows = "performance_schema.data_lock_waits"
        [(rows,)] = self.run(f"SELECT count(*) FROM {of_rows}")  # noqa: S608 - our own name
        where = f"state LIKE 'Waiting for table%lock' AND user = '{self._user}'"
        every = "SELECT count(*) FROM information_schema.processlist"
        [(tables,)] = self.run(f"{every} WHERE {where}")
        return int(rows) + int(tables)

    @contextmanager
    def read_only(self) -> Iterator[None]:
        self.run("SET GLOBAL read_only = 1")
        try:
            yield
        finally:
            self.run("SET GLOBAL read_only = 0")

    @contextmanager
    def out_of_connections(self) -> Iterator[None]:
        self.end_sessions()
        [(before,)] = self.run("SELECT @@max_connections")
        self.run("SET GLOBAL max_connections = 10")
        others = []
        try:
            with suppress(pymysql.OperationalError):
                while True:
                    others.append(self._connected(self._user, PASSWORD, self._name))
            yield
        finally:
            self.run(f"SET GLOBAL max_connections = {before}")
            for other in others:
                other.close()

    @contextmanager
    def full_disk(self) -> Iterator[None]:
        self.run(f"CREATE TABLE {self._name}.ballast (filler TEXT)")
        row = "REPEAT('x', 3000)"
        for count in (1_000, 10):
            rows = f"{self._name}.ballast SELECT {row} FROM {self._name}.seq_1_to_{count}"  # noqa: S608
            while self._inserted(rows):
                pass
        try:
            yield
        finally:
            self.run(f"DROP TABLE {self._name}.ballast")
            while not self._has_space():  # pages are given back a moment later
                time.sleep(0.05)

    def _inserted(self, rows: str) -> bool:
        try:
            self.run(f"INSERT INTO {rows}")
        except pymysql.MySQLError as error:
            if error.args[0] != ER.RECORD_FILE_FULL:
                raise
            return False
        return True

    def _has_space(self) -> bool:
        free = "SELECT MAX(data_free) FROM information_schema.tables"
        [(count,)] = self.run(f"{free} WHERE table_schema = '{self._name}'")
        return int(count) > DISK_MB * 500_000

    @contextmanager
    def locked(self, table: str) -> Iterator[None]:
        other = self._connected(self._user, PASSWORD, self._name)
        try:
            with other.cursor() as cursor:
                cursor.execute(f"LOCK TABLES {table} WRITE")
            yield
        finally:
            other.close()

    def end_sessions(self) -> None:
        numbers = self.run(
            f"SELECT id FROM information_schema.processlist "  # noqa: S608
            f"WHERE user = '{self._user}' ORDER BY state LIKE 'Waiting%' DESC"
        )
        for (number,) in numbers:
            with suppress(pymysql.OperationalError):  # it has ended by itself
                self.run(f"KILL {number}")

    def change_password(self, password: str) -> None:
        self._password = password
        self.run(f"ALTER USER {self._user}@'%' IDENTIFIED BY '{password}'")

    def _connected(self, user: str, password: str, database: str) -> Any:
        return pymysql.connect(
            host=self._host, port=self._dialect.port, user=user, password=password,
            database=database or None, autocommit=True, connect_timeout=60,
        )  # fmt: skip
