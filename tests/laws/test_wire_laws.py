"""Wire laws W1, W3, W4, W6, W7: docs/spec/wire.md."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakesync.core.messages import DeltaOutcome, OutcomeKind, Pull, PullPage, Push, PushReceipt
from lakesync.errors import InvalidInput
from lakesync.wire import jsonish, proto
from lakesync.wire import lakesync_pb2 as pb
from lakesync.wire.records import decode_records, decode_row_state, encode_records, encode_row_state
from tests.support.builders import insert
from tests.support.strategies import (
    any_text,
    deltas,
    ids,
    json_values,
    pages,
    pulls,
    pushes,
    receipts,
    row_states,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random
    from types import ModuleType

    from hypothesis.strategies import SearchStrategy

    from lakesync.core.delta import Delta
    from lakesync.core.merge import RowState

both = pytest.mark.parametrize("encoding", [jsonish, proto], ids=["json", "protobuf"])


@pytest.mark.law("W1")
@both
@given(push=pushes())
def test_push_round_trips(encoding: ModuleType, push: Push) -> None:
    assert encoding.decode_push(encoding.encode_push(push)) == push


@pytest.mark.law("W1")
@both
@given(made=pages())
def test_page_round_trips(encoding: ModuleType, made: tuple[PullPage, list[Delta]]) -> None:
    page, sent = made

    back = encoding.decode_page(encoding.encode_page(page))

    assert [delta for run in back.records for delta in decode_records(run)] == sent
    assert (back.count, back.cursor) == (len(sent), page.cursor)
    assert (back.has_more, back.epoch) == (page.has_more, page.epoch)
    assert (back.schema_version, back.behind_ms) == (page.schema_version, page.behind_ms)
    assert (back.first, back.previous, back.progress) == (page.first, page.previous, page.progress)


@pytest.mark.law("W1")
@given(pulls)
def test_pull_round_trips_in_protobuf(pull: Pull) -> None:
    assert proto.decode_pull(proto.encode_pull(pull)) == pull


def said(outcome: DeltaOutcome) -> tuple[object, ...]:
    """Return what an outcome tells its reader."""
    error = outcome.error
    fault = (type(error), error.message, error.field) if error else None
    return outcome.index, outcome.delta_id, outcome.kind, fault


@pytest.mark.law("W1")
@given(receipts)
def test_receipt_round_trips_in_protobuf(receipt: PushReceipt) -> None:
    back = proto.decode_receipt(proto.encode_receipt(receipt))

    assert list(map(said, back.outcomes)) == list(map(said, receipt.outcomes))
    assert (back.server_hlc, back.accepted) == (receipt.server_hlc, receipt.accepted)
    assert back.server_time_ms == receipt.server_time_ms


@pytest.mark.law("W1")
@given(receipts)
def test_receipt_in_json_has_the_same_content(receipt: PushReceipt) -> None:
    body = json.loads(jsonish.encode_receipt(receipt))

    assert int(body["serverHlc"]) == receipt.server_hlc
    assert (body["accepted"], body["deltas"]) == (receipt.accepted, [])
    assert body["serverTimeMs"] == receipt.server_time_ms
    for result, outcome in zip(body["results"], receipt.outcomes, strict=True):
        assert result["index"] == outcome.index
        assert result["outcome"] == outcome.kind.value
        assert result.get("code") == (outcome.error.code if outcome.error else None)


@pytest.mark.law("W4")
@both
@given(claimed=any_text, column=any_text)
def test_any_refused_delta_can_be_answered_in_a_receipt(
    encoding: ModuleType, claimed: str, column: str
) -> None:
    item = insert()._asdict() | {"op": "INSERT", "rowId": "r1", "clientId": "c1", "hlc": "1"}
    item |= {"deltaId": claimed or "-", "columns": [{"column": column}]}
    body = json.dumps({"clientId": "c1", "deltas": [item]})
    (refused,) = jsonish.decode_push(body.encode()).unreadable
    outcome = DeltaOutcome(0, refused.delta_id, OutcomeKind.REFUSED, refused.error)

    assert encoding.encode_receipt(PushReceipt(1, 0, (outcome,)))


def with_bad_delta(encoding: ModuleType, push: Push, place: int) -> bytes:
    """Return a push's bytes with one more delta in it, whose op is none."""
    body: bytes = encoding.encode_push(push)
    if encoding is jsonish:
        fields = json.loads(body)
        fields["deltas"].insert(place, {"op": "UPSERT"})
        return json.dumps(fields).encode()
    message = pb.SyncPush.FromString(body)
    message.deltas.insert(place, pb.RowDelta(table="todos"))
    return message.SerializeToString()


@pytest.mark.law("W3")
@both
@given(push=pushes(), place=st.integers(0, 4))
def test_malformed_delta_leaves_its_neighbours_readable(
    encoding: ModuleType, push: Push, place: int
) -> None:
    place = min(place, len(push.deltas))

    read = encoding.decode_push(with_bad_delta(encoding, push, place))

    assert [delta for _, delta in read.deltas] == [delta for _, delta in push.deltas]
    assert place not in [index for index, _ in read.deltas]
    assert [(refused.index, refused.error.field) for refused in read.unreadable] == [
        (place, f"deltas[{place}].op")
    ]


