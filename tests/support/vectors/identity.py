"""Vectors of canonical JSON (RFC 8785) and of the ids of changes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from lakesync.core.delta import VALUE_DEPTH_MAX, Op, make_delta, recanonical
from lakesync.errors import LakeSyncError
from tests.support.vectors.case import (
    CLIENTS,
    NAMES,
    NUMBERS,
    TEXTS,
    Chance,
    Subject,
    base64_of,
    case,
    delta_fields,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.vectors.case import Case

CANONICAL_CASES: Final = 400
ID_CASES: Final = 200
SPELLINGS: Final = (
    b"1.0", b"-0", b"-0.0", b"1E400", b"1e-400", b"10e-1", b"1.50", b"100000000000000000000",
    b"9007199254740993", b"9007199254740992", b"-9007199254740993", b"1e21",
    b"0.000001", b"0.0000001", b"1.7976931348623157e308", b"1.7976931348623159e308", b"4.9E-324",
    b" 1 ", b"[1 , 2]", b'{"b":1,"a":2}', b'{"a":1,"a":1}', b'{"\\u0061":1,"a":2}', b'"\\u00e9"',
    b'"\\ud83d\\ude00"', b'"\\ud83d"', b'"\\/"', b'"\\u007f"', b'"\\u2028"', b'"\\u001F"', b'"\t"',
    b"nul", b"NaN", b"Infinity", b"-Infinity", b"01", b"1.", b".5", b"+1", b"0x10", b"'a'", b"",
    b"[1,]", b'{"a":1,}', b"[", b'"', b"1 2", b"true false", b"\xff", b'"\xc3"', b'"\xed\xa0\x80"',
    b"\xef\xbb\xbf1", b"[" * VALUE_DEPTH_MAX + b"]" * VALUE_DEPTH_MAX,
    b"[" * (VALUE_DEPTH_MAX + 1) + b"]" * (VALUE_DEPTH_MAX + 1),
    '{"\uffee":1,"\U0001f600":2}'.encode(), b'{"__proto__":1,"constructor":2}', b'{"10":1,"9":2}',
)  # fmt: skip
"""JSON in other spellings, and what is no JSON."""


def _canonical_cases() -> Iterator[Case]:
    chance = Chance("canonical")
    inputs = [*SPELLINGS, *(json.dumps(value).encode() for value in (*TEXTS, *NUMBERS))]
    while len(inputs) < CANONICAL_CASES:
        is_ascii, is_spaced = chance.is_lucky(2), chance.is_lucky(4)
        text = json.dumps(chance.value(), ensure_ascii=is_ascii, indent=1 if is_spaced else None)
        inputs.append(text.encode())
    for raw in inputs:
        given = {"json": base64_of(raw)}
        try:
            yield case("I1 I2 I3", given, {"canonical": base64_of(recanonical(raw))})
        except LakeSyncError as error:
            yield case("I3", given, {"error": error.code})


def _id_cases() -> Iterator[Case]:
    for number in range(ID_CASES):
        chance = Chance(f"id {number}")
        op = chance.one_of((Op.INSERT, Op.UPDATE, Op.UPDATE, Op.DELETE))
        names = {name.lower(): name for name in chance.some_of(NAMES, 4)}.values()
        columns = {} if op is Op.DELETE else {name: chance.value() for name in names}
        delta = make_delta(
            op, chance.one_of(("todos", "T", "_t")), chance.text() or "r1", columns,
            client_id=chance.one_of(CLIENTS), hlc=chance.stamp(),
        )  # fmt: skip
        yield case("I4", {"delta": delta_fields(delta)}, {"deltaId": delta.delta_id})


CANONICAL: Final = Subject(
    "A value's canonical bytes: RFC 8785, strictly read; what a double cannot hold is refused.",
    {"json": "bytes that should be JSON"},
    {"canonical": "the canonical bytes", "error": "or the code of the error"},
    _canonical_cases,
)
IDS: Final = Subject(
    "A change's id: SHA-256, in hex, of canonical JSON of clientId, columns, hlc, rowId and table.",
    {"delta": "the change, as JSON on the wire has it"},
    {"deltaId": "its id"},
    _id_cases,
)
