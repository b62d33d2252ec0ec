"""The OpenAPI document is sound, and the functions keep what it says."""

from __future__ import annotations

import asyncio
import json
import re
import time
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin

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
from lakesync.wire import json_frames, jsonish
from tests.functions.conftest import event
from tests.support import local_gateway
from tests.support.gateways import administrator
from tests.support.some import some
from tests.support.vectors import FOLDER

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


# --- whether a client can be generated ------------------------------------------------------------


def closed(schema: Any) -> Any:
    """Return a schema that allows no member that it does not name."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {name: closed(each) for name, each in schema.items() if name != "examples"}
    if "properties" in inner and "additionalProperties" not in inner:
        inner["additionalProperties"] = False
    return inner


COMPONENTS = closed(DESCRIPTION.document["components"]["schemas"])


def check_whole(component: str, value: object) -> None:
    """Hold a message against its component: all of its members are described."""
    schema = {"$ref": f"#/components/schemas/{component}", "components": {"schemas": COMPONENTS}}
    jsonschema_rs.validate(schema, value)


EXAMPLES = [
    (name, example)
    for name, schema in DESCRIPTION.document["components"]["schemas"].items()
    for example in schema.get("examples", ())
]


def test_messages_of_clients_have_examples_that_conform_to_them() -> None:
    named = {name for name, _ in EXAMPLES}
    assert {"Push", "PushReceipt", "Pull", "PullPage", "Delta", "Frame"} <= named
    for name, example in EXAMPLES:
        check_whole(name, example)


def test_examples_are_read_by_the_gateways_decoders() -> None:
    for name, example in EXAMPLES:
        body = json.dumps(example).encode()
        if name == "Push":
            push = jsonish.decode_push(body)
            assert (len(push.deltas), push.unreadable, push.epoch) == (2, (), example["epoch"])
        elif name == "Pull":
            assert jsonish.decode_pull(body).client_id == example["clientId"]
        elif name == "PullPage":
            assert jsonish.decode_page(body).count == 2
        elif name == "Frame":
            assert json_frames.decode_frame(body.decode()).tag == example["tag"]


@pytest.mark.parametrize(
    ("message", "component"),
    [("push", "Push"), ("receipt", "PushReceipt"), ("page", "PullPage"), ("broadcast", "PullPage")],
)
def test_every_member_of_a_message_is_described(message: str, component: str) -> None:
    vectors = json.loads((FOLDER / "wire.json").read_text("utf-8"))["cases"]
    for case in some(case for case in vectors if case["given"]["message"] == message):
        text = case["given"].get("json") or case["expect"]["json"]
        check_whole(component, json.loads(text))
        frame = case["given"].get("jsonFrame") or case["expect"]["jsonFrame"]
        check_whole("Frame", json.loads(frame))


def test_refusals_over_a_web_socket_are_described() -> None:
    vectors = json.loads((FOLDER / "wire.json").read_text("utf-8"))["cases"]
    for case in some(case for case in vectors if case["given"]["message"] == "refusal"):
        frame = json.loads(case["given"]["jsonFrame"])
        check_whole("Frame", frame)
        check_whole("Refusal", frame["body"])


def test_push_receipt_and_page_of_a_gateway_are_described() -> None:
    """Of everything that a receipt may say: accepted, a duplicate, refused."""
    column = {"column": "n", "value": 1}
    delta = {"op": "INSERT", "table": "todos", "rowId": "r1", "clientId": "c1"}
    deltas = [delta | {"columns": [column], "hlc": str(stamp)} for stamp in (65536, 65537)]
    refused = delta | {"columns": [column | {"value": "no number"}], "hlc": "65538"}
    with local_gateway.serve_gateway() as gateway:
        schema = {"table": "todos", "columns": [{"name": "n", "type": "number"}]}
        administrator(gateway.buffer).register_schema(local_gateway.GATEWAY, schema)
        headers = {"authorization": f"Bearer {gateway.token('c1')}"}
        address = f"{gateway.url}/sync/{local_gateway.GATEWAY}"
        with httpx.Client(headers=headers, trust_env=False) as sender:
            receipts = []
            for sent in ([deltas[0]], [*deltas, refused]):
                push = {"clientId": "c1", "deltas": sent, "atomic": False, "ownCursor": True}
                check_whole("Push", push)
                receipts.append(sender.post(f"{address}/push", json=push).json())
                check_whole("PushReceipt", receipts[-1])
            outcomes = {each["outcome"] for each in receipts[-1]["results"]}
            assert (receipts[-1]["accepted"], outcomes) == (2, {"duplicate", "refused"})
            pull = {"clientId": "c1", "snapshot": "begin", "limit": 1, "removes": True}
            check_whole("Pull", pull)
            begun = sender.post(f"{address}/pull", json=pull).json()
            check_whole("PullPage", begun)
            page = sender.get(f"{address}/pull?since=0&ownCursor=true").json()
            check_whole("PullPage", page)
            assert [each["rowId"] for each in page["deltas"]] == ["r1", "r1"]
            assert page["schemaVersion"]


@pytest.mark.parametrize(
    "served_at", ["https://api.example", "https://api.example/v1", "http://localhost/x/$default"]
)
def test_servers_of_the_document_are_beside_it(served_at: str) -> None:
    """So a stage's path, or `/v1`, that stands before the document stands before each address."""
    (server,) = DESCRIPTION.document["servers"]

    assert urljoin(f"{served_at}/openapi.json", server["url"]) == f"{served_at}/"


# --- addresses ------------------------------------------------------------------------------------


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
