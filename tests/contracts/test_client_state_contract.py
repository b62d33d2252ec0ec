"""What every buffer promises of clients' states: steps from what was seen, and nobody else's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from lakesync.ports import Buffer

STATE = '{"resend":[["todos","r|1"],["t","\U0001f600"]]}'.encode()


def test_unknown_client_has_no_state(buffer: Buffer, gateway: str) -> None:
    assert buffer.client_state(gateway, "c1") is None


def test_saved_client_state_is_read_back(buffer: Buffer, gateway: str) -> None:
    assert buffer.save_client_state(gateway, "c1", None, STATE)
    assert buffer.client_state(gateway, "c1") == STATE
    assert buffer.save_client_state(gateway, "c1", STATE, b"{}")
    assert buffer.client_state(gateway, "c1") == b"{}"


@pytest.mark.parametrize("seen", [None, b"{}"])
def test_client_state_is_not_saved_over_an_unseen_state(
    buffer: Buffer, gateway: str, seen: bytes | None
) -> None:
    buffer.save_client_state(gateway, "c1", None, STATE)

    assert not buffer.save_client_state(gateway, "c1", seen, b"other")
    assert buffer.client_state(gateway, "c1") == STATE


def test_missing_client_state_is_not_replaced(buffer: Buffer, gateway: str) -> None:
    assert not buffer.save_client_state(gateway, "c1", STATE, b"other")
    assert buffer.client_state(gateway, "c1") is None


@pytest.mark.parametrize("client", ["c|1", "|", "client", "\U0001f600" * 32])
def test_client_states_are_separate_by_gateway_and_client(
    buffer: Buffer, gateway: str, client: str
) -> None:
    buffer.save_client_state(gateway, client, None, STATE)

    assert buffer.client_state(gateway, "c1") is None
    assert buffer.client_state(f"{gateway}x", client) is None
    assert buffer.client_state(gateway, client) == STATE


def test_client_state_alone_does_not_list_a_gateway(buffer: Buffer, gateway: str) -> None:
    buffer.save_client_state(gateway, "c1", None, STATE)

    assert gateway not in buffer.gateways()