DECODERS: list[Callable[[bytes], object]] = [
    jsonish.decode_push,
    jsonish.decode_page,
    proto.decode_push,
    proto.decode_page,
    proto.decode_pull,
    proto.decode_receipt,
]
every_decoder = pytest.mark.parametrize(
    "decode", DECODERS, ids=lambda decode: f"{decode.__module__.split('.')[-1]}.{decode.__name__}"
)


@pytest.mark.law("W4")
@every_decoder
@given(body=st.binary(max_size=60))
def test_any_bytes_are_decoded_or_refused(decode: Callable[[bytes], object], body: bytes) -> None:
    with contextlib.suppress(InvalidInput):
        decode(body)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A valid message with a few bytes changed, cut off or repeated."""
    valid = st.one_of(
        pushes(deltas_max=2).map(jsonish.encode_push),
        pushes(deltas_max=2).map(proto.encode_push),
        pages().map(lambda made: jsonish.encode_page(made[0])),
        pages().map(lambda made: proto.encode_page(made[0])),
        receipts.map(proto.encode_receipt),
        pulls.map(proto.encode_pull),
    )
    body = bytearray(draw(valid) or b"{}")
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(body)))
        end = draw(st.integers(start, min(len(body), start + 4)))
        body[start:end] = draw(st.binary(max_size=4))
    return bytes(body)


@pytest.mark.law("W4")
@given(damaged())
def test_damaged_message_is_decoded_or_refused(body: bytes) -> None:
    for decode in DECODERS:
        with contextlib.suppress(InvalidInput):
            decode(body)


def like(*names: str) -> SearchStrategy[dict[str, object]]:
    """Objects that have some of the names, with any values."""
    return st.fixed_dictionaries({}, optional=dict.fromkeys(names, json_values))


some_deltas = st.lists(
    json_values
    | like("op", "table", "rowId", "clientId", "columns", "hlc", "deltaId")
    | st.builds(
        lambda base, odd: base | odd,
        deltas().map(lambda delta: json.loads(jsonish.encode_push(one(delta)))["deltas"][0]),
        like("op", "table", "rowId", "clientId", "columns", "hlc", "deltaId"),
    ),
    max_size=2,
)


def one(delta: Delta) -> Push:
    """Return the push of one delta."""
    return Push("c1", ((0, delta),))


@pytest.mark.law("W4")
@given(
    json_values
    | like("clientId", "deltas", "lastSeenHlc", "atomic", "serverHlc", "hasMore", "epoch")
    | st.fixed_dictionaries(
        {
            "clientId": ids,
            "deltas": some_deltas,
            "serverHlc": st.integers(0, 9),
            "hasMore": st.booleans(),
        }
    )
)
def test_any_json_is_decoded_or_refused(body: object) -> None:
    raw = json.dumps(body).encode()
    for decode in (jsonish.decode_push, jsonish.decode_page):
        with contextlib.suppress(InvalidInput):
            decode(raw)


@pytest.mark.law("W6")
@given(st.lists(st.lists(deltas(), max_size=2), max_size=3))
def test_joined_runs_are_one_run(runs: list[list[Delta]]) -> None:
    joined = b"".join(map(encode_records, runs))

    assert decode_records(joined) == [delta for run in runs for delta in run]
    assert encode_records(decode_records(joined)) == joined


@pytest.mark.law("W7")
@given(row_states)
def test_row_state_round_trips(state: RowState) -> None:
    assert decode_row_state(encode_row_state(state)) == state


@pytest.mark.law("W7")
@given(row_states, row_states)
def test_row_states_are_equal_exactly_when_their_bytes_are(one: RowState, two: RowState) -> None:
    assert (one == two) == (encode_row_state(one) == encode_row_state(two))


@pytest.mark.law("W7")
@given(row_states, st.randoms())
def test_order_of_columns_does_not_change_the_bytes_of_a_row_state(
    state: RowState, rng: Random
) -> None:
    items = list(state.columns.items())
    rng.shuffle(items)

    assert encode_row_state(state._replace(columns=dict(items))) == encode_row_state(state)


@pytest.mark.law("W7")
@given(row_states, st.integers(0, 400), st.integers(0, 20_000))
def test_row_state_has_the_bytes_that_protobuf_writes(
    state: RowState, columns: int, bytes_more: int
) -> None:
    """Many columns and long values too: lengths of one byte, of two, of three."""
    wide = {f"c{number}": (number + 1, "c", b"1" * (bytes_more + 1)) for number in range(columns)}
    state = state._replace(columns={**state.columns, **wide})

    encoded = encode_row_state(state)

    assert pb.RowState.FromString(encoded).SerializeToString(deterministic=True) == encoded
