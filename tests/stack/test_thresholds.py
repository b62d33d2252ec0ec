"""What waits past a gateway's threshold is flushed unasked, whoever pushed it, as deployed."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import random
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx
import pytest

from lakesync.core.config import FLUSH_BYTES_MIN
from lakesync.core.delta import Op
from lakesync.core.messages import Push
from lakesync.wire import proto
from lakesync.wire.proto import Tag
from tests.stack.test_connectors import Site, removed
from tests.stack.test_flows import Flows, declared
from tests.stack.test_sockets import next_answer, opened
from tests.support.deployed import (
    changes_reported,
    look_again,
    polls_ended,
    quick_to_flush,
    unflushed,
)
from tests.support.sources import SqlSource
from tests.support.vendors.jira import EMAIL, TOKEN
from tests.support.waiting import PATIENCE_S, answered

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.analysis.connection import Aws
    from tests.support.deployed import Tenant
    from tools.local_stack.databases import Database
    from tools.local_stack.stack import Stack

SECRET = "a secret of sixteen"


def large(seed: int) -> str:
    """Return a text that is above the least threshold, however well it is packed."""
    return "a" + base64.b64encode(random.Random(seed).randbytes(FLUSH_BYTES_MIN * 5 // 4)).decode()


def flushes(tenant: Tenant, count: int) -> None:
    """Wait until so many batches were announced, which no run takes meanwhile.

    And until the head says so: a push into a gateway that is above its threshold asks for nothing.
    """
    answered(tenant.waiting, lambda waiting: waiting >= count)
    answered(lambda: unflushed(tenant), lambda size: size == 0)


@pytest.mark.law("D19")
@pytest.mark.usefixtures("lake_left_alone")
def test_pushes_over_https_and_web_sockets_above_the_threshold_are_flushed(
    tenant: Tenant, socket_url: str
) -> None:
    quick_to_flush(tenant)
    tenant.push([tenant.make(Op.INSERT, "r1", {"text": large(1)})])
    flushes(tenant, 1)
    with opened(socket_url, tenant) as socket:
        delta = tenant.make(Op.INSERT, "r2", {"text": large(2)})
        socket.send(proto.encode_push_frame(Push("c1", ((0, delta),), own_cursor=True), 1))
        assert next_answer(socket)[0] is Tag.PUSH
    flushes(tenant, 2)


@pytest.mark.law("D19", "N14")
@pytest.mark.usefixtures("lake_left_alone")
def test_polls_and_webhooks_of_a_connector_above_the_threshold_are_flushed(
    stack: Stack, tenant: Tenant
) -> None:
    quick_to_flush(tenant)
    admin, path = tenant.token("ops", role="admin"), f"/admin/connectors/{tenant.gateway}"
    Site.port = (urlsplit(stack.endpoint).port or 0) + 1
    with Site() as site:
        site.put({"10001": large(1)})
        settings = {
            "site": site.url, "email": EMAIL, "apiToken": TOKEN, "webhookSecret": SECRET,
            "tables": [{"name": "issues"}],
        }  # fmt: skip
        body = {"type": "jira", "name": "tickets", "configuration": settings}
        added = tenant.call("POST", path, token=admin, json=body | {"everyMinutes": 1_440})
        assert added.status_code == 200, added.text
        try:
            run = tenant.call("POST", f"{path}/tickets", token=admin, json={"do": "run"})
            assert run.status_code == 200, run.text
            flushes(tenant, 1)
            # A poll that goes on would bring the issue itself, and leave the webhook nothing.
            polls_ended(tenant, "tickets")
            site.put({"10002": large(2)})
            assert told(stack, tenant, "10002") == {"accepted": 1, "repeated": False}
            flushes(tenant, 2)
        finally:
            removed(tenant, f"{path}/tickets", admin)


def told(stack: Stack, tenant: Tenant, issue: str) -> dict[str, Any]:
    event = json.dumps({
        "timestamp": time.time_ns() // 1_000_000, "webhookEvent": "jira:issue_updated",
        "issue": {"id": issue, "key": f"ACME-{issue}"},
    }).encode()  # fmt: skip
    digest = hmac.new(SECRET.encode(), event, hashlib.sha256).hexdigest()
    answer = httpx.post(
        f"{stack.http}/connectors/{tenant.gateway}/tickets/webhook", content=event,
        headers={"x-hub-signature": f"sha256={digest}"}, timeout=PATIENCE_S,
    )  # fmt: skip
    body: dict[str, Any] = answer.json()
    return body


@pytest.mark.law("D19", "N20", "Y5")
@pytest.mark.usefixtures("lake_left_alone")
def test_poll_of_a_flow_above_the_threshold_is_flushed_and_reports_a_new_column(
    tenant: Tenant, aws: Aws, lakesync: Callable[..., Any], postgres: Database
) -> None:
    quick_to_flush(tenant)
    flows, source = Flows(tenant, aws, lakesync), SqlSource(postgres, "postgres", by_time=False)
    # Without its filter: a text as long as this one is within no bound.
    flows.declare(declared("orders", source, postgres, "gateway") | {"filter": []})
    source.put({"1": large(1)})
    source.run(f"ALTER TABLE {source.table} ADD COLUMN size integer")
    look_again(tenant, "orders")
    flows.poll("orders")

    flushes(tenant, 1)
    assert changes_reported(tenant) == [("orders", "size", "is new: integer")]
    flows.ask("DELETE", "/orders")
    source.close()
