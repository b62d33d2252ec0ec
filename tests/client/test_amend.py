"""Refused edits that the app amends: a new edit stands in the place of the refused one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lakesync.result import Err, Ok
from tests.client.support.world import check_sound

if TYPE_CHECKING:
    from lakesync.client import Client
    from lakesync.core.delta import Delta
    from tests.client.support.world import World


@pytest.fixture
def client(both: World) -> Client:
    both.gateway.only_text_in("strict")
    return both.client()


@pytest.fixture
def refused(client: Client) -> Delta:
    delta = client.insert("strict", "r1", {"title": 7, "done": False}).unwrap()
    client.push().unwrap()
    return delta


@pytest.mark.law("K28")
def test_an_amended_edit_replaces_the_refused_edit(
    both: World, client: Client, refused: Delta
) -> None:
    amended = client.amend(refused.delta_id, {"title": "seven"}).unwrap()
    assert amended.hlc > refused.hlc
    assert client.quarantined() == Ok([])
    assert client.push().unwrap().accepted == 1
    assert both.rows() == {("strict", "r1"): {"title": "seven", "done": False}}
    check_sound(client)


@pytest.mark.law("K28")
def test_amending_a_refused_edit_keeps_columns_written_since(
    both: World, client: Client, refused: Delta
) -> None:
    client.update("strict", "r1", {"done": True}).unwrap()
    client.amend(refused.delta_id, {"title": "seven"}).unwrap()
    client.push().unwrap()
    assert both.rows() == {("strict", "r1"): {"title": "seven", "done": True}}
    check_sound(client)


@pytest.mark.law("K28")
def test_an_invalid_amendment_is_an_err_and_changes_nothing(client: Client, refused: Delta) -> None:
    pending = client.insert("todos", "t1", {}).unwrap()
    for delta_id, columns, code in (
        ("unknown", {}, "NOT_FOUND"),
        (pending.delta_id, {}, "NOT_FOUND"),
        (refused.delta_id, {"no name!": 1}, "VALIDATION_ERROR"),
        (refused.delta_id, {"title": object()}, "VALIDATION_ERROR"),
    ):
        result = client.amend(delta_id, columns)
        assert isinstance(result, Err)
        assert result.error.code == code
    assert [entry.delta for entry in client.quarantined().unwrap()] == [refused]
    check_sound(client)


def test_a_discarded_edit_cannot_be_amended(client: Client, refused: Delta) -> None:
    client.discard(refused.delta_id).unwrap()
    assert isinstance(client.amend(refused.delta_id, {"title": "gone"}), Err)
