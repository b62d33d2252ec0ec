"""PostgreSQL and MariaDB for one machine: empty, quick rather than durable, in UTC.

Tests ask for the fixtures `postgres` and `mariadb`, which keep one of each for the whole run.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pymysql

from tools.local_stack import paths
from tools.local_stack.binaries import MARIADB, POSTGRES, ensure_binaries
from tools.local_stack.errors import LocalStackError
from tools.local_stack.ports import HOST, choose_port, wait_until
from tools.local_stack.processes import end_group, start_detached

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_READY_SECONDS = 60.0
_CONNECT_SECONDS = 5
_ENVIRONMENT = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "LC_ALL": "C", "TZ": "UTC"}


@dataclass(frozen=True)
class Database:
    """A running database, and a user of it who may do everything."""

    port: int
    database: str
    host: str = HOST
    user: str = "lakesync"
    password: str = "lakesync"  # noqa: S105 - only this machine reaches it
    is_mysql: bool = False
    """It is MySQL, where MariaDB is asked for."""


@dataclass(frozen=True)
class _Server:
    """How a database is made, started and ended."""

    name: str
    folder: Path
    initialise: list[str]
    serve: list[str]
    end_by: int
    run_as: pwd.struct_passwd | None = None

    @contextlib.contextmanager
    def running(self, answers: Callable[[], bool]) -> Iterator[None]:
        """Have it running once it `answers`."""
        log, kept_log = self.folder / "log", paths.LOCAL / f"{self.name}.log"
        try:
            self._make_data(log, kept_log)
            with self._process(self.serve, log, self.end_by) as process:
                wait_until(
                    answers,
                    alive=lambda: process.poll() is None,
                    what=self.name,
                    log=str(kept_log),
                    seconds=_READY_SECONDS,
                )
                yield
        except LocalStackError:
            shutil.copyfile(log, kept_log)
            raise

    def _make_data(self, log: Path, kept_log: Path) -> None:
        with self._process(self.initialise, log, signal.SIGKILL) as process:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_READY_SECONDS)
            if process.poll() != 0:
                raise LocalStackError(f"read {kept_log}: {self.name} could not make its data.")

    @contextlib.contextmanager
    def _process(
        self, command: list[str], log: Path, end_by: int
    ) -> Iterator[subprocess.Popen[bytes]]:
        process = start_detached(
            command, environment=_ENVIRONMENT, folder=self.folder, log=log, run_as=self.run_as
        )
        try:
            yield process
        finally:
            end_group(process.pid, command[0], first=end_by)


@contextlib.contextmanager
def start_postgres() -> Iterator[Database]:
    """A PostgreSQL for as long as the block runs.

    Raises:
        LocalStackError: there is none for this machine, it cannot be fetched, or does not start.
    """
    programs = ensure_binaries(POSTGRES)
    with _scratch(POSTGRES) as folder:
        database = Database(choose_port(0), "postgres")
        (folder / "password").write_text(database.password)
        run_as = None
        if os.geteuid() == 0:
            # PostgreSQL refuses to run as root, and others may be unable to enter the checkout.
            programs = shutil.copytree(programs, folder / "programs", symlinks=True)
            run_as = _give_away(folder)
        server = _Server(
            POSTGRES,
            folder,
            [
                f"{programs}/bin/initdb", f"--pgdata={folder}/data", f"--username={database.user}",
                f"--pwfile={folder}/password", "--auth=scram-sha-256",
                "--encoding=UTF8", "--locale=C", "--no-sync",
            ],
            [
                f"{programs}/bin/postgres", "-D", f"{folder}/data", "-p", str(database.port),
                "-c", f"listen_addresses={HOST}", "-c", "unix_socket_directories=",
                "-c", "timezone=UTC", "-c", "fsync=off", "-c", "full_page_writes=off",
                "-c", "wal_level=logical", "-c", "max_replication_slots=50",
                "-c", "max_wal_senders=0",
            ],
            # At once: asked otherwise it waits for its clients. It ends its own processes.
            signal.SIGQUIT,
            run_as,
        )  # fmt: skip
        with server.running(lambda: _postgres_answers(database)):
            yield database


@contextlib.contextmanager
def start_mariadb(*options: str) -> Iterator[Database]:
    """A MariaDB for as long as the block runs, with more options of the server's if need be.

    Raises:
        LocalStackError: there is none for this machine, it cannot be fetched, or does not start.
    """
    programs = ensure_binaries(MARIADB)
    with _scratch(MARIADB) as folder:
        database = Database(choose_port(0), "lakesync")
        (folder / "setup.sql").write_text(
            f"create database {database.database};\n"
            f"create user {database.user}@'{HOST}' identified by '{database.password}';\n"
            f"grant all on *.* to {database.user}@'{HOST}' with grant option;\n"
        )
        common = [
            "--no-defaults", f"--basedir={programs}", f"--datadir={folder}/data",
            f"--tmpdir={folder}", "--skip-name-resolve", "--debug-no-sync",
            "--innodb-log-file-size=16M", *(["--user=root"] if os.geteuid() == 0 else []),
        ]  # fmt: skip
        server = _Server(
            MARIADB,
            folder,
            [
                "/bin/sh", f"{programs}/scripts/mariadb-install-db", *common,
                "--auth-root-authentication-method=normal", "--skip-test-db",
            ],
            [
                f"{programs}/bin/mariadbd", *common, f"--init-file={folder}/setup.sql",
                f"--port={database.port}", f"--bind-address={HOST}", f"--socket={folder}/socket",
                f"--pid-file={folder}/pid", "--default-time-zone=+00:00",
                "--innodb-flush-log-at-trx-commit=0",
                # The log of changes, with what tells columns by their names.
                "--server-id=1", f"--log-bin={folder}/data/binlog", "--binlog-format=ROW",
                "--binlog-row-metadata=FULL", "--sync-binlog=0",
                # Otherwise it makes a key for TLS at every start, which takes seconds.
                "--skip-ssl",
                # As distributions set it; unasked, MariaDB 11.4 takes Latin 1.
                "--character-set-server=utf8mb4", "--collation-server=utf8mb4_uca1400_ai_ci",
                *options,
            ],
            signal.SIGKILL,
        )  # fmt: skip
        with server.running(lambda: _mariadb_answers(database)):
            yield database


@contextlib.contextmanager
def _scratch(name: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(
        prefix=f"lakesync-{name}-", ignore_cleanup_errors=True
    ) as folder:
        yield Path(folder)


def _give_away(folder: Path) -> pwd.struct_passwd:
    """Let the user `nobody` own a folder and all that is in it."""
    try:
        nobody = pwd.getpwnam("nobody")
    except KeyError as error:
        raise LocalStackError(
            "add the user `nobody` to this machine, or run this as another user than root."
        ) from error
    for path in (folder, *folder.rglob("*")):
        os.chown(path, nobody.pw_uid, nobody.pw_gid, follow_symlinks=False)
    return nobody


def _postgres_answers(database: Database) -> bool:
    try:
        psycopg.connect(
            host=database.host, port=database.port, user=database.user, password=database.password,
            dbname=database.database, connect_timeout=_CONNECT_SECONDS,
        ).close()  # fmt: skip
    except psycopg.OperationalError:
        return False
    return True


def _mariadb_answers(database: Database) -> bool:
    try:
        pymysql.connect(
            host=database.host, port=database.port, user=database.user, password=database.password,
            database=database.database, connect_timeout=_CONNECT_SECONDS,
        ).close()  # fmt: skip
    except pymysql.OperationalError:
        return False
    return True
