"""Actions in the operator's AWS account: events, messages, executions.

The stack's permissions, which its operator grants (parameter ``ActionTargets``), decide which
buses, queues and state machines are reachable. Each call is made once: a repeat uses the run's id,
by which it is recognised.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from pydantic import Field, field_validator, model_validator

from lakesync.actions.handlers.common import (
    DECLARED_MAX,
    DROPS_REPEATS,
    DeclaredAction,
    message_of,
    unique,
)
from lakesync.actions.port import (
    NOT_DONE,
    UNKNOWN,
    Done,
    HandlerType,
    Looked,
    Run,
    SupportedAction,
)
from lakesync.connectors.sql.sql_settings import Settings
from lakesync.errors import (
    ActionFailed,
    AdapterQuotaExceeded,
    AdapterRefused,
    AdapterUnreachable,
    LakeSyncError,
    OutcomeUnknown,
)
from lakesync.result import Err, Ok, Result

if TYPE_CHECKING:
    from typing import Self

    from lakesync.connectors.port import Outside

_SERVER_ERROR: Final = 500
_GROUP_CHARACTERS_MAX: Final = 128


class AwsSettings(Settings):
    """What all of these have in common."""

    actions: list[DeclaredAction] = Field(min_length=1, max_length=DECLARED_MAX)
    drops_repeats: bool = DROPS_REPEATS

    @model_validator(mode="after")
    def _once(self) -> Self:
        unique(self.actions)
        return self


class EventBridgeSettings(AwsSettings):
    """Where events go."""

    bus: str = Field(
        pattern=r"^arn:[a-z-]+:events:[a-z0-9-]+:[0-9]{12}:event-bus/[A-Za-z0-9_./-]+$"
    )
    source: str = Field(
        pattern=r"^[A-Za-z0-9_./-]+$", max_length=256, description="The events' source."
    )

    @field_validator("source")
    @classmethod
    def _not_of_aws(cls, value: str) -> str:
        if value.startswith("aws."):
            raise ValueError("sources that begin with aws. are those of AWS itself")
        return value


class SqsSettings(AwsSettings):
    """Where messages go."""

    queue_url: str = Field(pattern=r"^https?://[^\s?#]+/[0-9]{12}/[A-Za-z0-9_-]{1,80}(\.fifo)?$")


class StepFunctionsSettings(AwsSettings):
    """What is started."""

    state_machine: str = Field(
        pattern=r"^arn:[a-z-]+:states:[a-z0-9-]+:\d{12}:stateMachine:[\w-]+$"
    )


class _Handler:
    """What these handlers have in common."""

    service: str

    def __init__(self, settings: Any, outside: Outside) -> None:
        self._settings = settings
        self._outside = outside

    def supported_actions(self) -> list[SupportedAction]:
        """Return the declared actions."""
        return [action.supported() for action in self._settings.actions]

    def lookup(self, run: Run) -> Result[Looked, LakeSyncError]:
        """Return whether it may be sent again, because its receiver drops duplicates."""
        del run
        return Ok(NOT_DONE if self._settings.drops_repeats else UNKNOWN)

    def close(self) -> None:
        """Hold nothing."""

    def _client(self) -> Any:
        if self._outside.aws is None:
            raise AdapterRefused("this gateway calls no AWS services")
        return self._outside.aws(self.service)

    def _call(self, operation: str, **request: Any) -> Any:
        """Ask AWS, once.

        Raises:
            LakeSyncError: it did not happen, or the outcome is unknown.
        """
        from botocore import exceptions  # noqa: PLC0415 - only who asks AWS needs it

        try:
            return getattr(self._client(), operation)(**request)
        except exceptions.ClientError as exc:
            code = exc.response.get("Error", {}).get("Code", "")
            status = exc.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            raise _meaning(self.service, code, status) from exc
        except (exceptions.EndpointConnectionError, exceptions.ConnectTimeoutError) as exc:
            raise AdapterUnreachable(f"{self.service} was not reached: {exc}") from exc
        except exceptions.BotoCoreError as exc:
            raise OutcomeUnknown(f"{self.service} gave no answer: {exc}") from exc


class EventBridge(_Handler):
    """`lakesync.actions.ActionHandler` that puts an event on a bus."""

    service = "events"

    def execute(self, run: Run) -> Result[Done, LakeSyncError]:
        """Put the event."""
        entry = {
            "EventBusName": self._settings.bus,
            "Source": self._settings.source,
            "DetailType": run.action,
            "Detail": message_of(run, time.time()).decode(),
        }
        answer = self._call("put_events", Entries=[entry])["Entries"][0]
        if "EventId" in answer:
            return Ok(Done({"eventId": answer["EventId"]}))
        code = str(answer.get("ErrorCode"))
        return Err(_meaning(self.service, code, _SERVER_ERROR if "Internal" in code else 0))


class Sqs(_Handler):
    """`lakesync.actions.ActionHandler` that sends a message."""

    service = "sqs"

    def execute(self, run: Run) -> Result[Done, LakeSyncError]:
        """Send the message; to a FIFO queue in the order of its client's actions."""
        request = {
            "QueueUrl": self._settings.queue_url,
            "MessageBody": message_of(run, time.time()).decode(),
        }
        if self._settings.queue_url.endswith(".fifo"):
            group = f"{run.gateway}-{run.client_id}".encode("ascii", "replace").decode()
            request["MessageGroupId"] = group.replace(" ", "_")[:_GROUP_CHARACTERS_MAX]
            request["MessageDeduplicationId"] = run.run_id
        return Ok(Done({"messageId": self._call("send_message", **request)["MessageId"]}))


class StepFunctions(_Handler):
    """`lakesync.actions.ActionHandler` that starts an execution, named by the run's id."""

    service = "stepfunctions"

    def execute(self, run: Run) -> Result[Done, LakeSyncError]:
        """Start it. A standard machine accepts a name once: a used name shows an earlier start."""
        machine = self._settings.state_machine
        try:
            answer = self._call(
                "start_execution", stateMachineArn=machine, name=run.run_id,
                input=message_of(run, time.time()).decode(),
            )  # fmt: skip
        except ActionFailed as error:
            if "ExecutionAlreadyExists" not in error.message:
                raise
            arn = machine.replace(":stateMachine:", ":execution:")
            return Ok(Done({"executionArn": f"{arn}:{run.run_id}"}))
        return Ok(Done({"executionArn": answer["executionArn"]}))

    def lookup(self, run: Run) -> Result[Looked, LakeSyncError]:
        """Tell that a standard machine may be started again: its executions' names are unique."""
        machine = self._call("describe_state_machine", stateMachineArn=self._settings.state_machine)
        return Ok(NOT_DONE) if machine["type"] == "STANDARD" else super().lookup(run)


def _meaning(service: str, code: str, status: int) -> LakeSyncError:
    if "Throttl" in code or "LimitExceeded" in code:
        return AdapterQuotaExceeded(f"{service} accepts no more for now: {code}")
    if status >= _SERVER_ERROR:
        return OutcomeUnknown(f"{service} failed: {code}")
    return ActionFailed(f"{service} refused it ({code}): ask the operator of this stack")


EVENTBRIDGE: Final = HandlerType(
    "eventbridge", "Amazon EventBridge", EventBridgeSettings, EventBridge
)
SQS: Final = HandlerType("sqs", "Amazon SQS", SqsSettings, Sqs)
STEP_FUNCTIONS: Final = HandlerType(
    "stepfunctions", "AWS Step Functions", StepFunctionsSettings, StepFunctions
)
