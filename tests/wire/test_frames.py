"""WebSocket frames: what was written is read, and nothing that is sent is a crash."""

from __future__ import annotations

from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakesync.core.messages import Pull, PullPage, PushReceipt
from lakesync.errors import BodyTooLarge, InvalidInput, RateLimited, ValidationFailed
from lakesync.wire import proto
from lakesync.wire.proto import Tag
from lakesync.wire.records import encode_records
from tests.support.builders import insert, push

IDS = st.integers(0, 2**32 - 1)


@pytest.mark.law("W8")
@given(tag=st.sampled_from(Tag), message=st.binary(max_size=200))
def test_frame_round_trips_as_ascii_text(tag: Tag, message: bytes) -> None:
    frame = proto.encode_frame(tag, message)

    assert frame.isascii()
    assert proto.decode_frame(frame) == (tag, message)


@pytest.mark.law("W8")
@given(request_id=IDS)
def test_requests_and_answers_carry_a_request_id(request_id: int) -> None:
    sent = push(insert(title="Buy milk"))
    tag, body = proto.decode_frame(proto.encode_push_frame(sent, request_id))
    assert (tag, proto.decode_push(body).deltas) == (Tag.PUSH, sent.deltas)
    assert proto.request_id_of(tag, body) == request_id
    pull = Pull("c1", 7, removes=True)
    tag, body = proto.decode_frame(proto.encode_pull_frame(pull, request_id))
    assert (tag, proto.decode_pull(body)) == (Tag.PULL, pull)
    assert proto.request_id_of(tag, body) == request_id
    receipt = PushReceipt(7, 1, server_time_ms=5)
    tag, body = proto.decode_frame(proto.encode_receipt_frame(receipt, request_id))
    assert (tag, proto.decode_receipt(body)) == (Tag.PUSH, receipt)
    assert proto.answered_id_of(tag, body) == request_id
    run = encode_records([insert(title="Buy milk")])
    page = PullPage((run,), 1, 9, has_more=False)
    tag, body = proto.decode_frame(proto.encode_page_frame(page, request_id))
    assert (tag, proto.decode_page(body).cursor) == (Tag.PULL, 9)
    assert proto.answered_id_of(tag, body) == request_id


@pytest.mark.law("W8")
def test_keep_alive_is_not_a_frame_but_its_answer_is() -> None:
    with pytest.raises(ValidationFailed):
        proto.decode_frame(proto.KEEP_ALIVE)
    assert proto.decode_frame(proto.KEEP_ALIVE_ANSWER) == (Tag.KEEP_ALIVE, b"")


@pytest.mark.law("W8")
def test_broadcast_names_the_cursors_it_follows_and_a_poke_does_not() -> None:
    run = encode_records([insert(title="Buy milk")])
    page = PullPage((run,), 1, 9, has_more=False, first=8, previous=0)
    tag, body = proto.decode_frame(proto.encode_broadcast(page))
    read = proto.decode_page(body)
    assert (tag, read.first, read.previous, read.is_poke) == (Tag.BROADCAST, 8, 0, False)
    assert [read.follows(cursor) for cursor in (0, 7, 8, 9)] == [True, True, False, False]

    poke = PullPage((), 0, 9, has_more=True)
    read = proto.decode_page(proto.decode_frame(proto.encode_broadcast(poke))[1])
    assert read.is_poke
    assert not any(read.follows(cursor) for cursor in (0, 8, 9))


@pytest.mark.law("W8")
@given(
    request_id=IDS,
    sentence=st.text(max_size=50),
    wait_s=st.integers(1, 100),
    closes=st.booleans(),
)
def test_refusal_carries_its_error_and_whether_it_closes(
    request_id: int,
    sentence: str,
    wait_s: int,
    closes: bool,  # noqa: FBT001
) -> None:
    error = RateLimited(sentence, field="deltas", retry_after_s=wait_s)
    tag, body = proto.decode_frame(proto.encode_refusal(error, request_id, closes=closes))
    read = proto.decode_refusal(body)

    assert tag is Tag.REFUSAL
    assert (read.request_id, read.closes) == (request_id, closes)
    assert (read.error.code, read.error.message) == ("RATE_LIMITED", error.message)
    assert (read.error.field, read.error.retry_after_s) == ("deltas", wait_s)


@pytest.mark.law("W8")
@pytest.mark.parametrize("frame", ["", "not base64!", "AQ=", b64encode(b"\x00").decode(), "/w=="])
def test_invalid_frame_is_refused(frame: str) -> None:
    with pytest.raises(ValidationFailed):
        proto.decode_frame(frame)


@pytest.mark.law("W8")
def test_frame_is_at_most_as_long_as_api_gateway_carries() -> None:
    longest = proto.encode_frame(Tag.PUSH, b"x" * proto.FRAME_BYTES_MAX)
    assert len(longest) == proto.FRAME_CHARS_MAX
    assert proto.decode_frame(longest)[0] is Tag.PUSH
    with pytest.raises(BodyTooLarge):
        proto.encode_frame(Tag.PUSH, b"x" * (proto.FRAME_BYTES_MAX + 1))
    with pytest.raises(BodyTooLarge):
        proto.decode_frame(longest + "AAAA")


@pytest.mark.law("W8")
@given(tag=st.sampled_from(Tag), message=st.binary(max_size=100))
def test_request_id_of_any_bytes_is_a_number_or_a_refusal(tag: Tag, message: bytes) -> None:
    for read in (proto.request_id_of, proto.answered_id_of):
        try:
            assert read(tag, message) >= 0
        except InvalidInput as error:
            assert "message is not a" in error.message  # noqa: PT017
