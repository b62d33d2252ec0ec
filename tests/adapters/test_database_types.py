"""Databases that packages add: declared, asked, delivered to; one that is broken harms no other."""

from __future__ import annotations

import sqlite3
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.adapters.connect import database_adapter, read_connection
from lakesync.adapters.database import (
    DatabaseAdapter,
    DestinationDatabase,
    Fillable,
    Materialisable,
    SideBySide,
)
from lakesync.adapters.database_types import GROUP, DatabasePlace, database_kinds
from lakesync.adapters.lake.adapter import LakeAdapter
from lakesync.adapters.lake.memory import MemoryAdapter
from lakesync.adapters.memory import MemoryDatabase
from lakesync.adapters.sql.adapter import SqlAdapter
from lakesync.adapters.sql.standard import Dialect
from lakesync.core.config import GatewayConfig
from lakesync.core.destinations import KINDS
from lakesync.declare.destinations import read_destination
from lakesync.declare.flows import read_flow
from lakesync.errors import AdapterRefused, DestinationRefused, FlowRefused, ValidationFailed
from lakesync.result import Ok
from lakesync.runtime.invocations import with_questions
from lakesync.systems.mysql.mysql_dialect import MySql
from lakesync.systems.objects import ObjectsDatabase
from lakesync.systems.postgres.postgres_dialect import Postgres
from tests.delivery.test_delivery import some
from tests.delivery.world import World
from tests.support.gateways import GATEWAY
from tests.support.markdown import PYTHON_BLOCK
from tests.support.packages import install
from tests.support.repository import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Install = Callable[..., None]

LINES_MAX = 200
"""Of a dialect of one's own."""
SQLITE = PYTHON_BLOCK.findall((ROOT / "docs" / "guide" / "adapters.md").read_text("utf-8"))[0]
OTHERS = """
from lakesync.adapters.database_types import DatabaseType
from lakesync.adapters.memory import MemoryDatabase


class Lacking:
    mark = answers = print


PLACES = []
LACKING = DatabaseType("Lacking", lambda place: Lacking())
MEMORY = DatabaseType("In memory", lambda place: PLACES.append(place) or MemoryDatabase())
UNDRIVEN = DatabaseType("Without its driver", lambda place: __import__("no_such_driver"))
NONE = 7
"""
BROKEN = {"broken": "SQLITE"}


@pytest.fixture
def installs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Install:
    """Install packages of databases."""

    def installed(package: str, code: str, **types: str) -> None:
        install(monkeypatch, tmp_path, package, code, {GROUP: types})

    return installed


def refused(url: str) -> str:
    """Return why a database is not opened."""
    with pytest.raises(AdapterRefused) as raised:
        database_adapter(url, GATEWAY)
    return raised.value.message


def test_package_adds_a_database_kind_that_receives_the_secret(installs: Install) -> None:
    installs("some-databases", OTHERS, memo="MEMORY", postgres="NONE")
    import some_databases  # type: ignore[import-not-found]  # noqa: PLC0415 - just installed

    assert database_kinds() == [*KINDS, "memo"], "what is built in is replaced by nobody"
    secret = read_connection('{"url": "memo://there", "credentials": {"key": "k"}}')
    assert (secret.kind, read_connection("memo://x").kind) == ("memo", "memo")
    opened = database_adapter(
        secret.url, GATEWAY, secret.credentials, history_ms=7, hosts=("10.0.0.0/8",)
    )
    assert isinstance(opened, MemoryDatabase)
    assert [
        DatabasePlace("memo://there", GATEWAY, {"key": "k"}, 7, ("10.0.0.0/8",))
    ] == some_databases.PLACES


def test_unknown_database_kind_is_refused() -> None:
    assert database_kinds() == [*KINDS]
    assert read_connection("memo://there").kind == ""
    with pytest.raises(ValidationFailed, match="bigquery"):
        read_connection('{"url": "memo://there", "credentials": {}}')
    with pytest.raises(DestinationRefused, match="s3, iceberg"):
        read_destination("w", {"kind": "memo", "secret": "w"}, GatewayConfig())


def test_added_database_kind_is_accepted_as_destination_and_flow_end() -> None:
    kinds = [*KINDS, "memo"]
    body = {"kind": "memo", "secret": "w", "archive": {"secret": "cold", "afterDays": 7}}
    assert read_destination("w", body, GatewayConfig(), kinds).kind == "memo"
    ends = {"database": "memo", "secret": "a"}, {"database": "memo", "secret": "b"}
    flow = {"name": "f", "source": ends[0], "destination": ends[1], "tables": ["t"]}
    assert read_flow(flow, GatewayConfig(), "acme", kinds).to.kind == "memo"
    with pytest.raises(FlowRefused, match="2 faults"):
        read_flow(flow, GatewayConfig(), "acme")


