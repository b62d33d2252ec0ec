"""lakesync.wire.jsonish: what existing clients send, and the name of each fault."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lakesync.core.clock import STAMP_MAX
from lakesync.core.delta import Delta, removal
from lakesync.core.messages import PullPage, Push, Resync
from lakesync.errors import BY_CODE, DeltaTooLarge, ValidationFailed
from lakesync.wire import jsonish, proto
from lakesync.wire.incoming import PUSH_DELTAS_MAX
from lakesync.wire.records import encode_records
from tests.support.builders import insert, push, update
from tests.support.strategies import deltas, identifiers, ids, stamps

DELTA = {
    "op": "INSERT",
    "table": "todos",
    "rowId": "r1",
    "clientId": "c1",
    "columns": [{"column": "title", "value": "Buy milk"}],
    "hlc": "112589990684262400",
}
PUSH = {"clientId": "c1", "deltas": [DELTA], "lastSeenHlc": "0"}


def decoded(**fields: Any) -> Push:
    """Decode a valid push with other fields."""
    return jsonish.decode_push(json.dumps(PUSH | fields).encode())


def test_push_of_an_existing_client_is_decoded() -> None:
    expected = insert(title="Buy milk", at=112589990684262400)

    assert decoded() == replace(push(expected), own_cursor=False)


@given(st.lists(deltas() | st.builds(removal, identifiers, ids, stamps), min_size=1))
@example([removal("t", "\x01" * 512, 1)])
@example([insert("r", at=1, table="t", a=1, b=2, c=3, d=4, e=5, f=6, g=7, h=8, i=9, j=10)])
def test_page_in_json_grows_by_at_most_the_declared_factor(sent: list[Delta]) -> None:
    run = encode_records(sent)
    empty = len(jsonish.encode_page(PullPage((), 0, 1, has_more=False)))

    written = len(jsonish.encode_page(PullPage((run,), len(sent), 1, has_more=False)))
    assert written - empty <= jsonish.JSON_GROWTH_TIMES_MAX * len(run)


def test_exact_json_number_is_accepted_as_a_stamp() -> None:
    assert decoded(lastSeenHlc=2**53 - 1).last_seen_hlc == 2**53 - 1


def test_unknown_fields_are_ignored() -> None:
    assert decoded(colour="red", deltas=[DELTA | {"colour": "red"}]) == decoded()


@pytest.mark.law("W2")
@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"clientId": None}, "clientId"),
        ({"clientId": ""}, "clientId"),
        ({"clientId": "c" * 129}, "clientId"),
        ({"clientId": "\ud800"}, "clientId"),
        ({"deltas": None}, "deltas"),
        ({"deltas": {}}, "deltas"),
        ({"deltas": [None] * (PUSH_DELTAS_MAX + 1)}, "deltas"),
        ({"lastSeenHlc": None}, "lastSeenHlc"),
        ({"lastSeenHlc": ""}, "lastSeenHlc"),
        ({"lastSeenHlc": "-1"}, "lastSeenHlc"),
        ({"lastSeenHlc": "+1"}, "lastSeenHlc"),
        ({"lastSeenHlc": "1e3"}, "lastSeenHlc"),
        ({"lastSeenHlc": "\u0661"}, "lastSeenHlc"),
        ({"lastSeenHlc": 1.0}, "lastSeenHlc"),
        ({"lastSeenHlc": True}, "lastSeenHlc"),
        ({"lastSeenHlc": 2**53}, "lastSeenHlc"),
        ({"lastSeenHlc": str(STAMP_MAX + 1)}, "lastSeenHlc"),
        ({"lastSeenHlc": "9" * 5_000}, "lastSeenHlc"),
        ({"atomic": 1}, "atomic"),
        ({"atomic": None}, "atomic"),
    ],
)
def test_invalid_field_of_a_push_is_refused_by_name(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationFailed) as refused:
        decoded(**fields)

    assert refused.value.field == field


@pytest.mark.law("W2")
@pytest.mark.parametrize("missing", ["clientId", "deltas"])
def test_missing_field_of_a_push_is_refused_by_name(missing: str) -> None:
    body = {name: value for name, value in PUSH.items() if name != missing}
    with pytest.raises(ValidationFailed) as refused:
        jsonish.decode_push(json.dumps(body).encode())

    assert refused.value.field == missing


@pytest.mark.law("W2")
@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "not JSON"),
        (b"[]", "the body must be a JSON object"),
        (b'"push"', "the body must be a JSON object"),
        (b"{", "not JSON"),
        (b'{"clientId":"c1","clientId":"c2"}', "an object repeats a key"),
        (b'{"clientId":"\xff"}', "not valid UTF-8"),
        (b'{"deltas":NaN}', "NaN is not JSON"),
        (b"[" * 100_000, "nests too deeply"),
        (b'{"lastSeenHlc":' + b"9" * 5_000 + b"}", "too many digits"),
    ],
    ids=range(9),
)
def test_body_that_is_no_json_object_is_refused(body: bytes, reason: str) -> None:
    with pytest.raises(ValidationFailed, match=reason):
        jsonish.decode_push(body)


LONG_VALUE = [{"column": "a", "value": "x" * (256 * 1024)}]
TWICE = [{"column": "a", "value": 1}, {"column": "a", "value": 2}]


@pytest.mark.law("W2")
@pytest.mark.parametrize(
    ("fields", "code", "field"),
    [
        ({"op": None}, "VALIDATION_ERROR", "op"),
        ({"op": "insert"}, "VALIDATION_ERROR", "op"),
        ({"op": 1}, "VALIDATION_ERROR", "op"),
        ({"table": None}, "VALIDATION_ERROR", "table"),
        ({"table": "a b"}, "VALIDATION_ERROR", "table"),
        ({"rowId": 7}, "VALIDATION_ERROR", "rowId"),
        ({"rowId": ""}, "VALIDATION_ERROR", "rowId"),
        ({"clientId": []}, "VALIDATION_ERROR", "clientId"),
        ({"clientId": "\ud800"}, "VALIDATION_ERROR", "clientId"),
        ({"hlc": None}, "VALIDATION_ERROR", "hlc"),
        ({"hlc": "0"}, "VALIDATION_ERROR", "hlc"),
        ({"hlc": "0x1"}, "VALIDATION_ERROR", "hlc"),
        ({"hlc": 2**60}, "VALIDATION_ERROR", "hlc"),
        ({"hlc": str(2**63)}, "VALIDATION_ERROR", "hlc"),
        ({"columns": None}, "VALIDATION_ERROR", "columns"),
        ({"columns": {"title": 1}}, "VALIDATION_ERROR", "columns"),
        ({"columns": ["title"]}, "VALIDATION_ERROR", "columns"),
        ({"columns": [{"value": 1}]}, "VALIDATION_ERROR", "column"),
        ({"columns": [{"column": "a"}]}, "VALIDATION_ERROR", "columns.a"),
        ({"columns": [{"column": "a b", "value": 1}]}, "VALIDATION_ERROR", "columns.column"),
        ({"columns": [{"column": "a", "value": 2**60}]}, "VALIDATION_ERROR", "columns.a"),
        ({"columns": [{"column": "a", "value": "\ud800"}]}, "VALIDATION_ERROR", "columns.a"),
        ({"columns": TWICE}, "VALIDATION_ERROR", "columns"),
        ({"columns": LONG_VALUE}, "DELTA_TOO_LARGE", "columns"),
        ({"op": "DELETE"}, "VALIDATION_ERROR", "columns"),
        ({"deltaId": "00" * 32}, "VALIDATION_ERROR", "deltaId"),
        ({"deltaId": 5}, "VALIDATION_ERROR", "deltaId"),
    ],
)
def test_invalid_delta_is_refused_by_its_field_and_its_neighbours_are_read(
    fields: dict[str, Any], code: str, field: str
) -> None:
    read = decoded(deltas=[DELTA, DELTA | fields, DELTA])
    (refused,) = read.unreadable

    assert [index for index, _ in read.deltas] == [0, 2]
    assert (refused.index, refused.error.code) == (1, code)
    assert refused.error.field == f"deltas[1].{field}"
    assert type(refused.error) in {BY_CODE[code], DeltaTooLarge}


@pytest.mark.law("W2")
def test_delta_that_is_no_object_is_refused_by_its_place() -> None:
    (refused,) = decoded(deltas=[DELTA, 7]).unreadable

    assert refused.error.field == "deltas[1]"


def test_refused_delta_keeps_the_id_that_its_client_gave() -> None:
    refused = decoded(deltas=[{"deltaId": "abc"}, {"deltaId": "x" * 500}, {"deltaId": 5}, {}])

    assert [fault.delta_id for fault in refused.unreadable] == ["abc", "x" * 64, "", ""]


def test_correct_delta_id_is_accepted() -> None:
    right = insert(title="Buy milk", at=112589990684262400).delta_id

    assert decoded(deltas=[DELTA | {"deltaId": right}]) == decoded()


@pytest.mark.law("W2")
@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"deltas": None}, "deltas"),
        ({"deltas": 5}, "deltas"),
        ({"deltas": "abc"}, "deltas"),
        ({"deltas": [{}]}, "deltas[0].op"),
        ({"deltas": [DELTA, DELTA | {"hlc": -1}]}, "deltas[1].hlc"),
        ({"serverHlc": None}, "serverHlc"),
        ({"hasMore": None}, "hasMore"),
        ({"hasMore": "false"}, "hasMore"),
        ({"epoch": 7}, "epoch"),
        ({"resync": {"tables": [], "omitted": {"todos": "title"}}}, "resync"),
    ],
)
def test_invalid_field_of_a_page_is_refused_by_name(fields: dict[str, Any], field: str) -> None:
    page = {"deltas": [], "serverHlc": "7", "hasMore": False} | fields
    with pytest.raises(ValidationFailed) as refused:
        jsonish.decode_page(json.dumps(page).encode())

    assert refused.value.field == field


def test_empty_page_contains_the_next_cursor() -> None:
    assert jsonish.encode_page(PullPage((), 0, 7, has_more=True)) == (
        b'{"deltas":[],"serverHlc":"7","hasMore":true}'
    )


def test_a_page_is_valid_json_whatever_its_rows_hold() -> None:
    odd = update('r"\n', client="\\", at=1, text='"}]\u2028', deep={"a": [None]})
    page = PullPage((encode_records([odd]),), 1, 7, has_more=False, epoch='e"')

    body = json.loads(jsonish.encode_page(page))

    assert body["epoch"] == 'e"'
    assert body["deltas"][0]["rowId"] == 'r"\n'
    assert body["deltas"][0]["columns"][1] == {"column": "deep", "value": {"a": [None]}}


@pytest.mark.parametrize("text", ["0", "7", str(STAMP_MAX)])
def test_cursor_parameter_is_a_decimal_number(text: str) -> None:
    assert jsonish.stamp_parameter(text, "since") == int(text)


@pytest.mark.law("W2")
@pytest.mark.parametrize("text", ["", "-1", " 1", "1 ", "1.0", "x", "\u0661", str(STAMP_MAX + 1)])
def test_invalid_cursor_parameter_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValidationFailed) as refused:
        jsonish.stamp_parameter(text, "since")

    assert refused.value.field == "since"


@pytest.mark.law("V12")
@pytest.mark.parametrize("encoding", [jsonish, proto])
def test_page_names_the_columns_that_a_resync_omits(encoding: Any) -> None:
    again = Resync(("staff",), ("staff", "todos"), {"staff": 9}, {"staff": ("pay",), "": ("note",)})
    page = PullPage((), 0, 7, has_more=True, resync=again)

    assert encoding.decode_page(encoding.encode_page(page)).resync == again
    assert [again.omitted_of(table) for table in ("staff", "other")] == [("pay",), ("note",)]
