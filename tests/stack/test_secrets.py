"""What must never be in a log: tokens, and the secret that signs them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lakesync.core.delta import Op

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lakesync.analysis.connection import Aws
    from tests.support.deployed import Tenant
    from tools.local_stack.stack import Stack


def lines(aws: Aws) -> Iterator[tuple[str, str]]:
    """Yield every line of every log of the stack, with its log's name."""
    client = aws.client("logs")
    for page in client.get_paginator("describe_log_groups").paginate():
        for group in page["logGroups"]:
            name = group["logGroupName"]
            events = client.get_paginator("filter_log_events").paginate(logGroupName=name)
            for part in events:
                for event in part["events"]:
                    yield name, event["message"]


@pytest.mark.usefixtures("by_hand")
def test_no_log_holds_a_token_or_the_secret(tenant: Tenant, aws: Aws, stack: Stack) -> None:
    tenant.push([tenant.make(Op.INSERT, "r1", {"a": 1})])
    tenant.pull()
    tenant.flush()
    refused = [tenant.token(ttl_s=-60), tenant.token(gw="another"), tenant.token() + "x"]
    for token in refused:
        for path in ("pull", "push", "nowhere"):
            tenant.call("POST", f"/sync/{tenant.gateway}/{path}", token=token, content=b"{")
    # What proves that this looks in the right place: the functions did log these requests.
    logged = list(lines(aws))
    logs = {name for name, _ in logged}
    assert any("Authorise" in name for name in logs)
    assert any("Push" in name for name in logs)
    # Every token of ours, whole or in part, begins so: it is {"alg":"HS256" in base64.
    start = tenant.token().partition(".")[0][:12]
    assert [line for line in logged if start in line[1]] == []
    assert [line for line in logged if stack.jwt_secret in line[1]] == []
