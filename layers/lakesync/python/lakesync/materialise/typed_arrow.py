"""Columns of canonical JSON text to typed columns, whole columns at a time.

Texts that are obviously equal to the printed form of their value, nearly all, are cast by Arrow.
Every other distinct text is examined once by `lakesync.adapters.lake.typed_text`, which decides. If
a cast refuses one text of a column, it decides on all of them.
Laws L2, L3: ``docs/spec/lake.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lakesync.adapters.lake.typed_text import value_of
from lakesync.core.column_types import precision_scale
from lakesync.core.values import NULL
from lakesync.materialise.state_rows import kept_in_view

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pyarrow as pa

# By type, the texts that are the only text of their value, as canonical JSON writes them.
_DAY: Final = "(000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})-[0-9]{2}-[0-9]{2}"
_PART: Final = "([0-9]{2}[1-9]|[0-9][1-9]0|[1-9]00)"
"""Three digits that are not all zeros."""
_WHOLE: Final = "(0|-?[1-9][0-9]{0,14})"
_PLAIN: Final[Mapping[str, str]] = {
    "boolean": "^(true|false)$",
    "integer": f"^{_WHOLE}$",
    # 15 characters have no more digits than a double carries; a small fraction has an exponent.
    "number": f"^({_WHOLE}|-?(0|[1-9][0-9]{{0,6}})[.][0-9]{{0,5}}[1-9])$",
    "date": f'^"{_DAY}"$',
    "timestamp": f'^"{_DAY}T[0-9]{{2}}:[0-9]{{2}}:[0-9]{{2}}([.]([0-9]{{3}})?{_PART})?Z"$',
}


class TypedColumn(NamedTuple):
    """The result for a column of texts."""

    values: pa.Array
    kept: pa.Array
    """The texts that the values do not reproduce; NULL where they do, and for a JSON null."""


def arrow_type(type_name: str) -> pa.DataType:
    """Return the type of a column's values in files."""
    import pyarrow as pa  # noqa: PLC0415 - only who types columns needs it

    decimal = precision_scale(type_name)
    if decimal:
        return pa.decimal128(*decimal)
    types: Mapping[str, pa.DataType] = {
        "number": pa.float64(),
        "boolean": pa.bool_(),
        "integer": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "date": pa.date32(),
        "bytes": pa.binary(),
    }
    return types.get(type_name, pa.string())


def typed_column(texts: pa.Array, type_name: str) -> TypedColumn:
    """Return the typed values of a column of canonical JSON texts; NULL for what is unfit.

    Args:
        texts: NULL where a row does not carry the column.
        type_name: one of `lakesync.core.column_types.TYPES`, or ``decimal(p,s)``.
    """
    import pyarrow as pa  # noqa: PLC0415 - as above
    import pyarrow.compute as pc  # noqa: PLC0415

    kind = arrow_type(type_name)
    none = pa.scalar(None, pa.string())
    if texts.null_count == len(texts):
        return TypedColumn(pa.nulls(len(texts), kind), texts)
    plain = _plain(texts, type_name)
    try:
        values = _cast(pc.if_else(plain, texts, none), type_name, kind)
    except pa.ArrowInvalid:  # one of them is no valid value, such as 30 February
        plain, values = pa.scalar(False), pa.nulls(len(texts), kind)
    rest = pc.if_else(plain, none, texts)
    if rest.null_count == len(texts):
        return TypedColumn(values, rest)
    looked_at = rest.dictionary_encode()
    by_itself = _each(looked_at.dictionary, type_name, kind)
    others, kept = (column.take(looked_at.indices) for column in by_itself)
    return TypedColumn(pc.coalesce(values, others), kept)


def _plain(texts: pa.Array, type_name: str) -> pa.Array:
    """Tell for each text whether it obviously is the printed form of its value."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415

    if type_name == "json":
        return pc.not_equal(texts, "null")
    if type_name == "string":
        # Control characters, and quotes inside, are escaped by a backslash.
        escapes = pc.match_substring(texts, "\\")
        return pc.and_not(pc.starts_with(texts, '"'), escapes)
    pattern = _PLAIN.get(type_name) or _plain_decimal(type_name)
    if pattern is None:
        return pa.scalar(False)
    return pc.match_substring_regex(texts, pattern)


def _plain_decimal(type_name: str) -> str | None:
    """Return the pattern of a decimal's plain texts: numbers that a double carries exactly."""
    precision, scale = precision_scale(type_name) or (0, 0)
    digits = min(precision, 15) - scale
    if digits < 1:
        return None
    whole = f"(0|-?[1-9][0-9]{{0,{digits - 1}}})"
    if not scale:
        return f"^{whole}$"
    fraction = f"-?(0|[1-9][0-9]{{0,{digits - 1}}})[.][0-9]{{0,{min(scale, 6) - 1}}}[1-9]"
    return f"^({whole}|{fraction})$"


def _cast(texts: pa.Array, type_name: str, kind: pa.DataType) -> pa.Array:
    """Return the values of plain texts; ``ArrowInvalid`` if one has none."""
    import pyarrow.compute as pc  # noqa: PLC0415

    if type_name in {"string", "date", "timestamp"}:
        texts = pc.utf8_slice_codeunits(texts, 1, -1)
    return texts if texts.type == kind else texts.cast(kind)


def _each(texts: pa.Array, type_name: str, kind: pa.DataType) -> tuple[pa.Array, pa.Array]:
    """Return the value of each text, and the text itself where the value does not reproduce it."""
    import pyarrow as pa  # noqa: PLC0415

    raw = [text.encode() for text in texts.to_pylist()]
    kept: Callable[[bytes], Any] = lambda text: (  # noqa: E731
        None if text == NULL else kept_in_view(type_name, text)
    )
    return (
        pa.array([value_of(type_name, text) for text in raw], kind),
        pa.array([kept(text) for text in raw], pa.string()),
    )
