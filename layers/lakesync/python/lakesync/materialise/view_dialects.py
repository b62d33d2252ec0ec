"""SQL of views in each engine that reads the lake: names, lists, JSON, last of a group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from lakesync.core.column_types import precision_scale

if TYPE_CHECKING:
    from collections.abc import Mapping


class Dialect(NamedTuple):
    """One engine's SQL, as patterns; each takes SQL expressions, and gives one."""

    quote: str
    """The quotes around a name."""
    contains: str
    """Whether ``list`` contains ``item``."""
    scalar: str
    """The text at a ``path`` of ``json``, NULL if nothing is there."""
    is_there: str
    """Whether anything is at a ``path`` of ``json``."""
    last: str
    """In a group, the ``value`` of the row with the greatest ``hlc`` and ``client``, even if NULL.
    """
    types: Mapping[str, str]
    """By column type (`lakesync.core.column_types`), the type of a view's column."""
    encoded: str
    """Bytes as text."""
    instant: str = "{value}"
    """A point in time, of a type that a view may have."""

    def name(self, *parts: str) -> str:
        """Quote a name, with its qualifiers."""
        return ".".join(
            self.quote + part.replace(self.quote, self.quote * 2) + self.quote for part in parts
        )

    def type_name(self, kind: str) -> str:
        """Return the name of a column's type."""
        decimal = precision_scale(kind)
        return self.types[kind] if decimal is None else f"decimal({decimal[0]},{decimal[1]})"


def _types(text: str, number: str, instant: str, blob: str) -> dict[str, str]:
    """Return the types by name, some of which differ between engines."""
    return {
        **dict.fromkeys(("string", "json", "null"), text),
        "number": number,
        "boolean": "boolean",
        "integer": "bigint",
        "timestamp": instant,
        "date": "date",
        "bytes": blob,
    }


_TRINO: Final = Dialect(
    quote='"',
    contains="contains({list}, {item})",
    scalar="json_extract_scalar({json}, {path})",
    is_there="json_extract({json}, {path}) IS NOT NULL",
    last="max_by({value}, ROW({hlc}, {client}))",
    types=_types("varchar", "double", "timestamp(6) with time zone", "varbinary"),
    encoded="to_base64({value})",
)
DIALECTS: Final = {
    # Athena makes no view with a time zone column, and the lake's instants are in UTC.
    "athena": _TRINO._replace(
        instant="CAST({value} AT TIME ZONE 'UTC' AS timestamp(6))",
        types=_types("varchar", "double", "timestamp(6)", "varbinary"),
    ),
    "duckdb": Dialect(
        quote='"',
        contains="list_contains({list}, {item})",
        scalar="json_extract_string({json}, {path})",
        is_there="json_extract({json}, {path}) IS NOT NULL",
        last="arg_max_null({value}, ROW({hlc}, {client}))",
        types=_types("varchar", "double", "timestamp with time zone", "blob"),
        encoded="base64({value})",
    ),
    "spark": Dialect(
        quote="`",
        contains="array_contains({list}, {item})",
        scalar="get_json_object({json}, {path})",
        is_there="get_json_object({json}, {path}) IS NOT NULL",
        last="max_by({value}, struct({hlc}, {client}))",
        types=_types("string", "double", "timestamp", "binary"),
        encoded="base64({value})",
    ),
    "trino": _TRINO,
}
"""By the name of the engine."""
