"""HTTP APIs as SAM writes them: routes and CORS inside an OpenAPI body."""

# The emulator's own names are private; names.py watches over them.
# ruff: noqa: SLF001

from __future__ import annotations

import json
import logging
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from tools.local_stack.emulator.names import emulator_module

if TYPE_CHECKING:
    from collections.abc import Callable

_INTERNAL_SERVER_ERROR = {
    "statusCode": 500,
    "headers": {"Content-Type": "application/json"},
    "body": json.dumps({"message": "Internal Server Error"}),
}
_LOGGER = logging.getLogger("local_stack.http_api")
_BODY_IS_BYTES: ContextVar[bool] = ContextVar("lakesync_body_is_bytes", default=False)
_BODY_AT = 6
"""The body's place among the arguments of the emulator's call of a function."""
_ANY_METHOD = "x-amazon-apigateway-any-method"
_INTEGRATION = "x-amazon-apigateway-integration"


def import_http_api_bodies() -> None:
    """AWS: an HTTP API imports the OpenAPI document in its `Body`, and applies its CORS rules.

    The emulator drops `Body`, so that an API made from SAM's `HttpApi` events has no routes, and
    keeps `CorsConfiguration` under names that its own data plane does not read.
    """
    provisioners = emulator_module("ministack.services.cloudformation.provisioners")
    handlers = provisioners._RESOURCE_HANDLERS["AWS::ApiGatewayV2::Api"]
    # create(logical_id, properties, stack); update(physical_id, old, new, stack, …)
    handlers["create"] = _importing(handlers["create"], properties_at=1)
    handlers["update"] = _importing(handlers["update"], properties_at=2)


def keep_functions_errors_inside() -> None:
    """AWS: a function that fails is `500 {"message": "Internal Server Error"}` to the caller.

    The emulator answers 502 with the exception and its stack trace, which no caller should see or
    come to rely on. They are written to the emulator's log instead, beside the function's own.
    """
    service = emulator_module("ministack.services.lambda_svc")
    original = service.lambda_execute_result_to_api_proxy_response

    def respond(result: dict[str, Any]) -> Any:
        if result.get("error") and not result.get("throttle"):
            _LOGGER.error("a function failed behind an API: %s", json.dumps(result.get("body")))
            return _INTERNAL_SERVER_ERROR, None
        return original(result)

    service.lambda_execute_result_to_api_proxy_response = respond


def keep_the_bytes_of_bodies() -> None:
    """Not known of AWS: what is no text is handed over as base64, whatever its content type says.

    The emulator decodes a body of JSON or text by replacing what is not UTF-8, so that gzip is
    destroyed and other text is stored than was sent. What API Gateway does is not documented.
    """
    gateway = emulator_module("ministack.services.apigateway")
    invoke, is_text = gateway._invoke_lambda_proxy, gateway._v2_request_body_is_text

    async def invoke_with_bytes(*args: Any, **kwargs: Any) -> Any:
        token = _BODY_IS_BYTES.set(not _is_utf_8(args[_BODY_AT]))
        try:
            return await invoke(*args, **kwargs)
        finally:
            _BODY_IS_BYTES.reset(token)

    gateway._invoke_lambda_proxy = invoke_with_bytes
    gateway._v2_request_body_is_text = lambda kind: is_text(kind) and not _BODY_IS_BYTES.get()


def _is_utf_8(body: bytes | None) -> bool:
    try:
        (body or b"").decode()
    except UnicodeDecodeError:
        return False
    return True


def _importing(handler: Callable[..., Any], *, properties_at: int) -> Callable[..., Any]:
    gateway = emulator_module("ministack.services.apigateway")

    def handle(*args: Any, **kwargs: Any) -> tuple[str, dict[str, Any]]:
        api_id, attributes = handler(*args, **kwargs)
        api = gateway._apis.get(api_id)
        if api is not None:
            _apply(api, api_id, args[properties_at])
        return api_id, attributes

    return handle


