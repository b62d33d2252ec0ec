"""SQL of views in each engine that reads the lake: names, lists, JSON, last of a group."""

from __future__ import annotations

from typing import Final, NamedTuple


class Dialect(NamedTuple):
    """One engine's SQL, as patterns; each takes SQL expressions, and gives one."""

    quote: str
    """What stands around a name."""
    contains: str
    """Whether ``list`` holds ``item``."""
    scalar: str
    """The text at a ``path`` of ``json``, NULL if nothing is there."""
    is_there: str
    """Whether anything is at a ``path`` of ``json``."""
    last: str
    """Of a group, the ``value`` of the row with the greatest ``hlc`` and ``client``, NULL too."""
    instant: str = "{value}"
    """A point in time, of a type that a view may have."""

    def name(self, *parts: str) -> str:
        """Quote a name, with what it is qualified by."""
        return ".".join(
            self.quote + part.replace(self.quote, self.quote * 2) + self.quote for part in parts
        )


_TRINO: Final = Dialect(
    quote='"',
    contains="contains({list}, {item})",
    scalar="json_extract_scalar({json}, {path})",
    is_there="json_extract({json}, {path}) IS NOT NULL",
    last="max_by({value}, ROW({hlc}, {client}))",
)
DIALECTS: Final = {
    # Athena makes no view with a column that has a time zone, and the lake's instants are of UTC.
    "athena": _TRINO._replace(instant="CAST({value} AT TIME ZONE 'UTC' AS timestamp(6))"),
    "duckdb": Dialect(
        quote='"',
        contains="list_contains({list}, {item})",
        scalar="json_extract_string({json}, {path})",
        is_there="json_extract({json}, {path}) IS NOT NULL",
        last="arg_max_null({value}, ROW({hlc}, {client}))",
    ),
    "spark": Dialect(
        quote="`",
        contains="array_contains({list}, {item})",
        scalar="get_json_object({json}, {path})",
        is_there="get_json_object({json}, {path}) IS NOT NULL",
        last="max_by({value}, struct({hlc}, {client}))",
    ),
    "trino": _TRINO,
}
"""By the name of the engine."""
