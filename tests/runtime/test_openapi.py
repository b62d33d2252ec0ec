"""The OpenAPI document is sound, and the functions keep what it says."""

from __future__ import annotations

import asyncio
import json
import re
import time
from functools import cache
from typing import TYPE_CHECKING, Any

import httpx
import jsonschema_rs
import pytest
import schemathesis
from hypothesis import settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from lakesync.runtime.api.document import Description
from lakesync.runtime.api.open import open_routes
from tests.functions.conftest import event
from tests.support import local_gateway
from tests.support.some import some

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.types import ASGIApp, Receive, Scope, Send

GATEWAY = "demo"
CLIENT = "c1"
DELETION = {
    "deletedAt": "2026-01-01T00:00:00Z",
    "finished": True,
    "left": {"rows": 0},
    "gone": True,
    "proved": False,
    "provableFrom": "2026-01-01T00:16:00Z",
}
OPEN = ("/health", "/connectors/types", "/connectors/{gateway}/{name}/webhook")
DESCRIPTION = Description(open_routes("wss://sockets.example/live"))


class Authorised:
    """API Gateway's part: every request carries an administrator's verified claims."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        claims = {"sub": CLIENT, "gw": GATEWAY, "role": "admin", "exp": time.time() + 60}
        context = {"lambda": {"claims": json.dumps(claims)}}
        scope["aws.event"] = {"requestContext": {"requestId": "r", "authorizer": context}}
        await self._app(scope, receive, send)


@cache
def whole_api() -> Starlette:
    # Who deletes the gateway would leave nothing to ask of it.
    return local_gateway.whole_api(local_gateway.LocalGateway(), lambda *_: DELETION)


api = schemathesis.openapi.from_asgi("/openapi.json", Authorised(whole_api()))


@api.hook
def map_path_parameters(context: object, path_parameters: dict[str, Any] | None) -> Any:
    """Nearly every address is the token's own gateway; 403 is not the interesting answer."""
    if path_parameters and "gateway" in path_parameters:
        path_parameters["gateway"] = GATEWAY
    return path_parameters


@api.hook
def map_body(context: object, body: Any) -> Any:
    """Most pushes are in the token's own name, for the same reason."""
    if isinstance(body, dict) and isinstance(body.get("clientId"), str):
        body["clientId"] = CLIENT
        for delta in body["deltas"] if isinstance(body.get("deltas"), list) else ():
            if isinstance(delta, dict):
                delta["clientId"] = CLIENT
                delta.pop("deltaId", None)
    return body


@schemathesis.serializer("application/x-protobuf")
def as_bytes(context: object, value: Any) -> Any:
    """Send what was drawn as it is: any bytes, which are seldom a message."""
    return value if isinstance(value, bytes) else str(value).encode()


@api.parametrize()
@settings(max_examples=20)
def test_answers_to_generated_requests_conform_to_the_openapi_document(
    case: schemathesis.Case[Any],
) -> None:
    case.call_and_validate(
        checks=[
            not_a_server_error,
            status_code_conformance,
            content_type_conformance,
            response_schema_conformance,
        ]
    )


OPERATIONS = [
    (method.upper(), path)
    for path, operations in DESCRIPTION.document["paths"].items()
    for method in operations
    if path not in OPEN
]


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_every_operation_refuses_requests_without_authoriser_context(
    method: str, path: str
) -> None:
    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(whole_api())
        async with httpx.AsyncClient(transport=transport, base_url="https://api") as sender:
            return await sender.request(method, path.replace("{gateway}", GATEWAY))

    answer = asyncio.run(ask())

    assert (answer.status_code, answer.json()["code"]) == (401, "AUTH_ERROR")


def wrong_values(schema: dict[str, Any]) -> list[str]:
    """Return values that a parameter's schema does not allow."""
    kinds = {schema.get("type"), *(part.get("type") for part in schema.get("anyOf", ()))}
    limits = schema | next(iter(schema.get("anyOf", ())), {})
    values = ["perhaps", "1.5"] if kinds & {"integer", "boolean"} else []
    if "minimum" in limits:
        values.append(str(limits["minimum"] - 1))
    if "maximum" in limits or "exclusiveMaximum" in limits:
        values.append(str(limits.get("maximum", 10**12) + 1))
    if "maxLength" in limits:
        values.append("x" * (limits["maxLength"] + 1))
    if "pattern" in limits:
        values.append("~")
    return values


WRONG = [
    (method.upper(), path, parameter["in"], parameter["name"], value)
    for path, operations in DESCRIPTION.document["paths"].items()
    for method, operation in operations.items()
    for parameter in operation.get("parameters", ())
    if path not in OPEN
    for value in wrong_values(parameter["schema"])
]


@pytest.mark.parametrize(
    ("method", "path", "place", "name", "value"),
    WRONG,
    ids=[f"{method} {path} {name} {value[:12]}" for method, path, _, name, value in WRONG],
)
def test_a_malformed_parameter_is_refused_with_our_message(
    method: str, path: str, place: str, name: str, value: str
) -> None:
    address = path.replace(f"{{{name}}}", value) if place == "path" else path
    address = re.sub(r"\{.*?\}", GATEWAY, address)
    query = {name: value} if place == "query" else {}

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(Authorised(whole_api()))
        async with httpx.AsyncClient(transport=transport, base_url="https://api") as sender:
            return await sender.request(method, address, params=query, json={})

    answer = asyncio.run(ask())

    assert (answer.status_code, answer.json()["code"]) == (400, "VALIDATION_ERROR")
    assert answer.json()["field"] == name
    assert answer.json()["error"].startswith(f"{name} must be "), answer.text


def test_every_component_of_the_document_is_a_valid_json_schema() -> None:
    for schema in some(DESCRIPTION.document["components"]["schemas"].values()):
        jsonschema_rs.meta.validate(schema)


def test_every_operation_documents_its_security_and_errors() -> None:
    document = DESCRIPTION.document

    assert document["security"] == [{"token": []}]
    for path, operations in some(document["paths"].items()):
        for operation in some(operations.values()):
            assert operation["summary"]
            assert "200" in operation["responses"]
            assert "422" not in operation["responses"]
            if path not in OPEN:
                assert {"400", "401", "403", "429", "500", "503"} <= set(operation["responses"])


def test_sample_requests_conform_to_the_document() -> None:
    document = DESCRIPTION.document
    samples = {"push_json": "Push", "admin_schema": "TableSchema", "admin_sync_rules": "SyncRules"}
    for name, component in samples.items():
        schema = {"$ref": f"#/components/schemas/{component}", "components": document["components"]}
        jsonschema_rs.validate(schema, json.loads(event(name)["body"]))


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        ("/health", ["GET"]),
        ("/sync/g1/push", ["POST"]),
        ("/sync/g1/pull", ["GET", "POST"]),
        ("/admin/schema/g1", ["GET", "POST"]),
        ("/sync/g1/schema", ["GET"]),
        ("/sync//push", []),
        ("/openapi.yaml", []),
    ],
)
def test_the_methods_of_each_path_are_known_from_the_document(
    path: str, methods: list[str]
) -> None:
    assert DESCRIPTION.methods_at(path) == methods
