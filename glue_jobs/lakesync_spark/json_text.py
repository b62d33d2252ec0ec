"""Canonical JSON text to typed lake columns: one SQL expression for each column type.

Expressions are SQL text, so that transforms and ``MERGE`` share them. None of them fails: a value
that does not fit its type gives NULL, and `UNFIT` tells it from a JSON null. The session must run
in UTC and with ANSI rules, as `lakesync_spark.session` sets it, on every version of Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lakesync.core.column_types import precision_scale

if TYPE_CHECKING:
    from collections.abc import Mapping

UNTYPED: Final = "json"
"""The type of columns that no schema declares: they hold JSON text."""

_SPARK_TYPES: Final[Mapping[str, str]] = {
    "string": "STRING",
    "number": "DOUBLE",
    "boolean": "BOOLEAN",
    "json": "STRING",
    "null": "STRING",
    "integer": "BIGINT",
    "timestamp": "TIMESTAMP",
    "date": "DATE",
    "bytes": "BINARY",
}
# The same forms that the gateway accepts (lakesync.core.column_types): Spark alone takes more.
_DATE: Final = '"[0-9]{4}-[0-9]{2}-[0-9]{2}"'
_TIMESTAMP: Final = (
    '"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}([.][0-9]{1,9})?)?'
    '(Z|[+-][0-9]{2}:[0-9]{2})?"'
)


def spark_type(type_name: str) -> str:
    """Give the SQL type of a column type.

    Raises:
        SchemaMismatch: there is no such type.
    """
    decimal = precision_scale(type_name)
    return f"DECIMAL({decimal[0]},{decimal[1]})" if decimal else _SPARK_TYPES[type_name]


def typed(text: str, type_name: str) -> str:
    """Give the typed value of canonical JSON text; NULL for a JSON null and for what is unfit.

    Args:
        text: an SQL expression of type STRING.
        type_name: one of `lakesync.core.column_types.TYPES`, or ``decimal(p,s)``.
    """
    decimal = precision_scale(type_name)
    if decimal:
        return _decimal(text, *decimal)
    # A quote inside a string stands behind a backslash, which no type's text has: all may go.
    bare = f"replace({text}, '\"', '')"
    expressions: Mapping[str, str] = {
        "string": _string(text),
        "number": f"try_cast({text} AS DOUBLE)",
        "boolean": f"CASE {text} WHEN 'true' THEN true WHEN 'false' THEN false END",
        "json": f"nullif({text}, 'null')",
        "null": "CAST(NULL AS STRING)",
        "integer": f"try_cast({bare} AS BIGINT)",
        "timestamp": _if_like(text, _TIMESTAMP, f"try_cast({bare} AS TIMESTAMP)"),
        "date": _if_like(text, _DATE, f"try_cast({bare} AS DATE)"),
        "bytes": f"CASE WHEN startswith({text}, '\"') THEN try_to_binary({bare}, 'base64') END",
    }
    return expressions[type_name]


def unfit(value: str, text: str) -> str:
    """Tell whether a typed value lost what its text says; both are SQL expressions."""
    return f"({value} IS NULL AND {text} <> 'null')"


def unfit_map(values: Mapping[str, str], texts: Mapping[str, str]) -> str:
    """Give the SQL of a map: by column, the JSON text of each value that did not fit its type.

    Args:
        values: the SQL of each typed value, by column.
        texts: the SQL of its JSON text.
    """
    if not values:
        return "CAST(NULL AS MAP<STRING, STRING>)"
    lost = {name: unfit(value, texts[name]) for name, value in values.items()}
    entries = ", ".join(f"'{name}', if({test}, {texts[name]}, NULL)" for name, test in lost.items())
    kept = f"map_filter(map({entries}), (name, text) -> text IS NOT NULL)"
    # The map is built for the rare row that needs it.
    return f"if({' OR '.join(lost.values())}, {kept}, NULL)"


def _string(text: str) -> str:
    inner = f"substring({text}, 2, char_length({text}) - 2)"
    # Escapes are rare, and a JSON parser is slow: it is asked only where there is one.
    parsed = f"get_json_object(concat('[', {text}, ']'), '$[0]')"
    value = f"CASE WHEN contains({text}, char(92)) THEN {parsed} ELSE {inner} END"
    return f"CASE WHEN startswith({text}, '\"') THEN {value} END"


def _decimal(text: str, precision: int, scale: int) -> str:
    # A cast would round: digits beyond the scale must be zeros.
    form = f'"?-?[0-9]+([.][0-9]{{0,{scale}}}0*)?"?'
    cast = f"try_cast(replace({text}, '\"', '') AS DECIMAL({precision},{scale}))"
    return _if_like(text, form, cast)


def _if_like(text: str, form: str, value: str) -> str:
    return f"CASE WHEN {text} RLIKE '^{form}$' THEN {value} END"