def test_an_entry_point_that_fails_is_an_error_that_names_it_and_its_package(
    installs: Install,
) -> None:
    installs("broken-databases", "import no_such_module", **BROKEN)
    installs("some-databases", OTHERS, lacking="LACKING", undriven="UNDRIVEN", none="NONE")

    message = refused("broken://there")
    assert "broken_databases:SQLITE of the package broken-databases" in message
    assert "No module named 'no_such_module'" in message
    assert refused("none://there") == (
        "the entry point some_databases:NONE of the package some-databases is no DatabaseType"
    )
    assert "the driver of undriven cannot be imported: No module" in refused("undriven://there")
    lacks = refused("lacking://x").removeprefix("the database lacking lacks the operations ")
    assert {"put_rows", "rewrite", "insert_deltas"} < {*lacks.split(", ")}
    assert not {"mark", "answers"} & {*lacks.split(", ")}


def test_database_kind_defined_by_two_packages_is_refused(installs: Install) -> None:
    installs("first", OTHERS, memo="MEMORY")
    installs("second", OTHERS, memo="MEMORY")
    assert "first:MEMORY of the package first and second:MEMORY" in refused("memo://there")


@pytest.mark.law("D9")
def test_batches_waiting_for_a_broken_package_are_delivered_once_it_works(
    installs: Install, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    world = World()
    world.declare("other")
    installs("files", "import no_such_module", sqlite="SQLITE")
    opened = partial(database_adapter, f"sqlite://{tmp_path}/file", GATEWAY)
    kept = world.databases["other"]
    monkeypatch.setattr(
        world, "databases", _Databases(lambda secret: opened() if secret == "file" else kept)
    )
    world.declare("file", kind="sqlite")
    world.push(*some(4))
    world.flush()
    failures = world.deliver()

    assert {type(error) for error in failures} == {AdapterRefused}
    assert world.rows("todos", "other") == world.expected("todos", "other")
    assert world.waiting("file")
    noted = world.buffer.delivery_states(GATEWAY, "file")
    assert "files:SQLITE of the package files" in noted["todos"].error

    module = tmp_path / "of_files" / "files.py"
    module.write_text(SQLITE, "utf-8")
    world.sweep()
    assert not world.waiting("file")
    with sqlite3.connect(tmp_path / "file") as connection:
        rows = connection.execute('SELECT row_id, title FROM "todos" ORDER BY row_id').fetchall()
    assert rows == [(f"r{n}", f'"t{n}"') for n in range(4)]


class _Databases:
    def __init__(self, opened: Callable[[str], Any]) -> None:
        self._opened = opened

    def __getitem__(self, secret: str) -> Any:
        return self._opened(secret)


def test_administrator_check_reports_why_a_database_kind_is_unusable(installs: Install) -> None:
    installs("broken-databases", "import no_such_module", **BROKEN)

    def opened(gateway: str, secret: str, kind: str, keeper: str) -> DestinationDatabase:
        return database_adapter(f"{kind}://{secret}", keeper)

    handler = with_questions(lambda *_: {}, opened)
    answer: Any = handler({"gateway": GATEWAY, "ask": {"kind": "broken", "secret": "s"}}, None)
    assert "of the package broken-databases" in answer["reason"]


def test_custom_dialect_is_shorter_than_a_third_of_the_line_limit() -> None:
    assert len(SQLITE.splitlines()) < LINES_MAX / 3


def test_isinstance_recognises_adapters_and_dialects() -> None:
    dialects = [Postgres("postgresql://h/d"), MySql("h", "u", "p", "d")]
    databases: list[Any] = [
        MemoryDatabase(), ObjectsDatabase(MemoryAdapter(), "", "g"), SqlAdapter(dialects[0], "g"),
    ]  # fmt: skip
    for kind in (DatabaseAdapter, Materialisable, Fillable, DestinationDatabase):
        assert all(isinstance(each, kind) for each in databases), kind
        assert not isinstance(MemoryAdapter(), kind), kind
    assert isinstance(databases[2], SideBySide)
    assert all(isinstance(each, Dialect) for each in dialects)
    assert isinstance(MemoryAdapter(), LakeAdapter)
    assert not isinstance(databases[0], Dialect | LakeAdapter)
    assert databases[0].answers() == Ok(None)
