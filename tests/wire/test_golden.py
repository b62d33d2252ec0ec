"""The bytes that past releases wrote are still written, and still read."""

from __future__ import annotations

import json

import pytest

from lakesync.wire import jsonish, proto
from lakesync.wire.records import decode_records, decode_row_state
from tests.support import golden

KEPT = golden.kept()


@pytest.mark.law("W5")
@pytest.mark.parametrize("name", golden.messages())
def test_encoded_messages_have_the_stored_bytes(name: str) -> None:
    assert golden.messages()[name] == KEPT[name]


def test_every_stored_message_is_still_encoded() -> None:
    assert set(KEPT) == set(golden.messages())


@pytest.mark.law("W5")
def test_stored_pushes_are_decoded() -> None:
    assert jsonish.decode_push(KEPT["push, JSON"]) == golden.PUSH
    assert proto.decode_push(KEPT["push, protobuf"]) == golden.PUSH
    assert jsonish.decode_push(KEPT["push of its own cursor, JSON"]) == golden.OWN_PUSH
    assert proto.decode_push(KEPT["push of its own cursor, protobuf"]) == golden.OWN_PUSH


@pytest.mark.law("W5")
def test_stored_answers_are_decoded() -> None:
    for page in (
        jsonish.decode_page(KEPT["page, JSON"]),
        proto.decode_page(KEPT["page, protobuf"]),
    ):
        assert [delta for run in page.records for delta in decode_records(run)] == list(
            golden.DELTAS
        )
        assert (page.cursor, page.has_more, page.epoch) == (golden.PAGE.cursor, True, "e")
    assert proto.decode_receipt(KEPT["receipt, protobuf"]).accepted == 2
    assert json.loads(KEPT["receipt, JSON"])["results"][1]["code"] == "ROW_TOO_LARGE"
    assert proto.decode_pull(KEPT["pull, protobuf"]) == golden.PULL
    assert proto.decode_pull(KEPT["pull of its own cursor, protobuf"]) == golden.OWN_PULL


@pytest.mark.law("W5")
def test_stored_runs_and_row_states_are_decoded() -> None:
    assert decode_records(KEPT["run of deltas, stored"]) == list(golden.DELTAS)
    assert decode_row_state(KEPT["row state, stored"]) == golden.ROW
