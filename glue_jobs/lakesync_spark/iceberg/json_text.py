"""Canonical JSON text to typed lake columns: one SQL expression for each column type.

Expressions are SQL text, so that transforms and ``MERGE`` share them. No expression fails: a value
that does not fit its type (`lakesync.core.column_types.fits`) gives NULL. Each typed value
represents one text; any other text is stored beside it, by `kept_texts`. The session must run in
UTC and with ANSI rules, as `lakesync_spark.common.session` sets it, on every version of Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lakesync.core.column_types import precision_scale
from lakesync_spark.iceberg.typed_text import text_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lakesync.materialise.lake_schema import LakeColumn

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
# The forms that the gateway accepts (lakesync.core.column_types): Spark itself accepts more.
_INTEGER: Final = '"(0|-?[1-9][0-9]{0,18})"'
_YEAR: Final = "(?!0000)[0-9]{4}"
_DATE: Final = f'"{_YEAR}-[0-9]{{2}}-[0-9]{{2}}"'
_LOCAL: Final = (
    f"{_YEAR}-[0-9]{{2}}-[0-9]{{2}}[T ][0-9]{{2}}:[0-9]{{2}}(:[0-9]{{2}}([.][0-9]{{1,9}})?)?"
)
_UTC: Final = f'"{_LOCAL}Z?"'
_ELSEWHERE: Final = f'"{_LOCAL}[+-]([01][0-9]|2[0-3]):[0-5][0-9]"'
_BASE64: Final = '"[A-Za-z0-9+/]*={0,2}"'

# The text that a typed value represents.
_INSTANT: Final = '"[-0-9]{10}T[0-9:]{8}([.](?!000Z)[0-9]{3}|[.][0-9]{3}(?!000)[0-9]{3})?Z"'
"""An instant as Java prints it: with 0, 3 or 6 digits of fraction, as few as possible."""
_WHOLE_SECONDS: Final = len('"2013-01-01T05:00:00Z"')
_STRAY_BITS: Final = '([^AQgw]==|[^AEIMQUYcgkosw048=]=)"'
"""How base64 ends that has bits behind its last byte."""


def spark_type(type_name: str) -> str:
    """Return the SQL type of a column type.

    Raises:
        SchemaMismatch: there is no such type.
    """
    decimal = precision_scale(type_name)
    return f"DECIMAL({decimal[0]},{decimal[1]})" if decimal else _SPARK_TYPES[type_name]


def definition(column: LakeColumn, name: str = "") -> str:
    """Return a column as DDL declares it, under its own name or another."""
    return f"`{name or column.name}` {spark_type(column.type)} COMMENT '{column.declared}'"


def typed(text: str, type_name: str) -> str:
    """Return the typed value of canonical JSON text; NULL for a JSON null and for unfit text.

    Args:
        text: an SQL expression of type STRING.
        type_name: one of `lakesync.core.column_types.TYPES`, or ``decimal(p,s)``.
    """
    decimal = precision_scale(type_name)
    if decimal:
        return _decimal(text, *decimal)
    # A quote inside a string follows a backslash, which no type's text has: all quotes may go.
    bare = f"replace({text}, '\"', '')"
    expressions: Mapping[str, str] = {
        "string": _string(text),
        "number": f"try_cast({text} AS DOUBLE)",
        "boolean": f"CASE {text} WHEN 'true' THEN true WHEN 'false' THEN false END",
        "json": f"nullif({text}, 'null')",
        "null": "CAST(NULL AS STRING)",
        "integer": _integer(text, f"try_cast({bare} AS BIGINT)"),
        "timestamp": _timestamp(text, bare),
        "date": _if_like(text, _DATE, f"try_cast({bare} AS DATE)"),
        "bytes": _if_like(text, _BASE64, _bytes(text, bare)),
    }
    return expressions[type_name]


def kept_texts(
    columns: Iterable[LakeColumn], values: Mapping[str, str], texts: Mapping[str, str]
) -> str:
    """Return the SQL of a map: by column, each JSON text that its typed value cannot give back.

    Args:
        values: the SQL of each typed value, by column.
    """
    lost = {c.name: is_lost(c.type, values[c.name], texts[c.name]) for c in columns}
    if not lost:
        return "CAST(NULL AS MAP<STRING, STRING>)"
    entries = ", ".join(f"'{name}', if({test}, {texts[name]}, NULL)" for name, test in lost.items())
    kept = f"map_filter(map({entries}), (name, text) -> text IS NOT NULL)"
    # The map is built only for rows that need it.
    return f"if({' OR '.join(lost.values())}, {kept}, NULL)"


def kept_text(type_name: str, value: str, text: str) -> str:
    """Return the SQL of a text of the state table that its value cannot give, or NULL.

    A JSON null is such a text: NULL alone is a column that was never written.
    """
    return f"if({text} = 'null' OR {is_lost(type_name, value, text)}, {text}, NULL)"


def is_lost(type_name: str, value: str, text: str) -> str:
    """Get the SQL condition that a typed value, an SQL expression too, loses some of its text."""
    exact = _exact(type_name, value, text)
    unlike = f"{value} IS NULL" + (f" OR NOT ({exact})" if exact else "")
    return f"({text} <> 'null' AND ({unlike}))"


def _exact(type_name: str, value: str, text: str) -> str:
    """Return whether a text is the one that its value represents; empty if it always is.

    Slow checks run only if a quick one is not decisive. The result depends only on the value and
    the
    scale: a decimal that gets more digits keeps its text.
    """
    if type_name in {"boolean", "json", "null", "date"}:
        return ""
    if type_name == "timestamp":
        # Nearly all are whole seconds, and need no check of each character.
        whole = f"substr({text}, 12, 1) = 'T' AND endswith({text}, 'Z\"')"
        return f"if(char_length({text}) = {_WHOLE_SECONDS}, {whole}, {text} RLIKE '^{_INSTANT}$')"
    if type_name == "bytes":
        return f"NOT {text} RLIKE '{_STRAY_BITS}$'"
    exact = f"{text} <=> {text_of(value, type_name)}"
    return f"NOT contains({text}, char(92)) OR {exact}" if type_name == "string" else exact


def _string(text: str) -> str:
    inner = f"substring({text}, 2, char_length({text}) - 2)"
    # Escapes are rare, and a JSON parser is slow: it runs only if there is one.
    parsed = f"get_json_object(concat('[', {text}, ']'), '$[0]')"
    value = f"CASE WHEN contains({text}, char(92)) THEN {parsed} ELSE {inner} END"
    return f"CASE WHEN startswith({text}, '\"') THEN {value} END"


def _integer(text: str, cast: str) -> str:
    # Canonical numbers have no blanks or signs that only a cast accepts; text may have them.
    return f"if(startswith({text}, '\"') AND NOT {text} RLIKE '^{_INTEGER}$', NULL, {cast})"


def _decimal(text: str, precision: int, scale: int) -> str:
    # A cast would round: digits beyond the scale must be zeros.
    form = f'"?-?[0-9]+([.](?=[0-9])[0-9]{{0,{scale}}}0*)?"?'
    cast = f"try_cast(replace({text}, '\"', '') AS DECIMAL({precision},{scale}))"
    return _if_like(text, form, cast)


def _timestamp(text: str, bare: str) -> str:
    # Spark's own offsets end at 18 hours, and are allowed only after seconds.
    utc = f"try_cast(replace({bare}, 'Z', '') AS TIMESTAMP)"
    local = f"try_cast(left({bare}, char_length({bare}) - 6) AS TIMESTAMP)"
    minutes = f"try_cast(substr({bare}, -5, 2) AS INT) * 60 + try_cast(right({bare}, 2) AS INT)"
    sign = f"if(substr({bare}, -6, 1) = '-', 1, -1)"
    shifted = f"timestampadd(MINUTE, {sign} * ({minutes}), {local})"
    in_range = f"if(year({shifted}) BETWEEN 1 AND 9999, {shifted}, NULL)"
    return (
        f"CASE WHEN {text} RLIKE '^{_UTC}$' THEN {utc}"
        f" WHEN {text} RLIKE '^{_ELSEWHERE}$' THEN {in_range} END"
    )


def _bytes(text: str, bare: str) -> str:
    # Whole groups of four: Spark itself does not require padding.
    return f"if(char_length({text}) % 4 = 2, try_to_binary({bare}, 'base64'), NULL)"


def _if_like(text: str, form: str, value: str) -> str:
    return f"CASE WHEN {text} RLIKE '^{form}$' THEN {value} END"