def _apply(api: dict[str, Any], api_id: str, properties: dict[str, Any]) -> None:
    if isinstance(api.get("corsConfiguration"), dict):
        api["corsConfiguration"] = {_camel(k): v for k, v in api["corsConfiguration"].items()}
    body = properties.get("Body")
    if isinstance(body, dict):
        if body.get("x-amazon-apigateway-cors"):
            api["corsConfiguration"] = dict(body["x-amazon-apigateway-cors"])
        _import_body(api_id, body)


def _camel(name: str) -> str:
    return name[:1].lower() + name[1:]


def _import_body(api_id: str, body: dict[str, Any]) -> None:
    gateway = emulator_module("ministack.services.apigateway")
    for store in (gateway._routes, gateway._integrations, gateway._authorizers):
        store[api_id] = {}
    schemes = (body.get("components") or {}).get("securitySchemes") or {}
    authorizers = {
        name: _create_authorizer(api_id, name, scheme) for name, scheme in schemes.items()
    }
    for path, methods in (body.get("paths") or {}).items():
        for method, operation in methods.items():
            integration = (operation or {}).get(_INTEGRATION)
            if integration:
                _create_route(api_id, path, method, operation, integration, authorizers)


def _create_authorizer(api_id: str, name: str, scheme: dict[str, Any]) -> dict[str, Any]:
    """One security scheme as an authorizer; what a route says to use it."""
    provisioners = emulator_module("ministack.services.cloudformation.provisioners")
    declared = scheme.get("x-amazon-apigateway-authorizer") or {}
    jwt = declared.get("jwtConfiguration") or {}
    source = declared.get("identitySource") or "$request.header.Authorization"
    is_jwt = declared.get("type") == "jwt"
    _, attributes = provisioners._apigw_v2_authorizer_create(
        name,
        {
            "ApiId": api_id,
            "Name": name,
            "AuthorizerType": "JWT" if is_jwt else "REQUEST",
            # In a document several sources are one string; in the API they are a list.
            "IdentitySource": source
            if isinstance(source, list)
            else [s.strip() for s in source.split(",")],
            "JwtConfiguration": {
                "Audience": jwt.get("audience", []),
                "Issuer": jwt.get("issuer", ""),
            },
            "AuthorizerUri": declared.get("authorizerUri", ""),
            "AuthorizerPayloadFormatVersion": str(
                declared.get("authorizerPayloadFormatVersion", "2.0")
            ),
            "AuthorizerResultTtlInSeconds": declared.get("authorizerResultTtlInSeconds", 300),
            "EnableSimpleResponses": declared.get("enableSimpleResponses", False),
        },
        "",
    )
    return {
        "AuthorizationType": "JWT" if is_jwt else "CUSTOM",
        "AuthorizerId": attributes["AuthorizerId"],
    }


def _create_route(
    api_id: str,
    path: str,
    method: str,
    operation: dict[str, Any],
    integration: dict[str, Any],
    authorizers: dict[str, dict[str, Any]],
) -> None:
    provisioners = emulator_module("ministack.services.cloudformation.provisioners")
    _, attributes = provisioners._apigw_v2_integration_create(
        path,
        {
            "ApiId": api_id,
            "IntegrationType": integration.get("type", "aws_proxy").upper(),
            "IntegrationUri": integration.get("uri", ""),
            "PayloadFormatVersion": str(integration.get("payloadFormatVersion", "2.0")),
        },
        "",
    )
    verb = "ANY" if method == _ANY_METHOD else method.upper()
    route = {
        "ApiId": api_id,
        "Target": f"integrations/{attributes['IntegrationId']}",
        "RouteKey": "$default" if path == "$default" else f"{verb} {path}",
    }
    for requirement in operation.get("security") or []:
        for name, scopes in requirement.items():
            if name in authorizers:
                route.update(authorizers[name], AuthorizationScopes=scopes)
    provisioners._apigw_v2_route_create(path, route, "")
