"""JSON frames: the bodies of HTTP with a tag, within the limit whatever they hold."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lakesync.core.delta import Op, make_delta
from lakesync.core.messages import PullPage, Push, PushReceipt
from lakesync.errors import BodyTooLarge, InvalidInput, LakeSyncError, ValidationFailed
from lakesync.wire import json_frames, jsonish, proto
from lakesync.wire.json_frames import FRAME_DELTA_BYTES_MAX
from lakesync.wire.proto import FRAME_CHARS_MAX, Tag
from lakesync.wire.records import decode_records, encode_records
from tests.support.builders import insert
from tests.support.strategies import any_text, deltas, errors, json_values, pages, pushes, receipts

IDS = st.integers(0, json_frames.REQUEST_ID_MAX)
HOSTILE = '\x01\x1f"\\\u2028é\U0001f600'


@pytest.mark.law("W8")
@given(tag=st.sampled_from(Tag), body=json_values, request_id=IDS)
def test_json_frame_round_trips(tag: Tag, body: object, request_id: int) -> None:
    frame = json_frames.encode_frame(tag, json.dumps(body).encode(), request_id)
    read = json_frames.decode_frame(frame)

    assert (read.tag, read.id, read.message) == (tag, request_id, body)
    assert read.size_bytes == len(frame.encode())


@pytest.mark.law("W1", "W8")
@given(push=pushes(), receipt=receipts, made=pages(), request_id=IDS)
def test_bodies_of_json_frames_are_those_of_http(
    push: Push, receipt: PushReceipt, made: tuple[PullPage, list[object]], request_id: int
) -> None:
    page, _ = made
    body = jsonish.encode_push(push)
    sent = json_frames.decode_frame(json_frames.encode_frame(Tag.PUSH, body, request_id))
    assert json_frames.decode_push(sent.message) == jsonish.decode_push(body) == push
    for frame, tag, expected in (
        (json_frames.encode_receipt_frame(receipt, request_id), 1, jsonish.encode_receipt(receipt)),
        (json_frames.encode_page_frame(page, request_id), 2, jsonish.encode_page(page)),
        (json_frames.encode_broadcast(page), 3, jsonish.encode_page(page)),
    ):
        read = json.loads(frame)
        assert (read["tag"], read["body"]) == (tag, json.loads(expected))
        assert read.get("requestId") == (None if tag == Tag.BROADCAST else request_id)


@pytest.mark.law("W8")
def test_json_broadcast_names_the_cursors_it_follows_and_a_poke_does_not() -> None:
    run = encode_records([insert(title="Buy milk")])
    page = PullPage((run,), 1, 9, has_more=False, first=8, previous=0)
    body = json.loads(json_frames.encode_broadcast(page))["body"]
    assert (body["first"], body["previous"], body["hasMore"]) == ("8", "0", False)
    read = jsonish.page_of(body)
    assert [read.follows(cursor) for cursor in (0, 7, 8, 9)] == [True, True, False, False]

    poke = json_frames.encode_broadcast(PullPage((), 0, 9, has_more=True, epoch="e", scope="*"))
    assert json.loads(poke) == {
        "tag": 3,
        "body": {"deltas": [], "serverHlc": "9", "hasMore": True, "epoch": "e", "scope": "*"},
    }


@pytest.mark.law("W8")
@given(
    error=errors,
    field=any_text,
    request_id=IDS,
    closes=st.booleans(),
)
def test_json_refusal_has_its_error_and_whether_it_closes(
    error: LakeSyncError,
    field: str,
    request_id: int,
    closes: bool,  # noqa: FBT001
) -> None:
    error.field = field
    read = json.loads(json_frames.encode_refusal(error, request_id, closes=closes))

    assert (read["tag"], read["requestId"]) == (6, request_id)
    body = read["body"]
    assert (body["code"], body["closes"]) == (error.code, closes)
    assert body["error"] == (error.public_message or error.message)
    assert body.get("field") == (error.field or None)
    assert body.get("retryAfterS", 0) == error.retry_after_s


@pytest.mark.law("W8")
def test_longest_refusal_fits_a_frame() -> None:
    error = ValidationFailed("\ud800" * 100_000, field="\x01" * 100_000)

    assert len(json_frames.encode_refusal(error, 7, closes=True)) < FRAME_CHARS_MAX


@pytest.mark.law("W8")
def test_answer_to_a_keep_alive_is_read_and_the_keep_alive_is_no_frame() -> None:
    read = json_frames.decode_frame(proto.KEEP_ALIVE_ANSWER)
    assert (read.tag, read.id) == (Tag.KEEP_ALIVE, 0)
    with pytest.raises(ValidationFailed):
        json_frames.decode_frame(proto.KEEP_ALIVE)


@pytest.mark.law("W8")
@pytest.mark.parametrize(
    ("frame", "field"),
    [
        ("", None),
        ("[]", None),
        ("{", None),
        ("null", None),
        ("NaN", None),
        ('{"tag":1,"tag":2}', None),
        ("[" * 100_000, None),
        ('{"tag":1,"body":' + "[" * 60_000 + "]" * 60_000 + "}", None),
        ('{"tag":1,"body":' + "9" * 5_000 + "}", None),
        ('{"tag":1,"body":"\ud800"}', None),
        (proto.encode_frame(Tag.PULL, b""), None),
        ("{}", "tag"),
        *((f'{{"tag":{tag}}}', "tag") for tag in ("0", "8", "-1", "1.0", '"1"', "true", "null")),
        *(
            (f'{{"tag":1,"requestId":{number}}}', "requestId")
            for number in ("-1", "4294967296", "1.5", '"1"', "false", "null", "1e9")
        ),
    ],
)
def test_invalid_json_frame_is_refused(frame: str, field: str | None) -> None:
    with pytest.raises(ValidationFailed) as caught:
        json_frames.decode_frame(frame)
    assert caught.value.field == field


@pytest.mark.law("W8")
@given(frame=st.text(st.characters(), max_size=60) | json_values.map(json.dumps))
def test_any_text_is_a_json_frame_or_is_refused(frame: str) -> None:
    with contextlib.suppress(InvalidInput):
        json_frames.decode_frame(frame)


@pytest.mark.law("W4", "W8")
@given(tag=st.sampled_from(Tag), body=json_values | st.just("\ud800") | st.just({"deltas": [{}]}))
def test_any_body_of_a_json_frame_is_read_or_refused(tag: Tag, body: object) -> None:
    read = json_frames.decode_frame(json_frames.encode_frame(tag, json.dumps(body).encode(), 1))
    for decode in (
        json_frames.decode_push,
        json_frames.decode_pull,
        json_frames.decode_action_push,
    ):
        with contextlib.suppress(InvalidInput):
            decode(read.message)


@pytest.mark.law("W8")
@pytest.mark.parametrize("character", ["x", "é", "\U0001f600"])
def test_json_frame_has_at_most_as_many_bytes_as_api_gateway_carries(character: str) -> None:
    width = len(character.encode())
    empty = len(json_frames.encode_frame(Tag.PUSH, b'""', 1))
    many, rest = divmod(FRAME_CHARS_MAX - empty, width)
    body = f'"{character * many}{"x" * rest}"'.encode()
    longest = json_frames.encode_frame(Tag.PUSH, body, 1)
    assert len(longest.encode()) == FRAME_CHARS_MAX
    assert json_frames.decode_frame(longest).tag is Tag.PUSH
    with pytest.raises(BodyTooLarge):
        json_frames.encode_frame(Tag.PUSH, body, 11)
    with pytest.raises(BodyTooLarge):
        json_frames.decode_frame(f"{longest} ")


@pytest.mark.law("W8")
@given(
    text=st.text(st.sampled_from(HOSTILE), min_size=1, max_size=8),
    rows=st.integers(1, 400),
    more=st.lists(deltas(), max_size=3),
)
@example("\x01" * 8, 100, [])
def test_page_of_any_text_within_the_limit_of_deltas_fits_a_json_frame(
    text: str, rows: int, more: list[object]
) -> None:
    each = [
        make_delta(Op.INSERT, "t", text, {"c": text}, client_id=text, hlc=number + 1)
        for number in range(rows)
    ]
    run = encode_records([*each, *more])  # type: ignore[list-item]  # deltas
    while len(run) > FRAME_DELTA_BYTES_MAX:
        run = encode_records(decode_records(run)[: -(len(each) // 4 or 1)])
        each = each[len(each) // 4 or 1 :]
    page = PullPage((run,), len(decode_records(run)), 9, has_more=True)

    assert len(json_frames.encode_page_frame(page, 2**32 - 1).encode()) <= FRAME_CHARS_MAX


@pytest.mark.law("W8")
def test_body_for_the_actions_function_is_refused_if_it_nests_too_deeply() -> None:
    nested: object = []
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises(ValidationFailed):
        json_frames.action_body(nested)
    assert json_frames.action_body({"text": "é\ud800"}).isascii()
