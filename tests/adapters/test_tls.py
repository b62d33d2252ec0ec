"""What `tls` means: real servers with certificates that are right, of others, or of nobody."""

from __future__ import annotations

import socket
import subprocess
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg
import pytest

from lakesync.adapters.connect import database_adapter
from lakesync.errors import AdapterRefused, ValidationFailed
from lakesync.systems.mysql.mysql_settings import MySqlSettings
from lakesync.systems.mysql.mysql_source import MySqlSource
from lakesync.systems.postgres.postgres_settings import PostgresSettings
from lakesync.systems.postgres.postgres_source import PostgresSource
from tools.local_stack.databases import start_mariadb, start_postgres

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tools.local_stack.databases import Database

NAME, OTHER = "db.lakesync.test", "other.lakesync.test"
LISTED = (NAME, OTHER)


class Certificates(NamedTuple):
    """An authority's certificate, and one of a server whose name is `NAME`."""

    authority: Path
    certificate: Path
    key: Path


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    folder = tmp_path_factory.mktemp("certificates")
    made = Certificates(folder / "ca.pem", folder / "server.pem", folder / "server.key")
    new = ("openssl", "req", "-x509", "-nodes", "-newkey", "rsa:2048", "-days", "2")
    authority = ("-keyout", str(folder / "ca.key"), "-out", str(made.authority))
    _run(*new, *authority, "-subj", "/CN=an authority")
    signed = ("-CA", str(made.authority), "-CAkey", str(folder / "ca.key"))
    server = ("-keyout", str(made.key), "-out", str(made.certificate), "-subj", f"/CN={NAME}")
    _run(*new, *server, *signed, "-addext", f"subjectAltName=DNS:{NAME}")
    made.key.chmod(0o600)
    return made


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


@pytest.fixture(scope="module")
def postgres_with_tls(certificates: Certificates) -> Iterator[Database]:
    with start_postgres() as server:
        dsn = (
            f"host={server.host} port={server.port} dbname={server.database} user={server.user} "
            f"password={server.password}"
        )
        with closing(psycopg.connect(dsn, autocommit=True)) as connection:
            data = connection.execute("SHOW data_directory").fetchone()
            assert data is not None
            for source, name in ((certificates.certificate, "crt"), (certificates.key, "key")):
                _run("install", "-m", "600", str(source), f"{data[0]}/server.{name}")
                _run("chown", "--reference", f"{data[0]}/PG_VERSION", f"{data[0]}/server.{name}")
            connection.execute("ALTER SYSTEM SET ssl = on")
            connection.execute("SELECT pg_reload_conf()")
        yield server


@pytest.fixture(scope="module")
def mariadb_with_tls(certificates: Certificates) -> Iterator[Database]:
    _run("chmod", "-R", "a+rX", str(certificates.key.parent.parent))
    certificates.key.chmod(0o644)
    with start_mariadb(
        "--ssl", f"--ssl-cert={certificates.certificate}", f"--ssl-key={certificates.key}"
    ) as server:
        yield server


@pytest.fixture(params=["postgres", "mariadb"])
def server(
    request: pytest.FixtureRequest, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> Database:
    """A server with TLS; two names lead to it, and the system trusts the authority."""
    here = socket.getaddrinfo("127.0.0.1", 1, type=socket.SOCK_STREAM)
    asked = socket.getaddrinfo

    def resolve(host: str, *rest: Any, **more: Any) -> Any:
        return here if host in LISTED else asked(host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates.authority))
    database: Database = request.getfixturevalue(f"{request.param}_with_tls")
    return database


def connected(server: Database, host: str, tls: str) -> bool:
    """Connect as a connector does; return whether the connection is encrypted."""
    settings = {
        "host": host, "port": server.port, "database": server.database, "user": server.user,
        "password": server.password, "tls": tls, "tables": [{"name": "t"}],
    }  # fmt: skip
    if server.database == "postgres":
        postgres = PostgresSource(PostgresSettings.model_validate(settings), LISTED)
        with closing(postgres.connect()) as made:
            cursor = made.cursor()
            cursor.execute("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
            return bool(cursor.fetchone()[0])
    mysql = MySqlSource(MySqlSettings.model_validate(settings), LISTED)
    with closing(mysql.connect()) as made:
        cursor = made.cursor()
        cursor.execute("SHOW STATUS LIKE 'Ssl_cipher'")
        return bool(cursor.fetchone()[1])


def url(server: Database, host: str, tls: str) -> str:
    scheme = "postgresql" if server.database == "postgres" else "mariadb"
    place = f"{server.user}:{server.password}@{host}:{server.port}/{server.database}"
    return f"{scheme}://{place}?tls={tls}"


@pytest.mark.emulator
@pytest.mark.law("N19")
def test_tls_verify_accepts_only_a_trusted_certificate_of_the_host(
    server: Database, monkeypatch: pytest.MonkeyPatch, certificates: Certificates
) -> None:
    assert connected(server, NAME, "verify")
    assert connected(server, OTHER, "encrypt")
    with pytest.raises(AdapterRefused, match="certificate"):
        connected(server, OTHER, "verify")
    with database_adapter(url(server, NAME, "verify"), "g", hosts=LISTED) as database:
        assert database.answers().unwrap() is None
    refused: Any = database_adapter(url(server, OTHER, "verify"), "g", hosts=LISTED).answers()
    assert type(refused.error) is AdapterRefused
    with database_adapter(url(server, OTHER, "encrypt"), "g", hosts=LISTED) as database:
        assert database.answers().unwrap() is None
    # Now the system trusts another authority alone.
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates.certificate.with_name("other.pem")))
    _run(
        "openssl", "req", "-x509", "-nodes", "-newkey", "rsa:2048", "-days", "2", "-subj",
        "/CN=another", "-keyout", "/dev/null", "-out",
        str(certificates.certificate.with_name("other.pem")),
    )  # fmt: skip
    with pytest.raises(AdapterRefused, match="certificate"):
        connected(server, NAME, "verify")
    named = f"{url(server, NAME, 'verify')}&ca={certificates.authority}"
    for each in (named, named.replace("tls=verify&", "")):
        with database_adapter(each, "g", hosts=LISTED) as database:
            assert database.answers().unwrap() is None


@pytest.mark.law("N19")
@pytest.mark.parametrize("scheme", ["postgresql", "mysql", "mariadb"])
@pytest.mark.parametrize("mode", ["1", "", "verify-full", "VERIFY"])
def test_unknown_tls_mode_is_refused_with_the_valid_ones(scheme: str, mode: str) -> None:
    with pytest.raises(ValidationFailed, match="verify, encrypt, off"):
        database_adapter(f"{scheme}://u:pw@h/d?tls={mode}", "g")


@pytest.mark.law("N19")
def test_missing_certificate_file_is_refused() -> None:
    with pytest.raises(ValidationFailed, match="no file of certificates"):
        database_adapter("mysql://u:pw@h/d?ca=/no/such/file", "g")
