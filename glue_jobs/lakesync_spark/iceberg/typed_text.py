"""Typed lake columns to canonical JSON text: the inverse of `lakesync_spark.iceberg.json_text`.

For each type one SQL expression gives the text that a value represents. Any other text is stored
beside the value, in `_texts`. So nothing depends on how a version of Java prints a number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lakesync.core.column_types import precision_scale

if TYPE_CHECKING:
    from collections.abc import Mapping

EXACT_INT_MAX: Final = (1 << 53) - 1
EXACT_DIGITS: Final = 15
"""Decimal digits that a double carries, whatever they are."""
_QUOTE: Final = "char(34)"
_BACKSLASH: Final = "char(92)"
_ESCAPES: Final = {8: "b", 9: "t", 10: "n", 12: "f", 13: "r", 34: '"'}
"""Characters that JSON writes with a letter; texts with other control characters are kept."""


def text_of(value: str, type_name: str) -> str:
    """Return the JSON text that a typed value stands for; NULL for NULL, and where it has none.

    Args:
        type_name: one of `lakesync.core.column_types.TYPES`, or ``decimal(p,s)``.
    """
    decimal = precision_scale(type_name)
    if decimal:
        return _decimal(value, decimal[1])
    as_text = f"CAST({value} AS STRING)"
    expressions: Mapping[str, str] = {
        "string": _quoted(_escaped(value)),
        "number": _number(value),
        "boolean": as_text,
        "json": value,
        "null": "CAST(NULL AS STRING)",
        "integer": _integer(value, as_text),
        "timestamp": _timestamp(as_text),
        "date": _quoted(as_text),
        # Some versions of Spark insert line breaks into base64.
        "bytes": _quoted(f"translate(base64({value}), concat(char(13), char(10)), '')"),
    }
    return expressions[type_name]


def _quoted(inner: str) -> str:
    return f"concat({_QUOTE}, {inner}, {_QUOTE})"


def _escaped(value: str) -> str:
    special = [f"contains({value}, {_BACKSLASH})"]
    escaped = f"replace({value}, {_BACKSLASH}, concat({_BACKSLASH}, {_BACKSLASH}))"
    for code, letter in _ESCAPES.items():
        special.append(f"contains({value}, char({code}))")
        escaped = f"replace({escaped}, char({code}), concat({_BACKSLASH}, '{letter}'))"
    return f"if({' OR '.join(special)}, {escaped}, {value})"


def _integer(value: str, as_text: str) -> str:
    is_exact = f"{value} BETWEEN -{EXACT_INT_MAX} AND {EXACT_INT_MAX}"
    return f"if({is_exact}, {as_text}, {_quoted(as_text)})"


def _number(value: str) -> str:
    whole = f"try_cast({value} AS BIGINT)"
    digits = f"CAST({value} AS STRING)"
    # Java writes exponents for numbers that JSON still writes without.
    plain = f"trim(TRAILING '0' FROM CAST(try_cast({digits} AS DECIMAL(38,22)) AS STRING))"
    fraction = f"if(contains({digits}, 'E'), {plain}, {digits})"
    return (
        f"CASE WHEN abs({value}) < 1E{EXACT_DIGITS}D"
        f" THEN if({value} = {whole}, CAST({whole} AS STRING), {fraction}) END"
    )


def _decimal(value: str, scale: int) -> str:
    digits = f"CAST({value} AS STRING)"
    bare = f"trim(TRAILING '.' FROM trim(TRAILING '0' FROM {digits}))" if scale else digits
    is_small = f"abs(CAST({value} AS DOUBLE)) < 1E{EXACT_DIGITS - scale}D"
    return f"if({is_small}, {bare}, {_quoted(digits)})"


def _timestamp(as_text: str) -> str:
    # Spark omits trailing zeros; JSON has a fraction of 3 or 6 digits, or none.
    size = f"char_length({as_text})"
    filled = f"if({size} = 19, {as_text}, rpad({as_text}, if({size} <= 23, 23, 26), '0'))"
    return f"concat({_QUOTE}, replace({filled}, ' ', 'T'), 'Z', {_QUOTE})"
