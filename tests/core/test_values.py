"""lakesync.core.delta, against RFC 8785's own examples and what others make of the same values."""

from __future__ import annotations

import enum
import json
import random
import struct
from decimal import Decimal
from operator import itemgetter
from pathlib import Path

import numpy as np
import pytest

from lakesync.core.delta import VALUE_DEPTH_MAX, canonical, parse, recanonical, utf8_bytes
from lakesync.errors import ValidationFailed
from tests.support.node import run_node

# The RFC's appendix B (the bits of a double, and its text) and the examples of its text.
RFC = json.loads((Path(__file__).parents[1] / "golden" / "rfc8785.json").read_text("utf-8"))


def double(bits: str) -> float:
    """Return the double of 64 bits in hex."""
    value: float = struct.unpack(">d", bytes.fromhex(bits))[0]
    return value


@pytest.mark.law("I1")
@pytest.mark.parametrize(("bits", "text"), RFC["numbers"].items())
def test_numbers_are_printed_as_in_rfc_8785(bits: str, text: str) -> None:
    assert canonical(double(bits)) == text.encode()


@pytest.mark.law("I2")
@pytest.mark.parametrize("bits", ["7fffffffffffffff", "7ff0000000000000", "fff0000000000000"])
def test_nan_and_infinity_are_refused(bits: str) -> None:
    with pytest.raises(ValidationFailed, match="NaN and infinity are not JSON"):
        canonical(double(bits))


@pytest.mark.law("I1")
@pytest.mark.parametrize("case", RFC["texts"], ids=itemgetter("name"))
def test_texts_are_canonicalised_as_in_rfc_8785(case: dict[str, str]) -> None:
    assert recanonical(case["input"].encode()) == case["output"].encode()


@pytest.mark.law("I1")
def test_control_characters_are_escaped_as_in_rfc_8785() -> None:
    short = {8: r"\b", 9: r"\t", 10: r"\n", 12: r"\f", 13: r"\r"}
    expected = "".join(short.get(code, f"\\u{code:04x}") for code in range(0x20))

    assert canonical("".join(map(chr, range(0x20)))) == f'"{expected}"'.encode()


@pytest.mark.law("I1")
def test_random_doubles_are_printed_as_javascript_prints_them() -> None:
    rng = random.Random(8785)
    bits = [struct.pack(">Q", rng.getrandbits(64)) for _ in range(4_000)]
    anywhere = [struct.unpack(">d", word)[0] for word in bits]
    near_the_switches = [rng.uniform(1, 10) * 10.0**power for power in range(-9, 24)] * 40
    short = [rng.randrange(10**6) / 10 ** rng.randrange(9) for _ in range(2_000)]
    doubles = [
        value
        for value in (*anywhere, *near_the_switches, *short)
        if value - value == 0  # leaves out NaN and infinity
    ]

    texts = run_node("scalars.mjs", [repr(value).encode().hex() for value in doubles])

    assert [canonical(value).hex() for value in doubles] == texts


@pytest.mark.law("I2")
@pytest.mark.parametrize("value", [0, -1, 2**53 - 1, -(2**53) + 1, 2**53, 2**53 + 2, 10**20])
def test_integer_that_a_double_represents_exactly_is_printed_with_its_digits(value: int) -> None:
    assert canonical(value) == str(value).encode()


@pytest.mark.law("I2")
@pytest.mark.parametrize("value", [2**53 + 1, 2**60, 10**21, 2**70, -(10**400)])
def test_integer_that_a_double_would_change_is_refused(value: int) -> None:
    with pytest.raises(ValidationFailed, match="send it as text"):
        canonical(value)


@pytest.mark.law("I2")
def test_an_integer_too_long_for_python_to_print_is_refused() -> None:
    with pytest.raises(ValidationFailed, match="send it as text"):
        canonical(10**5_000)


class Size(int, enum.Enum):
    """An int whose str() is its name."""

    SMALL = 1


class Colour(str, enum.Enum):  # noqa: UP042 - the older form, whose str() is its name
    """Text whose str() is its name."""

    RED = "red"


