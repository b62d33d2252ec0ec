"""An action on the deployed stack: allowed by its parameters, sent to a queue, and sent once."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import boto3
import pytest
from websockets.sync.client import connect

from lakesync.client import Client, SyncLoop
from lakesync.wire import lakesync_pb2 as pb
from lakesync.wire import proto
from lakesync.wire.proto import Tag
from tests.support.deployed import Tenant
from tests.support.waiting import DEPLOYED_S

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tools.local_stack.stack import Stack


@pytest.fixture
def sqs(stack: Stack) -> Any:
    return boto3.client(
        "sqs", endpoint_url=stack.endpoint, region_name=stack.region,
        aws_access_key_id="test", aws_secret_access_key="test",
    )  # fmt: skip


@pytest.fixture
def queue(sqs: Any) -> Iterator[str]:
    """A queue that the stack's actions may use."""
    url = sqs.create_queue(QueueName=f"lakesync-action-{uuid4().hex[:8]}")["QueueUrl"]
    yield url
    sqs.delete_queue(QueueUrl=url)


def messages(sqs: Any, queue: str) -> list[dict[str, Any]]:
    answer = sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10, WaitTimeSeconds=1)
    return [json.loads(each["Body"]) for each in answer.get("Messages", [])]


@pytest.mark.law("X1", "X4", "X5", "X8", "X9")
def test_action_is_sent_to_its_queue_once(stack: Stack, sqs: Any, queue: str) -> None:
    tenant = Tenant(stack)
    admin, phone = tenant.token("ops", role="admin"), tenant.token("phone-1")
    schema = {"type": "object", "required": ["order"], "properties": {"order": {"type": "integer"}}}
    handler = {
        "name": "ships",
        "type": "sqs",
        "configuration": {"queueUrl": queue, "actions": [{"name": "ship", "params": schema}]},
        "allow": [{"params": [{"param": "order", "op": "lt", "value": 100}]}],
    }
    path = f"/admin/actions/{tenant.gateway}"
    added = tenant.call("POST", path, token=admin, json=handler)
    assert (added.status_code, added.json().get("actions")) == (200, ["ship"]), added.text
    assert tenant.call("POST", path, token=admin, json=handler).status_code == 409

    def ask(*actions: tuple[str, Any]) -> list[dict[str, Any]]:
        body = {
            "clientId": "phone-1",
            "actions": [
                {"actionId": name, "connector": "ships", "actionType": "ship",
                 "params": {"order": order}, "idempotencyKey": f"order-{order}"}
                for name, order in actions
            ],
        }  # fmt: skip
        asked = tenant.call("POST", f"/sync/{tenant.gateway}/action", token=phone, json=body)
        assert asked.status_code == 200, asked.text
        results: list[dict[str, Any]] = asked.json()["results"]
        return results

    results = ask(("a1", 7), ("a2", "many"), ("a3", 700))
    assert [each.get("code", "") for each in results] == [
        "", "ACTION_VALIDATION_ERROR", "FORBIDDEN",
    ], results  # fmt: skip
    assert ask(("a1", 7))[0] == results[0]
    assert ask(("a9", 7))[0]["data"] == results[0]["data"]
    (message,) = messages(sqs, queue)
    assert (message["type"], message["data"], message["user"]) == ("ship", {"order": 7}, "phone-1")

    listed = tenant.call("GET", f"/sync/{tenant.gateway}/actions", token=phone).json()
    assert [each["actionType"] for each in listed["connectors"]["ships"]] == ["ship"]


@pytest.mark.law("X8")
def test_action_to_a_queue_that_the_operator_did_not_name_fails(stack: Stack, sqs: Any) -> None:
    url = sqs.create_queue(QueueName=f"other-{uuid4().hex[:8]}")["QueueUrl"]
    tenant = Tenant(stack)
    admin = tenant.token("ops", role="admin")
    settings = {"queueUrl": url, "actions": [{"name": "ship"}]}
    handler = {"name": "ships", "type": "sqs", "configuration": settings}
    added = tenant.call("POST", f"/admin/actions/{tenant.gateway}", token=admin, json=handler)
    assert added.status_code == 200, added.text
    body = {"clientId": "ops", "actions": [
        {"actionId": "a1", "connector": "ships", "actionType": "ship"}
    ]}  # fmt: skip
    asked = tenant.call("POST", f"/sync/{tenant.gateway}/action", token=admin, json=body)

    (result,) = asked.json()["results"]
    assert (result["code"], result["retryable"]) == ("ACTION_EXECUTION_ERROR", False)
    assert messages(sqs, url) == []
    sqs.delete_queue(QueueUrl=url)


@pytest.mark.law("X9", "X11")
def test_queued_action_of_a_client_has_the_same_outcome_over_a_web_socket(
    stack: Stack, sqs: Any, queue: str, socket_url: str, tmp_path: Path
) -> None:
    tenant = Tenant(stack)
    settings = {"queueUrl": queue, "actions": [{"name": "ship"}]}
    handler = {"name": "ships", "type": "sqs", "configuration": settings, "allow": [{}]}
    admin = tenant.token("ops", role="admin")
    added = tenant.call("POST", f"/admin/actions/{tenant.gateway}", token=admin, json=handler)
    assert added.status_code == 200, added.text
    with (
        tenant.transport("phone-1") as transport,
        Client(tmp_path / "app.db", client_id="phone-1", transport=transport) as client,
    ):
        client.insert("orders", "o7", {"total": 3}).unwrap()
        queued = client.actions.run("ships", "ship", {"order": "o7"}).unwrap()
        with SyncLoop(client):
            done = queued.result(timeout_s=DEPLOYED_S).unwrap()
        assert client.actions.discover().unwrap()["ships"][0].action_type == "ship"
    (message,) = messages(sqs, queue)
    assert message["data"] == {"order": "o7"}

    asked = pb.ActionPush(client_id="phone-1")
    asked.actions.add(
        action_id=queued.action_id, connector="ships", action_type="ship", params=b'{"order":"o7"}'
    )
    protocols: Any = ["lakesync.v1", f"bearer.{tenant.token('phone-1')}"]
    with connect(f"{socket_url}?clientId=phone-1", subprotocols=protocols, proxy=None) as socket:
        socket.send(proto.encode_action_frame(asked.SerializeToString(), 5))
        tag, body = proto.decode_frame(str(socket.recv(timeout=DEPLOYED_S)))
    assert (tag, proto.answered_id_of(tag, body)) == (Tag.ACTION_RESPONSE, 5), body
    (result,) = pb.ActionResponse.FromString(body).results
    assert json.loads(result.success.data) == done
    assert messages(sqs, queue) == []
