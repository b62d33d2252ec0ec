"""Actions over HTTP, to the letter, as the existing client sends and expects them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.wire import lakesync_pb2 as pb
from tests.support.acting import use_memory_outside

if TYPE_CHECKING:
    import httpx

    from tests.compat.requests import Asker
    from tests.support.acting import MemoryOutside

HANDLER = {"name": "slack", "type": "memory", "allow": [{}]}


@pytest.fixture
def outside(gateway: Asker, monkeypatch: pytest.MonkeyPatch) -> MemoryOutside:
    made = use_memory_outside(monkeypatch)
    answer = gateway.ask(
        "POST", "/admin/actions/{}", role="admin", json={**HANDLER, "replace": True}
    )
    assert answer.json() == {"registered": True, "name": "slack", "actions": ["send"]}
    return made


def action(action_id: str = "0" * 64, **more: Any) -> dict[str, Any]:
    return {
        "actionId": action_id,
        "clientId": "client-1",
        "hlc": "112589990684262400",
        "connector": "slack",
        "actionType": "send",
        "params": {"to": "team"},
    } | more


def push(gateway: Asker, *actions: Any) -> httpx.Response:
    body = {"clientId": "client-1", "actions": actions}
    return gateway.ask("POST", "/sync/{}/action", json=body)


@pytest.mark.law("X9")
def test_action_is_answered_with_its_data_and_a_decimal_stamp(
    gateway: Asker, outside: MemoryOutside
) -> None:
    answer = push(gateway, action(), action("1" * 64, params={"to": 7}))

    assert answer.status_code == 200
    body = answer.json()
    done, refused = body["results"]
    assert (done["actionId"], done["data"]) == ("0" * 64, {"n": 1})
    assert done["serverHlc"].isdigit()
    assert body["serverHlc"].isdigit()
    assert refused.keys() == {"actionId", "code", "message", "retryable"}
    assert (refused["code"], refused["retryable"]) == ("ACTION_VALIDATION_ERROR", False)
    assert push(gateway, action()).json()["results"][0] == done
    assert len(outside.done) == 1


@pytest.mark.law("X9")
def test_malformed_action_does_not_affect_the_others(
    gateway: Asker, outside: MemoryOutside
) -> None:
    results = push(
        gateway, 7, action(actionId=""), action(hlc="soon"), action(params=[]),
        action(clientId="client-2"), action(idempotencyKey="k" * 200), action("2" * 64),
        action(params={"to": "x" * 70_000}), action(connector=None),
    ).json()["results"]  # fmt: skip

    assert [each.get("code", "") for each in results] == [
        *["ACTION_VALIDATION_ERROR"] * 6, "", *["ACTION_VALIDATION_ERROR"] * 2,
    ]  # fmt: skip
    assert len(outside.done) == 1


@pytest.mark.law("X9")
def test_actions_are_accepted_and_answered_in_protobuf(
    gateway: Asker, outside: MemoryOutside
) -> None:
    sent = pb.ActionPush(client_id="client-1")
    sent.actions.add(
        action_id="p1", client_id="client-1", hlc=7, connector="slack", action_type="send",
        params=json.dumps({"to": "team"}).encode(), idempotency_key="k",
    )  # fmt: skip
    sent.actions.add(action_id="p2", connector="slack", action_type="send", params=b"{")
    sent.actions.add(action_id="p3", connector="nobody", action_type="send", hlc=1 << 63)
    answer = gateway.ask(
        "POST", "/sync/{}/action", content=sent.SerializeToString(),
        headers={"content-type": "application/x-protobuf"},
    )  # fmt: skip

    answered = pb.ActionResponse.FromString(answer.content)
    assert json.loads(answered.results[0].success.data) == {"n": 1}
    assert answered.results[0].success.server_hlc > 0
    assert [each.error.code for each in answered.results[1:]] == ["ACTION_VALIDATION_ERROR"] * 2
    assert answered.server_hlc >= answered.results[0].success.server_hlc
    assert len(outside.done) == 1


@pytest.mark.law("X9")
@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'{"clientId":"client-1"}', b'{"clientId":"client-1","actions":{}}',
     b'{"actions":[]}', b'{"clientId":"","actions":[]}'],
)  # fmt: skip
def test_malformed_action_request_is_refused_whole(gateway: Asker, body: bytes) -> None:
    headers = {"content-type": "application/json"}
    answer = gateway.ask("POST", "/sync/{}/action", content=body, headers=headers)

    assert (answer.status_code, answer.json()["code"]) == (400, "VALIDATION_ERROR")


@pytest.mark.law("X9")
def test_request_with_too_many_actions_is_refused_whole(
    gateway: Asker, outside: MemoryOutside
) -> None:
    answer = push(gateway, *(action(f"a{number}") for number in range(26)))

    assert (answer.status_code, answer.json()["field"]) == (400, "actions")
    assert outside.done == []


@pytest.mark.law("X9", "U1")
def test_actions_of_another_users_client_are_refused(
    gateway: Asker, outside: MemoryOutside
) -> None:
    gateway.pull(client="client-2")
    body = {"clientId": "client-2", "actions": [action(clientId="client-2")]}
    answer = gateway.ask("POST", "/sync/{}/action", json=body)

    assert (answer.status_code, answer.json()["code"]) == (403, "CLIENT_TAKEN")
    assert outside.done == []


@pytest.mark.law("X5", "X9")
def test_client_can_list_the_available_actions(gateway: Asker, outside: MemoryOutside) -> None:
    del outside
    answered = gateway.ask("GET", "/v1/sync/{}/actions").json()["connectors"]["slack"]

    assert [(each["actionType"], each["description"]) for each in answered] == [("send", "Sends.")]
    assert answered[0]["paramsSchema"]["additionalProperties"] is False


@pytest.mark.law("X6")
def test_administrators_register_list_and_remove_action_handlers(
    gateway: Asker, outside: MemoryOutside
) -> None:
    del outside

    def ask(method: str, path: str = "/admin/actions/{}", **more: Any) -> httpx.Response:
        return gateway.ask(method, path, role="admin", **more)

    assert (ask("POST", json=HANDLER).status_code, ask("POST", json={}).status_code) == (409, 400)
    assert ask("GET").json() == {"handlers": [HANDLER | {"allow": [{}]}]}
    assert gateway.ask("GET", "/admin/actions/{}").json()["code"] == "FORBIDDEN"
    path = "/admin/actions/{}/slack"
    assert ask("DELETE", path).json() == {"unregistered": True, "name": "slack"}
    assert ask("DELETE", path).status_code == 404
    refused = push(gateway, action("9" * 64)).json()["results"][0]
    assert refused["code"] == "ACTION_NOT_SUPPORTED"