@pytest.mark.law("I1")
@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Size.SMALL, b"1"),
        (Colour.RED, b'"red"'),
        (np.float64(1.5), b"1.5"),
        (np.str_("x"), b'"x"'),
        ((1, 2), b"[1,2]"),
        ({Colour.RED: True}, b'{"red":true}'),
    ],
)
def test_value_of_a_subclass_has_the_canonical_bytes_of_its_plain_value(
    value: object, text: bytes
) -> None:
    assert canonical(value) == text


@pytest.mark.law("I3")
@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({1: "x"}, "an object's keys must be text"),
        ({None: "x"}, "an object's keys must be text"),
        (b"bytes", "a bytes is not JSON"),
        (Decimal("1.5"), "a Decimal is not JSON"),
        (np.int64(1), "a int64 is not JSON"),
        ({"x"}, "a set is not JSON"),
        ("\ud800", "half of a surrogate pair"),
        ({"\udfff": 1}, "half of a surrogate pair"),
        (["\ud800"], "half of a surrogate pair"),
    ],
)
def test_value_that_is_not_json_is_refused_with_the_reason(value: object, reason: str) -> None:
    with pytest.raises(ValidationFailed, match=reason):
        canonical(value)


@pytest.mark.parametrize(("text", "size"), [("", 0), ("ab", 2), ("é", 2), ("\U0001f600", 4)])
def test_utf8_bytes_counts_the_bytes_of_a_text(text: str, size: int) -> None:
    assert utf8_bytes(text, "rowId") == size


def test_lone_surrogate_is_refused_with_the_name_of_the_field() -> None:
    with pytest.raises(
        ValidationFailed, match="rowId contains half of a surrogate pair"
    ) as refused:
        utf8_bytes("a\ud800", "rowId")
    assert refused.value.field == "rowId"


def nested(depth: int) -> object:
    """Return null inside ``depth`` lists and objects."""
    value: object = None
    for level in range(depth):
        value = [value] if level % 2 else {"k": value}
    return value


def test_values_nest_up_to_the_limit_and_no_deeper() -> None:
    assert parse(canonical(nested(VALUE_DEPTH_MAX))) == nested(VALUE_DEPTH_MAX)
    with pytest.raises(ValidationFailed, match="may nest 32 levels"):
        canonical(nested(VALUE_DEPTH_MAX + 1))


@pytest.mark.law("I3")
@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "not JSON"),
        (b"nul", "not JSON"),
        (b"[1,]", "not JSON"),
        (b"'x'", "not JSON"),
        (b"1 2", "not JSON"),
        (b"\xef\xbb\xbf1", "not JSON"),
        (b'"\n"', "not JSON"),
        (b'"a', "not JSON"),
        (b"NaN", "NaN is not JSON"),
        (b"-Infinity", "-Infinity is not JSON"),
        (b"1e400", "NaN and infinity are not JSON"),
        (b'{"a":1,"a":1}', "repeats a key"),
        (b'[{"k":{"a":1,"\\u0061":2}}]', "repeats a key"),
        (b'"\\ud800"', "half of a surrogate pair"),
        (b'"\\udc00\\ud800"', "half of a surrogate pair"),
        (b'"\xff"', "not valid UTF-8"),
        (b'"\xc0\xaf"', "not valid UTF-8"),
        (b'"\xed\xa0\x80"', "not valid UTF-8"),
        (b'"\xf4\x90\x80\x80"', "not valid UTF-8"),
        (b'"\xe2\x82"', "not valid UTF-8"),
        (b"9007199254740993", "send it as text"),
        pytest.param(b"1" * 5_000, "too many digits", id="5,000 digits"),
        pytest.param(b"[" * 100_000, "nests too deeply", id="100,000 levels"),
        (b"[" * 40 + b"]" * 40, "may nest 32 levels"),
    ],
)
def test_invalid_json_text_is_refused_with_the_reason(raw: bytes, reason: str) -> None:
    with pytest.raises(ValidationFailed, match=reason):
        recanonical(raw)


