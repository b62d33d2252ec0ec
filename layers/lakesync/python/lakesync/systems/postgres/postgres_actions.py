"""Declared statements in PostgreSQL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pydantic import Field

from lakesync.actions.engine import HandlerType
from lakesync.systems.postgres.postgres_source import PostgresSource
from lakesync.systems.sql.sql_actions import (
    ANSWER_S_MAX,
    WAIT_S_MAX,
    SqlActionSettings,
    SqlStatements,
)

if TYPE_CHECKING:
    from lakesync.connectors.port import Outside


class PostgresActionSettings(SqlActionSettings):
    """A PostgreSQL database, 13 or newer."""

    port: int = Field(5432, ge=1, le=65535)


def _postgres(settings: Any, outside: Outside) -> SqlStatements:
    limits = f"SET LOCAL statement_timeout = {WAIT_S_MAX * 1000}"
    source = PostgresSource(settings, outside.databases, answer_s=ANSWER_S_MAX)
    return SqlStatements(settings, source.dialect, "current_schema()", limits)


POSTGRES: Final = HandlerType(
    "postgres", "Statements in PostgreSQL", PostgresActionSettings, _postgres
)
