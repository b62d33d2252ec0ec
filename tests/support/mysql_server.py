"""A MySQL that is there already, in which tests take what they otherwise do of a MariaDB."""

from __future__ import annotations

import os
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import pymysql

from tools.local_stack.databases import Database

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lakesync.adapters.sql.standard import Dialect


@contextmanager
def database_on(url: str) -> Iterator[Database]:
    """Make a database of this process on the server at a URL, ``mysql://user:password@host:3306``.

    All databases and users whose names begin with its name go with it in the end.
    """
    parts = urlsplit(url)
    assert parts.scheme == "mysql", url
    assert parts.hostname, url
    database = Database(
        parts.port or 3306,
        f"lakesync{os.getpid()}",
        parts.hostname,
        unquote(parts.username or ""),
        unquote(parts.password or ""),
        is_mysql=True,
    )
    _removed(database)
    _run(database, f"CREATE DATABASE {database.database}")
    try:
        yield database
    finally:
        _removed(database)


def end_sessions(dialect: Dialect, user: str) -> None:
    with closing(dialect.connect()) as connection:
        cursor = connection.cursor()
        cursor.execute("SELECT id FROM information_schema.processlist WHERE user = %s", (user,))
        for (number,) in cursor.fetchall():
            with suppress(pymysql.OperationalError):  # it has ended by itself
                cursor.execute(f"KILL {number}", ())


def _removed(database: Database) -> None:
    name = database.database
    for (schema,) in _run(
        database,
        "SELECT schema_name FROM information_schema.schemata WHERE schema_name RLIKE %s",
        f"^{name}(_|$)",
    ):
        _run(database, f"DROP DATABASE `{schema}`")
    for user, host in _run(
        database, "SELECT user, host FROM mysql.user WHERE user RLIKE %s", f"_{name}_"
    ):
        _run(database, f"DROP USER `{user}`@`{host}`")


def _run(database: Database, statement: str, *parameters: str) -> list[tuple[str, ...]]:
    connection = pymysql.connect(
        host=database.host, port=database.port, user=database.user, password=database.password,
        autocommit=True,
    )  # fmt: skip
    with closing(connection), connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        return list(cursor.fetchall())
