"""What actions do in AWS: an event, a message, an execution, and what its failures mean."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from botocore import exceptions

from lakesync.actions import Done, Outside, Run
from lakesync.actions.declared_actions import EVENTBRIDGE, SQS, STEP_FUNCTIONS
from lakesync.actions.engine import NOT_DONE, UNKNOWN
from lakesync.connectors.registry import configured
from lakesync.errors import (
    ActionFailed,
    AdapterQuotaExceeded,
    AdapterRefused,
    AdapterUnreachable,
    OutcomeUnknown,
    ValidationFailed,
)
from lakesync.result import Ok

if TYPE_CHECKING:
    from lakesync.actions import ActionHandler, HandlerType
    from lakesync.errors import LakeSyncError

RUN = Run("0" * 32, "g", "phone 1/ü", "ann", "ship", {"order": 7}, 10.0)
ACTIONS = [{"name": "ship"}]
ARN = "arn:aws:{}:eu-west-1:123456789012:{}"
MACHINE = ARN.format("states", "stateMachine:ship")


class Client:
    """An AWS client that answers as it is told."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def __getattr__(self, operation: str) -> Any:
        def call(**request: Any) -> Any:
            self.asked.append((operation, request))
            if isinstance(self.answer, Exception):
                raise self.answer
            return self.answer

        return call


def handler(kind: HandlerType, client: Client | None, **settings: Any) -> ActionHandler:
    """Make a handler whose calls go to a client."""
    aws = None if client is None else lambda _: client
    return kind.make(configured(kind, {"actions": ACTIONS, **settings}), Outside(aws=aws))


def sqs(client: Client | None, name: str = "ships") -> ActionHandler:
    url = f"https://sqs.eu-west-1.amazonaws.com/123456789012/{name}"
    return handler(SQS, client, queueUrl=url)


def refusal(code: str, status: int = 400) -> exceptions.ClientError:
    answer: Any = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return exceptions.ClientError(answer, "Call")


@pytest.mark.law("X8")
def test_an_event_is_put_on_its_bus() -> None:
    client = Client({"FailedEntryCount": 0, "Entries": [{"EventId": "e1"}]})
    made = handler(EVENTBRIDGE, client, bus=ARN.format("events", "event-bus/apps"), source="shop")

    assert made.execute(RUN) == Ok(Done({"eventId": "e1"}))
    entry = client.asked[0][1]["Entries"][0]
    assert (entry["Source"], entry["DetailType"]) == ("shop", "ship")
    detail = json.loads(entry["Detail"])
    assert (detail["id"], detail["data"], detail["user"]) == (RUN.run_id, {"order": 7}, "ann")


@pytest.mark.law("X8")
@pytest.mark.parametrize(
    ("code", "error"),
    [("ThrottlingException", AdapterQuotaExceeded), ("InternalFailure", OutcomeUnknown),
     ("NotAuthorizedForSourceException", ActionFailed)],
)  # fmt: skip
def test_refused_event_entry_raises_an_error_by_its_code(
    code: str, error: type[LakeSyncError]
) -> None:
    client = Client({"FailedEntryCount": 1, "Entries": [{"ErrorCode": code}]})
    made = handler(EVENTBRIDGE, client, bus=ARN.format("events", "event-bus/apps"), source="shop")

    with pytest.raises(error):
        made.execute(RUN).unwrap()


@pytest.mark.law("X8")
def test_message_is_sent_and_fifo_messages_are_grouped_by_client() -> None:
    client = Client({"MessageId": "m1"})
    assert sqs(client).execute(RUN) == Ok(Done({"messageId": "m1"}))
    assert sqs(client, "ships.fifo").execute(RUN) == Ok(Done({"messageId": "m1"}))

    plain, ordered = (asked[1] for asked in client.asked)
    assert "MessageGroupId" not in plain
    assert ordered["MessageDeduplicationId"] == RUN.run_id
    assert ordered["MessageGroupId"] == "g-phone_1/?"


@pytest.mark.law("X3", "X8")
@pytest.mark.parametrize(
    ("raised", "error"),
    [
        (refusal("ThrottlingException"), AdapterQuotaExceeded),
        (refusal("AccessDenied", 403), ActionFailed),
        (refusal("InternalError", 500), OutcomeUnknown),
        (exceptions.ReadTimeoutError(endpoint_url="x"), OutcomeUnknown),
        (exceptions.ConnectionClosedError(endpoint_url="x"), OutcomeUnknown),
        (exceptions.EndpointConnectionError(endpoint_url="x"), AdapterUnreachable),
        (exceptions.ConnectTimeoutError(endpoint_url="x"), AdapterUnreachable),
    ],
)
def test_aws_failure_is_translated_and_not_retried(
    raised: Exception, error: type[LakeSyncError]
) -> None:
    client = Client(raised)
    with pytest.raises(error):
        sqs(client).execute(RUN).unwrap()
    assert len(client.asked) == 1


@pytest.mark.law("X3", "X8")
def test_execution_is_named_by_its_run_and_started_once() -> None:
    client = Client({"executionArn": "arn:1"})
    made = handler(STEP_FUNCTIONS, client, stateMachine=MACHINE)
    assert made.execute(RUN) == Ok(Done({"executionArn": "arn:1"}))
    assert client.asked[0][1]["name"] == RUN.run_id

    client.answer = refusal("ExecutionAlreadyExists")
    arn = f"{ARN.format('states', 'execution:ship')}:{RUN.run_id}"
    assert made.execute(RUN) == Ok(Done({"executionArn": arn}))
    client.answer = {"type": "STANDARD"}
    assert made.lookup(RUN) == Ok(NOT_DONE)
    client.answer = {"type": "EXPRESS"}
    assert made.lookup(RUN) == Ok(UNKNOWN)
    client.answer = refusal("StateMachineDoesNotExist")
    with pytest.raises(ActionFailed, match="StateMachineDoesNotExist"):
        made.execute(RUN)


@pytest.mark.law("X8")
@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (EVENTBRIDGE, {"bus": "default", "source": "shop"}),
        (EVENTBRIDGE, {"bus": ARN.format("events", "event-bus/apps"), "source": "aws.s3"}),
        (SQS, {"queueUrl": "https://sqs.eu-west-1.amazonaws.com/ships"}),
        (STEP_FUNCTIONS, {"stateMachine": "ship"}),
    ],
)
def test_configuration_without_a_valid_target_is_refused(
    kind: HandlerType, settings: dict[str, Any]
) -> None:
    with pytest.raises(ValidationFailed):
        handler(kind, None, **settings)
    with pytest.raises(AdapterRefused):
        sqs(None).execute(RUN)