@pytest.mark.law("I3")
@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"-0", b"0"),
        (b"0.0", b"0"),
        (b"1.0", b"1"),
        (b"1.50", b"1.5"),
        (b"1e5", b"100000"),
        (b"1E+2", b"100"),
        (b"0.000001", b"0.000001"),
        (b"0.0000001", b"1e-7"),
        (b"-0.00000012", b"-1.2e-7"),
        (b"123456789012345.25", b"123456789012345.25"),
        (b"1234567890123456.5", b"1234567890123456.5"),
        (b"12345678901234567.5", b"12345678901234568"),
        (b"0.12345678901234567", b"0.12345678901234566"),
        (b"9007199254740992.0", b"9007199254740992"),
        (b"1000000000000000000000.0", b"1e+21"),
        (b' "x"\n', b'"x"'),
        (rb'"\u0041\/"', b'"A/"'),
        (rb'"\u001F"', rb'"\u001f"'),
        (rb'"\u007f"', b'"\x7f"'),
        (rb'"\ud83d\ude00"', '"\U0001f600"'.encode()),
    ],
)
def test_non_canonical_json_becomes_canonical(raw: bytes, text: bytes) -> None:
    assert recanonical(raw) == recanonical(text) == text


@pytest.mark.law("I3")
@pytest.mark.parametrize(
    "raw",
    [b"01", b"-01", b"+1", b".5", b"5.", b"0x1", b"1e", b"1_000", b"--1", b"- 1", b"00", b"tRue"]
    + [b'"%c"' % code for code in range(0x20)],
)
def test_text_that_is_almost_json_is_refused(raw: bytes) -> None:
    with pytest.raises(ValidationFailed, match="not JSON"):
        recanonical(raw)


NUMBER_PARTS = [
    b"0", b"1", b"9", b"00", b"0.", b".", b"-", b"e", b"E", b"+", b"10", b"0.00000", b"000000",
    b"12345678", b"123456789012345",
]  # fmt: skip
TEXT_PARTS = [
    b"a", b"~", b" ", b"\\", b'"', b'\\"', b"\\\\", b"\\/", b"/", b"\\n", b"\\u0041", b"\\u00e9",
    b"\\ud83d\\ude00", b"\\ud83d", b"\\uD83D", *(bytes([code]) for code in range(0x20)), b"\x7f",
    b"\x80", "é".encode(), "\u20ac".encode(), "\U0001f600".encode(),
    b"\xc0\xaf", b"\xc1\xbf", b"\xe0\x80\x80", b"\xed\xa0\x80", b"\xed\xbf\xbf",
    b"\xf0\x80\x80\x80", b"\xf4\x90\x80\x80", b"\xf8", b"\xfe", b"\xff",
]  # fmt: skip


def near_misses(rng: random.Random, count: int) -> list[bytes]:
    """Return scalars that are canonical, nearly canonical, or nearly JSON."""
    made = []
    for _ in range(count):
        if rng.random() < 0.5:
            made.append(b"".join(rng.choices(NUMBER_PARTS, k=rng.randrange(1, 6))))
        else:
            made.append(b'"' + b"".join(rng.choices(TEXT_PARTS, k=rng.randrange(4))) + b'"')
    return made


def ours(raw: bytes) -> str | None:
    """Return our canonical bytes in hex, or None where the input is refused."""
    try:
        return recanonical(raw).hex()
    except ValidationFailed:
        return None


def refused_by_design(raw: bytes) -> bool:
    """Return whether JavaScript takes this and we do not: it would round, or cannot be UTF-8."""
    value = json.loads(raw)
    if isinstance(value, int):
        return abs(value) > 2**53
    if isinstance(value, float):
        return value - value != 0
    return any("\ud800" <= letter <= "\udfff" for letter in value)


@pytest.mark.law("I3")
def test_mutated_json_gets_the_bytes_that_javascript_gives_or_is_refused() -> None:
    cases = near_misses(random.Random(7493), 12_000)
    theirs = run_node("scalars.mjs", [raw.hex() for raw in cases])

    differ = [raw for raw, text in zip(cases, theirs, strict=True) if ours(raw) != text]

    assert [raw for raw in differ if ours(raw) is not None or not refused_by_design(raw)] == []
    assert sum(text is not None for text in theirs) > 1_000
