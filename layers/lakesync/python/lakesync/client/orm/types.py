"""How SQLAlchemy's types are stored: as a synced table's values are, so that others read them.

What SQLite itself stores differently is here: instants in ISO 8601 with a ``T``, decimals as
exact text, bytes in base64, JSON as `lakesync.client.storage.cells` has it.
"""

from __future__ import annotations

import base64
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import cast, func, type_coerce, types
from sqlalchemy.dialects.sqlite import base
from sqlalchemy.sql.operators import json_getitem_op, json_path_getitem_op

from lakesync.client.storage.cells import reader
from lakesync.client.storage.parameters import AsJson

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy.types import TypeEngine


_PARTS: Final = (json_getitem_op, json_path_getitem_op)


def _both(
    write: Callable[[Any], Any], read: Callable[[Any], Any]
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return the two processors of a type; None stays None."""

    def bind(_self: object, _dialect: object) -> Callable[[Any], Any]:
        return lambda value: None if value is None else write(value)

    def result(_self: object, _dialect: object, _type: object) -> Callable[[Any], Any]:
        return lambda value: None if value is None else read(value)

    return bind, result


def _read_json(cell: Any) -> Any:
    """Return a JSON value; of a part of one, SQLite gives its JSON text as bytes."""
    return reader("json")(cell)


class Instant(types.DateTime):
    """A ``timestamp`` column."""

    bind_processor, result_processor = _both(datetime.isoformat, datetime.fromisoformat)


class Exact(types.Numeric[Any]):
    """A ``decimal(p,s)`` column."""

    def bind_processor(self, _dialect: object) -> Callable[[Any], Any]:
        """Return the function that writes a value."""
        return lambda value: None if value is None else Decimal(str(value))

    def result_processor(self, _dialect: object, _type: object) -> Callable[[Any], Any]:
        """Return the function that reads a cell."""
        made: Callable[[str], Any] = Decimal if self.asdecimal else float
        return lambda cell: None if cell is None else made(str(cell))


class Number(types.Float[Any]):
    """A ``number`` column."""

    bind_processor, result_processor = _both(float, float)


class Whole(types.Integer):
    """An ``integer`` column."""

    bind_processor, result_processor = _both(int, int)


class Base64(types.LargeBinary):
    """A ``bytes`` column."""

    bind_processor, result_processor = _both(
        lambda value: base64.b64encode(value).decode(), base64.b64decode
    )


class Json(types.JSON):
    """A ``json`` column."""

    bind_processor, result_processor = _both(AsJson, _read_json)

    def column_expression(self, colexpr: Any) -> Any:
        """Have a part of a value read as its JSON text, which says whether it is text itself."""
        is_part = getattr(colexpr, "operator", None) in _PARTS
        if not is_part:
            return colexpr
        return type_coerce(cast(func.json_quote(colexpr), types.BLOB), types.JSON())


STORED_AS: Final[dict[type[TypeEngine[Any]], type[TypeEngine[Any]]]] = {
    **base.colspecs,
    types.DateTime: Instant,
    types.Float: Number,
    types.Numeric: Exact,
    types.Integer: Whole,
    types.LargeBinary: Base64,
    types.JSON: Json,
}
"""By SQLAlchemy's type, the one that stores it here."""


def column_type(kind: TypeEngine[Any]) -> str:
    """Return the type of a synced table's column for one of SQLAlchemy's."""
    for sort, name in _NAMES:
        if isinstance(kind, sort):
            return str(name(kind) if callable(name) else name)
    return "string"


def _decimal(kind: Any) -> str:
    return f"decimal({kind.precision or 38},{kind.scale if kind.scale is not None else 10})"


_NAMES: Final[tuple[tuple[type[TypeEngine[Any]], Any], ...]] = (
    (types.Boolean, "boolean"),
    (types.Enum, "string"),
    (types.Float, "number"),
    (types.Numeric, _decimal),
    (types.Integer, "integer"),
    (types.DateTime, "timestamp"),
    (types.Date, "date"),
    (types.LargeBinary, "bytes"),
    (types.JSON, "json"),
)
