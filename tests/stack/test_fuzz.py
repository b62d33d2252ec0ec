"""Whatever is sent, the deployed API never answers 5xx: its own description, fuzzed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error

from tests.support.deployed import Tenant
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from tools.local_stack.stack import Stack

EXAMPLES = 20
"""For each operation, as many as `tests/runtime/test_openapi.py` draws for the same code."""
CLIENT = "c1"
GENERATED_ONCE = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def test_fuzzed_requests_never_give_a_server_error(stack: Stack) -> None:
    tenant = Tenant(stack)
    description: Any = schemathesis.openapi.from_url(f"{stack.http}/openapi.json")
    operations = [operation.ok() for operation in description.get_all_operations()]
    with requests.Session() as session:
        session.trust_env = False  # to look for proxies takes as long as to send a request
        seen = {each.label: statuses_of(each, tenant, session) for each in operations}
    assert "POST /sync/{gateway}/push" in seen
    # The requests got past the token, and some of them were good; what is named is not there.
    assert [label for label, statuses in seen.items() if statuses <= refusals_of(label)] == []


def refusals_of(label: str) -> set[int]:
    """Return the statuses of requests that an operation has not looked at."""
    if label.endswith("/webhook"):
        return set()  # it has no token: it says itself that a signature is of no connector
    # Whose path, or whose body, names something that is not there was looked at.
    names_something = "{name}" in label or label == "POST /admin/actions/{gateway}"
    return {401, 403} if names_something else {401, 403, 404}


def statuses_of(operation: Any, tenant: Tenant, session: requests.Session) -> set[int]:
    """Send generated requests to one operation; returns the statuses of the answers."""
    statuses: set[int] = set()

    @GENERATED_ONCE
    @given(operation.as_strategy())
    def no_input_makes_it_fail(case: Any) -> None:
        statuses.add(ask(tenant, case, session))

    no_input_makes_it_fail()
    return statuses


def ask(tenant: Tenant, case: Any, session: requests.Session) -> int:
    """Send a generated request, mostly one that its token allows; returns the answer's status."""
    if "gateway" in (case.path_parameters or {}) and len(str(case.path_parameters)) % 4:
        case.path_parameters["gateway"] = tenant.gateway
    if isinstance(case.body, dict) and "clientId" in case.body and len(str(case.body)) % 4:
        case.body["clientId"] = CLIENT
    headers = {"Authorization": f"Bearer {tenant.token(CLIENT, role='admin')}"}
    answer = case.call(
        base_url=tenant.stack.http, session=session, headers=headers, timeout=PATIENCE_S
    )
    case.validate_response(answer, checks=[not_a_server_error])
    if answer.status_code >= 400:
        body = answer.json()
        assert body.keys() >= {"error", "code", "requestId"}, body
    status: int = answer.status_code
    return status
