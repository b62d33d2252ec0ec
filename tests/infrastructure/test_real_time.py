"""What API Gateway does for WebSockets by itself, and that nothing holds a broadcast back."""

from __future__ import annotations

import json

import pytest

from lakesync.wire import json_frames, proto
from lakesync.wire.proto import Tag
from tests.infrastructure.stack import resources


@pytest.mark.law("T7")
def test_api_gateway_answers_keep_alives_without_a_function() -> None:
    """As its documentation has it: "Set up a WebSocket API integration request", "… response"."""
    api = resources("AWS::Serverless::WebSocketApi")["SocketApi"]["Properties"]
    route, integration, answer, response = (
        resources(f"AWS::ApiGatewayV2::{kind}")[name]["Properties"]
        for kind, name in (
            ("Route", "KeepAliveRoute"),
            ("Integration", "KeepAlive"),
            ("IntegrationResponse", "KeepAliveAnswer"),
            ("RouteResponse", "KeepAliveAnswered"),
        )
    )

    chosen = json.loads(proto.KEEP_ALIVE)
    assert api["RouteSelectionExpression"] == "$request.body.action"
    assert (route["RouteKey"], route["Target"]) == (
        chosen["action"],
        {"Fn::Sub": "integrations/${KeepAlive}"},
    )
    assert integration["IntegrationType"] == "MOCK"
    assert json.loads(integration["RequestTemplates"]["$default"]) == {"statusCode": 200}
    # Only a route that has a response is answered at all, and of mocks each needs one of both.
    assert route["RouteResponseSelectionExpression"] == "$default"
    assert (response["RouteId"], response["RouteResponseKey"]) == (
        {"Ref": "KeepAliveRoute"},
        "$default",
    )
    assert (answer["IntegrationId"], answer["IntegrationResponseKey"]) == (
        {"Ref": "KeepAlive"},
        "$default",
    )
    assert answer["ResponseTemplates"] == {"$default": proto.KEEP_ALIVE_ANSWER}
    # What the expression gives chooses the template; an unescaped dollar begins a variable.
    for chooses in (integration, answer):
        assert chooses["TemplateSelectionExpression"] == "\\$default"
    assert all(each["ApiId"] == {"Ref": "SocketApi"} for each in (route, answer, response))


@pytest.mark.law("W8")
def test_frames_match_no_custom_route_and_reach_the_frames_function() -> None:
    """A frame is base64, or JSON without an action."""
    api = resources("AWS::Serverless::WebSocketApi")["SocketApi"]["Properties"]
    keys = {"$connect", "$disconnect", "$default"}

    assert api["Routes"].keys() == keys
    for tag in Tag:
        with pytest.raises(ValueError, match="Expecting value"):
            json.loads(proto.encode_frame(tag, b"message"))
        assert "action" not in json.loads(json_frames.encode_frame(tag, b"{}", 1))


@pytest.mark.law("T5")
def test_stream_source_has_no_batching_window() -> None:
    """A stream's records are handed on at once: AWS's default window is 0 s."""
    source = resources("AWS::Lambda::EventSourceMapping")["NotifySource"]["Properties"]

    assert "MaximumBatchingWindowInSeconds" not in source
