"""Converts the columns of a captured table to JSON values: the same as reading the table gives."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from lakesync.connectors.port import SourceColumn, SourceTable
from lakesync.connectors.sql.binlog import table_map as tm
from lakesync.connectors.sql.binlog.json_binary import json_from
from lakesync.connectors.sql.binlog.rows import BINARY
from lakesync.connectors.sql.binlog.text import decoder_of
from lakesync.connectors.sql.capture.columns import CapturedTable
from lakesync.connectors.sql.mysql_values import MySqlValues
from lakesync.connectors.sql.plan import plan_of
from lakesync.connectors.sql.values import boolean, json_value, same

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lakesync.connectors.sql.binlog.table_map import LoggedColumn, LoggedTable
    from lakesync.connectors.sql.binlog.tables import TableLook
    from lakesync.connectors.sql.configuration import PolledTable

_KINDS: Final[Mapping[int, str]] = {
    tm.TINY: "integer", tm.SHORT: "integer", tm.INT24: "integer", tm.LONG: "integer",
    tm.LONGLONG: "integer", tm.FLOAT: "number", tm.DOUBLE: "number", tm.DATE: "date",
    tm.DATETIME: "timestamp", tm.TIMESTAMP: "timestamp", tm.BIT: "bytes", tm.JSON: "json",
}  # fmt: skip
_VALUES: Final = MySqlValues()
_TEXTS: Final = frozenset({tm.ENUM, tm.SET, tm.DECIMAL, tm.TIME})
"""Types whose readers return text."""
_ADDRESSES: Final[Mapping[str, Callable[[bytes], str]]] = {
    "uuid": lambda data: str(UUID(bytes=data)),
    "inet4": lambda data: socket.inet_ntop(socket.AF_INET, data),
    "inet6": lambda data: socket.inet_ntop(socket.AF_INET6, data),
}
"""MariaDB's types that are read as text, but are bytes in its log."""


def captured_table(logged: LoggedTable, look: TableLook, settings: PolledTable) -> CapturedTable:
    """Return how a table's logged rows are decoded.

    Args:
        logged: the table as the log describes it.
        look: the current table; its column types are more precise than the log's, if they agree.
        settings: which of its columns are wanted.

    Raises:
        AdapterRefused: a configured column is missing.
    """
    kinds = {
        column.name: _kind(column, look.columns.get(column.name, ""))
        for column in logged.columns
        if column.name not in look.computed
    }
    columns = tuple(
        SourceColumn(name, kind, source_type=look.columns.get(name, ""))
        for name, kind in kinds.items()
    )
    is_same = set(logged.key) == set(look.primary_key)
    key = look.primary_key if is_same else logged.key
    plan = plan_of(settings, SourceTable(settings.name, columns, key), _VALUES)
    place_of = {column.name: place for place, column in enumerate(logged.columns)}
    places = tuple(place_of[name] for name in plan.columns)
    converts = tuple(
        _convert(logged.columns[at], look.columns.get(name, ""), kind, look.charsets.get(name, ""))
        for at, kind, name in zip(places, plan.types, plan.columns, strict=True)
    )
    return CapturedTable(plan, places, converts, plan.key_places)


def _kind(column: LoggedColumn, sql_type: str) -> str:
    """Return a column's type: the current table's, if it agrees with the log's."""
    logged = _KINDS.get(column.type, "string")
    if column.type == tm.LONGLONG and column.is_unsigned:
        logged = "string"
    elif column.type == tm.DECIMAL:
        logged = _VALUES.column_type(f"decimal({column.meta & 0xFF},{column.meta >> 8})")
    elif column.type in {tm.VARCHAR, tm.STRING, tm.BLOB} and column.charset == BINARY:
        logged = "bytes"
    declared = _VALUES.column_type(sql_type) if sql_type else logged
    if declared in {logged, "string"} or (declared == "boolean" and column.type == tm.TINY):
        return declared
    is_decimal = declared.startswith("decimal") and column.type == tm.DECIMAL
    return declared if is_decimal else logged


def _convert(column: LoggedColumn, sql_type: str, kind: str, charset: str) -> Callable[[Any], Any]:
    if column.type == tm.JSON:
        return lambda value: json_value(json_from(value), "")
    if column.charset == BINARY and sql_type in _ADDRESSES:
        return _ADDRESSES[sql_type]
    if column.type in {tm.VARCHAR, tm.STRING, tm.BLOB} and column.charset != BINARY:
        return decoder_of(column, charset)
    if kind == "boolean":
        return boolean
    if (kind == "integer" and column.type != tm.LONGLONG) or column.type in _TEXTS:
        return same
    return lambda value: json_value(value, kind)
