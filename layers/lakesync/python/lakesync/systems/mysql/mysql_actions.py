"""Declared statements in MySQL and MariaDB."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pydantic import Field

from lakesync.actions.engine import HandlerType
from lakesync.systems.mysql.mysql_source import MySqlSource
from lakesync.systems.sql.sql_actions import (
    ANSWER_S_MAX,
    WAIT_S_MAX,
    SqlActionSettings,
    SqlStatements,
)

if TYPE_CHECKING:
    from lakesync.connectors.port import Outside


class MySqlActionSettings(SqlActionSettings):
    """A MySQL 8 or MariaDB 10.6 database, or newer."""

    port: int = Field(3306, ge=1, le=65535)


def _mysql(settings: Any, outside: Outside) -> SqlStatements:
    limits = f"SET SESSION innodb_lock_wait_timeout = {WAIT_S_MAX}"
    source = MySqlSource(settings, outside.databases, answer_s=ANSWER_S_MAX)
    return SqlStatements(settings, source.dialect, "database()", limits)


MYSQL: Final = HandlerType("mysql", "Statements in MySQL or MariaDB", MySqlActionSettings, _mysql)
