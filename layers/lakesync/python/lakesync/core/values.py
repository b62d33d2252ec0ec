"""Column values and their canonical bytes (RFC 8785, the JSON Canonicalization Scheme).

A column value is JSON: text, number, boolean, null, object or array. Inside LakeSync it always
travels as its *canonical bytes*. So equality is equality of bytes, a delta's identity never depends
on how a language prints numbers, and no value is decoded and encoded again on its way.

Numbers are IEEE 754 doubles, as in JSON's own interoperable subset (RFC 7493). An integer that a
double cannot carry digit for digit is refused, not rounded: send it as text.
Laws I1-I3: ``docs/spec/identity.md``.
"""

from __future__ import annotations

import json
import re
from json.encoder import encode_basestring
from typing import Any, Final, NoReturn, TypeAlias

from lakesync.errors import ValidationFailed

CanonicalJson: TypeAlias = bytes
"""UTF-8 bytes of one JSON value in RFC 8785 form."""

VALUE_DEPTH_MAX: Final = 32
"""Nesting of objects and arrays in one value."""
_EXACT_INT_MAX: Final = (1 << 53) - 1
_PLAIN_INT_BITS_MAX: Final = 70
"""From 1e21 on, just below 2^70, a number is written with an exponent."""
NULL: Final = b"null"

# Forms that are already canonical, which covers nearly all real traffic: text without escapes,
# small integers, plain decimals of at most 15 digits (always exact in a double), words.
_PLAIN = re.compile(
    rb'"[ !#-\[\]-\x7e\x80-\xff]*"'
    rb"|0|-?[1-9][0-9]{0,14}"
    rb"|-?[1-9][0-9]{0,7}\.[0-9]{0,6}[1-9]"
    rb"|-?0\.(?!000000)[0-9]{0,13}[1-9]"
    rb"|true|false|null"
)
_is_plain = _PLAIN.fullmatch


def canonical(value: object) -> CanonicalJson:
    """Return the canonical bytes of a Python value; equal values give equal bytes.

    Raises:
        ValidationFailed: not JSON, not exact as a double, or nested too deeply.
    """
    try:
        # Most values are text.
        return (encode_basestring(value) if value.__class__ is str else _text(value, 0)).encode()
    except UnicodeEncodeError as exc:
        raise ValidationFailed(
            "text holds half of a surrogate pair; send whole characters"
        ) from exc


def utf8_bytes(text: str, field: str) -> int:
    """Return the size of text in UTF-8.

    Raises:
        ValidationFailed: it contains half of a surrogate pair, which UTF-8 cannot express.
    """
    try:
        return len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError as exc:
        raise ValidationFailed(f"{field} contains half of a surrogate pair", field=field) from exc


def recanonical(raw: bytes) -> CanonicalJson:
    """Check JSON text from outside and give its canonical bytes; canonical input is unchanged.

    Raises:
        ValidationFailed: not valid UTF-8, not JSON, duplicate keys, or as `canonical`.
    """
    if _is_plain(raw) is None:
        return canonical(parse(raw))
    if not raw.isascii():
        _decode(raw)
    return raw


def parse(raw: bytes) -> Any:
    """Return the Python value of JSON text; the inverse of `canonical`.

    Raises:
        ValidationFailed: not valid UTF-8, not JSON, or an object that repeats a key.
    """
    try:
        return _DECODER.decode(_decode(raw))
    except ValidationFailed:
        raise
    except json.JSONDecodeError as exc:
        raise ValidationFailed(f"not JSON: {exc}") from exc
    except RecursionError as exc:
        raise ValidationFailed("not JSON that can be read: it nests too deeply") from exc
    except ValueError as exc:  # Python's limit on the digits of an integer
        raise ValidationFailed("not JSON that can be read: a number has too many digits") from exc


def text_of(value: CanonicalJson) -> str:
    """Return the text of canonical bytes that begin with a quote, as `parse` does."""
    return value[1:-1].decode() if b"\\" not in value else str(parse(value))


def _decode(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as exc:
        raise ValidationFailed("text is not valid UTF-8") from exc


def _no_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    unique = dict(pairs)
    if len(unique) != len(pairs):
        raise ValidationFailed("an object repeats a key; each key may occur once")
    return unique


def _no_constant(name: str) -> NoReturn:
    raise ValidationFailed(f"{name} is not JSON; send null or text")


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_no_duplicates, parse_constant=_no_constant)


def _text(value: object, depth: int) -> str:
    if isinstance(value, str):
        return encode_basestring(value)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return _integer(value)
    if isinstance(value, float):
        return _number(value)
    if depth >= VALUE_DEPTH_MAX:
        raise ValidationFailed(f"a value may nest {VALUE_DEPTH_MAX} levels; this one nests more")
    if isinstance(value, list | tuple):
        return f"[{','.join(_text(item, depth + 1) for item in value)}]"
    if isinstance(value, dict):
        return _object(value, depth)
    raise ValidationFailed(f"a {type(value).__name__} is not JSON; convert it first")


def _object(value: dict[Any, object], depth: int) -> str:
    if not all(isinstance(key, str) for key in value):
        raise ValidationFailed("an object's keys must be text")
    # RFC 8785 § 3.2.3: keys sort by their UTF-16 code units, not by code point.
    keys = sorted(value, key=lambda key: key.encode("utf-16-be"))
    members = (f"{encode_basestring(key)}:{_text(value[key], depth + 1)}" for key in keys)
    return f"{{{','.join(members)}}}"


def _integer(value: int) -> str:
    digits_of = int.__repr__  # a subclass, such as an enum, may have a repr of its own
    if -_EXACT_INT_MAX <= value <= _EXACT_INT_MAX:
        return digits_of(value)
    if value.bit_length() <= _PLAIN_INT_BITS_MAX:
        digits = digits_of(value)
        if _number(float(value)) == digits:
            return digits
    raise ValidationFailed("an integer beyond 2^53 is not exact as a JSON number; send it as text")


def _number(value: float) -> str:
    """Print a double as ECMAScript does (ECMA-262 § Number::toString), as RFC 8785 requires."""
    if value == 0:
        return "0"
    if value - value != 0:
        raise ValidationFailed("NaN and infinity are not JSON; send null or text")
    # repr gives the same shortest round-trip digits. Only their arrangement can differ, and not for
    # numbers of everyday size. A subclass, such as numpy's float64, may have a repr of its own.
    printed = float.__repr__(value)
    if "e" not in printed:
        return printed.removesuffix(".0")
    mantissa, _, exponent = printed.lstrip("-").partition("e")
    return ("-" if value < 0 else "") + _arrange(mantissa.replace(".", ""), int(exponent) + 1)


def _arrange(digits: str, point: int) -> str:
    """Place the decimal point before ``digits[point]``; notation switches at 1e21 and 1e-7."""
    count = len(digits)
    if count <= point <= 21:  # noqa: PLR2004 - the standard's own bound
        return digits + "0" * (point - count)
    if -6 < point <= 0:  # noqa: PLR2004 - the standard's own bound
        return f"0.{'0' * -point}{digits}"
    power = f"e{'+' if point > 0 else '-'}{abs(point - 1)}"
    return f"{digits[0]}.{digits[1:]}{power}" if count > 1 else digits + power
