"""Sources under test: one in memory that does as it is told, and tables of real databases."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, SecretStr

from lakesync.connectors import (
    FEED,
    Change,
    ConnectorType,
    Delivery,
    Outside,
    SourceColumn,
    SourcePage,
    SourceTable,
    Storage,
    Unreadable,
    WebhookType,
    registry,
)
from lakesync.connectors.port import standard_webhook
from lakesync.errors import NotFound, ValidationFailed
from lakesync.result import Err, Ok
from lakesync.systems.mysql.mysql_capture import BinlogConnector
from lakesync.systems.mysql.mysql_settings import MySqlSettings
from lakesync.systems.mysql.mysql_source import MySqlSource
from lakesync.systems.postgres.postgres_capture import CaptureConnector, forget
from lakesync.systems.postgres.postgres_settings import PostgresSettings
from lakesync.systems.postgres.postgres_source import PostgresSource
from lakesync.systems.sql.sql_source import SqlConnector
from tests.support.hosts import LOOPBACK
from tests.support.lake import Objects

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pytest

    from lakesync.errors import LakeSyncError
    from lakesync.result import Result
    from tools.local_stack.databases import Database

_numbers = itertools.count()


@dataclass
class MemorySource:
    """A source in memory: its log of changes is read by its length."""

    table: str = "items"
    notices_deletions: bool = True
    log: list[Change | Unreadable] = field(default_factory=list)
    fails: list[LakeSyncError] = field(default_factory=list)
    """What the next reads fail with."""
    reads: int = 0
    heard: int = 0
    """Webhooks that it was handed."""
    clock_us: int = 1_700_000_000_000_000

    def connector(self) -> MemorySource:
        """Return itself: it keeps nothing for one process."""
        return self

    def put(self, rows: Mapping[str, Any]) -> None:
        """Change rows, one after another."""
        for row_id, value in rows.items():
            self.clock_us += 1_001
            self.log.append(Change(row_id, {"value": value}, self.clock_us))

    def delete(self, row_id: str) -> None:
        self.clock_us += 1_001
        self.log.append(Change(row_id, None, self.clock_us))

    def value(self, columns: Mapping[str, Any]) -> Any:
        return columns.get("value")

    def check(self) -> Result[str, LakeSyncError]:
        return Ok("The source in memory answers.")

    def discover(self) -> Result[tuple[SourceTable, ...], LakeSyncError]:
        columns = (SourceColumn("id", "string"), SourceColumn("value", "json"))
        return Ok((SourceTable(self.table, columns, ("id",)),))

    def read(
        self,
        table: str,
        cursor: str,
        *,
        rows_max: int,
        poll_ms: int,  # noqa: ARG002
    ) -> Result[SourcePage, LakeSyncError]:
        self.reads += 1
        if self.fails:
            return Err(self.fails.pop(0))
        if table == "no_such_table":
            return Err(NotFound("there is no such table"))
        start = json.loads(cursor or "0")
        some = self.log[start : start + rows_max]
        changes = tuple(each for each in some if isinstance(each, Change))
        unreadable = tuple(each for each in some if isinstance(each, Unreadable))
        end = start + len(some)
        return Ok(SourcePage(changes, str(end), end < len(self.log), unreadable))

    def on_webhook(self, delivery: Delivery) -> Result[SourcePage, LakeSyncError]:
        """Return the entries of the log that the body names."""
        self.heard += 1
        try:
            places = json.loads(delivery.body)
        except ValueError:
            return Err(ValidationFailed("the body is no JSON"))
        some = [self.log[place]._replace(table=self.table) for place in places]
        changes = tuple(each for each in some if isinstance(each, Change))
        unreadable = tuple(each for each in some if isinstance(each, Unreadable))
        return Ok(SourcePage(changes, "", has_more=False, unreadable=unreadable))

    def close(self) -> None:
        """Let go of nothing."""


class SqlSource:
    """A table of a real database that is polled."""

    def __init__(
        self,
        database: Database,
        kind: str,
        *,
        by_time: bool,
        overlap_s: int = 60,
        settle_s: int = 0,
        changes: bool = False,
        instant: str = "",
        key: list[str] | None = None,
        query: str = "",
        columns: list[str] | None = None,
    ) -> None:
        number = next(_numbers)
        self.table = f"source{number}"
        self.sources = (FEED, self.table) if changes else (self.table,)
        self.notices_deletions = not by_time
        self.storage = Storage(Objects(), "g", f"c{number}")
        polled: dict[str, Any] = {"name": self.table, "columns": columns}
        if key:
            polled["key"] = key
        if query:
            polled |= {"query": query.replace("{table}", self.table), "key": key or ["id"]}
        if by_time:
            polled["cursorColumn"] = "changed"
        settings = {
            "host": database.host, "port": database.port, "database": database.database,
            "user": database.user, "password": database.password, "tls": "off",
            "tables": [polled], "overlapS": overlap_s, "settleS": settle_s,
        }  # fmt: skip
        self.is_postgres = kind == "postgres"
        if self.is_postgres:
            self.settings: Any = PostgresSettings.model_validate(settings | {"changes": changes})
            self.source: Any = PostgresSource(self.settings, LOOPBACK)
        else:
            self.settings = MySqlSettings.model_validate(settings | {"changes": changes})
            self.source = MySqlSource(self.settings, LOOPBACK)
        self._connectors: list[SqlConnector] = []
        instant = instant or ("timestamptz" if self.is_postgres else "datetime(6)")
        self.run(
            f"CREATE TABLE {self.table} (id bigint PRIMARY KEY, value text, changed {instant})"
        )

    def connector(self, **_: Any) -> SqlConnector:
        kind: Any = SqlConnector
        if FEED in self.sources:
            kind = CaptureConnector if self.is_postgres else BinlogConnector
        self._connectors.append(kind(self.source, self.settings, self.storage))
        return self._connectors[-1]

    def close(self) -> None:
        for connector in self._connectors:
            connector.close()
        if FEED in self.sources and self.is_postgres:
            assert forget(self.settings, self.storage, None, LOOPBACK) == ""
        self.run(f"DROP TABLE IF EXISTS {self.table}")

    def run(self, statement: str, *parameters: object) -> None:
        connection = self.source.dialect.connect()
        try:
            connection.cursor().execute(statement, parameters)
            connection.commit()
        finally:
            connection.close()

    def count(self) -> int:
        """Return how many rows the table has."""
        connection = self.source.dialect.connect()
        try:
            cursor = connection.cursor()
            cursor.execute(f"SELECT count(*) FROM {self.table}")  # noqa: S608
            return int(cursor.fetchone()[0])
        finally:
            connection.close()

    @property
    def now(self) -> str:
        """The database's own time, as an expression."""
        return "clock_timestamp()" if self.is_postgres else "UTC_TIMESTAMP(6)"

    def put(self, rows: Mapping[str, Any]) -> None:
        for row_id, value in rows.items():
            self.run(f"DELETE FROM {self.table} WHERE id = %s", int(row_id))  # noqa: S608
            self.run(
                f"INSERT INTO {self.table} (id, value, changed) VALUES (%s, %s, {self.now})",  # noqa: S608
                int(row_id),
                value,
            )

    def delete(self, row_id: str) -> None:
        self.run(f"DELETE FROM {self.table} WHERE id = %s", int(row_id))  # noqa: S608

    def value(self, columns: Mapping[str, Any]) -> Any:
        return columns.get("value")


class MemorySettings(BaseModel):
    """How the source in memory is configured."""

    model_config = ConfigDict(extra="forbid")

    token: SecretStr
    webhookSecret: SecretStr | None = None  # noqa: N815 - as settings are named in JSON
    table: str = "items"


SOURCE = MemorySource()
"""What connectors of the type `MEMORY` read; a test makes it anew."""
TOKENS: list[str] = []
"""The tokens that connectors were made with."""


def _made(settings: MemorySettings, _: Storage, __: Outside) -> MemorySource:
    TOKENS.append(settings.token.get_secret_value())
    return SOURCE


MEMORY = ConnectorType(
    "memory", "What a test says", MemorySettings, _made,
    lambda settings: {settings.table: "things"},
    webhook=WebhookType("webhookSecret", standard_webhook),
)  # fmt: skip


def use_memory_source(patch: pytest.MonkeyPatch) -> MemorySource:
    """Let there be connectors of the type ``memory``; give the source that they read."""
    own = {**registry.BUILT_IN, "memory": "tests.support.sources:MEMORY"}
    patch.setattr(registry, "BUILT_IN", own)
    SOURCE.__init__()  # type: ignore[misc]  # as it is at first
    TOKENS.clear()
    return SOURCE
