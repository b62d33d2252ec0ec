"""Servers that refuse, close, say nothing or something else: one error, soon, by every driver."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psycopg
import pymysql
import pytest

from lakesync.errors import AdapterRefused, AdapterTimedOut, AdapterUnreachable
from lakesync.systems.mysql import mysql_dialect as mysql
from lakesync.systems.mysql.mysql_dialect import MySql
from lakesync.systems.postgres import postgres_dialect as postgres_dialect_module
from lakesync.systems.postgres.postgres_dialect import Postgres
from tests.support.destinations import (
    SqlDestination,
    mariadb_dialect,
    new_table,
    postgres_dialect,
)
from tests.support.hosts import LOOPBACK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tools.local_stack.databases import Database

SOON_S = 1
"""How long connecting may take in these tests."""
SENTENCE = "nothing answers in time as it does"
ACTS: dict[str, bytes | None] = {
    "closes": None,
    "says nothing": b"",
    "speaks SSH": b"SSH-2.0-OpenSSH_9.6\r\n",
    "speaks HTTP": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "speaks memcached": b"ERROR\r\n",
    "sends an error with the name of a service": b"E\x00\x00\x00\x08redis",
    "sends zeros": bytes(64),
    "sends a handshake cut short": b"\x05\x00\x00\x00\x0a8.0\x00",
    "sends ones": b"\xff" * 64,
}


@contextmanager
def playing(act: bytes | None) -> Iterator[int]:
    """Play a server that accepts, and then sends some bytes, or closes (None); gives its port."""
    taken: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listening.accept()
                    taken.append(connection)
                    if act is None:
                        connection.close()
                    elif act:
                        connection.sendall(act)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            for each in taken:
                each.close()


def postgres_at(port: int, **more: Any) -> Postgres:
    return Postgres(f"postgresql://u:secret@127.0.0.1:{port}/d", LOOPBACK, **more)


def mysql_at(port: int, **more: Any) -> MySql:
    return MySql("127.0.0.1", "u", "secret", "d", port, hosts=LOOPBACK, **more)


@pytest.fixture(params=[postgres_at, mysql_at], ids=["postgres", "mysql"])
def at(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(mysql, "CONNECT_S_MAX", SOON_S)
    monkeypatch.setattr(postgres_dialect_module, "CONNECT_S_MAX", SOON_S)
    return request.param


def message(at: Callable[[int], Any], port: int) -> str:
    """Return what is said about a server at a port, with the port left out."""
    begun = time.monotonic()
    with pytest.raises(AdapterUnreachable) as unreachable:
        at(port).connect()
    assert time.monotonic() - begun < 4 * SOON_S
    assert type(unreachable.value) is AdapterUnreachable
    return str(unreachable.value).replace(str(port), "PORT")


@pytest.mark.law("N19")
def test_connection_failures_give_one_message_for_open_and_closed_ports(
    at: Callable[[int], Any],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as one:
        closed = one.getsockname()[1]
    messages = {message(at, closed)}
    for act in ACTS.values():
        with playing(act) as port:
            messages.add(message(at, port))
    assert len(messages) == 1, messages
    assert SENTENCE in messages.pop()


@pytest.mark.law("N19")
def test_connect_timeouts_are_at_most_ten_seconds() -> None:
    assert mysql.CONNECT_S_MAX <= 10
    assert postgres_dialect_module.CONNECT_S_MAX <= 10


@contextmanager
def silenced(server: Database) -> Iterator[tuple[int, Callable[[], None]]]:
    """Stand between a client and a server: gives the port, and what makes it hold everything."""
    quiet = threading.Event()
    ends: list[socket.socket] = []

    def carry(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                if quiet.is_set():
                    return
                target.sendall(data)

    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    client, _ = listening.accept()
                    behind = socket.create_connection((server.host, server.port))
                    ends.extend((client, behind))
                    for pair in ((client, behind), (behind, client)):
                        threading.Thread(target=carry, args=pair, daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        try:
            yield listening.getsockname()[1], quiet.set
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            for each in ends:
                each.close()


@pytest.mark.law("N19")
@pytest.mark.emulator
@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
def test_server_that_falls_silent_after_connecting_times_out(
    kind: str, request: pytest.FixtureRequest
) -> None:
    database = request.getfixturevalue(kind)
    with silenced(database) as (port, be_silent):
        place = replace(database, port=port)
        made: Any = postgres_dialect if kind == "postgres" else mariadb_dialect
        connection: Any = replace(made(place), answer_s=1.0).connect()
        be_silent()
        begun = time.monotonic()
        with pytest.raises((psycopg.Error, pymysql.MySQLError)) as silence:
            connection.cursor().execute("SELECT 1")
        assert time.monotonic() - begun < 4
        assert type(made(place).translate(silence.value)) is AdapterTimedOut


@pytest.mark.law("N19")
@pytest.mark.emulator
@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
def test_error_message_of_the_server_is_passed_on(
    kind: str, request: pytest.FixtureRequest
) -> None:
    database = request.getfixturevalue(kind)
    wrong = replace(database, database="no_such_database")
    made: Any = postgres_dialect if kind == "postgres" else mariadb_dialect
    with pytest.raises(AdapterRefused, match="no_such_database"):
        made(wrong).connect()
    with pytest.raises(AdapterRefused, match="neither public nor"):
        replace(made(database), hosts=()).connect()
    assert SqlDestination(made(database)).run("SELECT 1") == [(1,)]
    named = replace(made(replace(database, host="localhost")), hosts=("localhost",))
    assert SqlDestination(named).run("SELECT 1") == [(1,)]


@pytest.mark.law("N19")
@pytest.mark.emulator
def test_server_without_tls_is_refused_if_tls_is_required(
    postgres: Database, mariadb: Database
) -> None:
    dsn = f"{postgres_dialect(postgres).dsn}?sslmode=require"
    with pytest.raises(AdapterRefused, match="SSL"):
        Postgres(dsn, LOOPBACK).connect()
    with pytest.raises(AdapterRefused, match=r"SSL|certificate"):
        replace(mariadb_dialect(mariadb), tls=ssl.create_default_context()).connect()


@pytest.mark.emulator
@pytest.mark.law("D12")
@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
def test_connection_check_creates_no_tables(kind: str, request: pytest.FixtureRequest) -> None:
    database = request.getfixturevalue(kind)
    made: Any = postgres_dialect if kind == "postgres" else mariadb_dialect
    destination, name = SqlDestination(made(database)), f"asked_{new_table()}"
    destination.run(f"CREATE {'SCHEMA' if kind == 'postgres' else 'DATABASE'} {name}")
    if kind == "postgres":
        dsn = f"{destination.dialect.dsn}?options=-csearch_path%3D{name}"
        own = replace(destination.dialect, dsn=dsn)
    else:
        own = replace(destination.dialect, database=name)
    count = "SELECT count(*) FROM information_schema.tables WHERE table_schema = %s"
    with SqlDestination(own).adapter() as adapter:
        adapter.answers().unwrap()
        assert destination.run(count, name) == [(0,)]
        adapter.tables().unwrap()
        assert destination.run(count, name) != [(0,)], "the question would be seen there"
    destination.run(f"DROP SCHEMA {name}{' CASCADE' if kind == 'postgres' else ''}")
    with SqlDestination(replace(own, hosts=())).adapter() as adapter:
        refused: Any = adapter.answers()
        assert type(refused.error) is AdapterRefused
