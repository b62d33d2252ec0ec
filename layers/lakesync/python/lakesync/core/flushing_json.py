"""Declarations of flushes as received: read strictly; the first fault is named."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from lakesync.core.flushing import (
    BUDGETS_MAX,
    EVERY_S_MAX,
    FLUSH_BYTES_MAX,
    FLUSH_BYTES_MIN,
    FORMATS,
    PARQUET,
    Flushing,
)
from lakesync.core.names import is_table_name
from lakesync.errors import ValidationFailed

if TYPE_CHECKING:
    from lakesync.core.config import GatewayConfig

_FIELDS: Final = ("everyS", "bytes", "tables", "flushFormat")


def read_flushing(body: object, config: GatewayConfig) -> Flushing:
    """Read a declaration as received; what it leaves out is as the stack has it.

    Raises:
        ValidationFailed: it is malformed; `field` names where.
        NameTaken: it spells a table differently.
    """
    if not isinstance(body, dict):
        raise ValidationFailed('must be a JSON object: {"everyS": 900, "bytes": 4000000}')
    for name in body:
        if name not in _FIELDS:
            raise ValidationFailed(
                f"there is no field {str(name)[:64]}; there are {', '.join(_FIELDS)}",
                field=str(name)[:64],
            )
    budgets = body.get("tables", {})
    if not isinstance(budgets, dict) or len(budgets) > BUDGETS_MAX:
        raise ValidationFailed(
            f'tables must be an object of at most {BUDGETS_MAX} budgets: {{"todos": 100000}}',
            field="tables",
        )
    for table in budgets:
        if not is_table_name(table):
            raise ValidationFailed(f"tables: {table[:64]!r} is no table's name", field="tables")
        config.check_table(table)
    form = body.get("flushFormat", PARQUET)
    if form not in FORMATS:
        raise ValidationFailed(f"flushFormat must be {' or '.join(FORMATS)}", field="flushFormat")
    read = {table: _whole(value, f"tables.{table}", FLUSH_BYTES_MIN, FLUSH_BYTES_MAX)
            for table, value in budgets.items()}  # fmt: skip
    return Flushing(
        _whole(body.get("everyS", 0), "everyS", 0, EVERY_S_MAX),
        _or_none(body.get("bytes", 0)),
        MappingProxyType(read),
        form,
    )


def _or_none(value: object) -> int:
    return 0 if value == 0 and value is not False else _whole(
        value, "bytes", FLUSH_BYTES_MIN, FLUSH_BYTES_MAX
    )  # fmt: skip


def _whole(value: object, name: str, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ValidationFailed(
            f"{name} must be a whole number from {least:,} to {most:,}", field=name
        )
    return value
