"""Declared actions, and the handlers that send a message: signed webhooks, AWS events and others.

To a handler that asks with `lakesync.connectors.http`, a vendor's answer means: refused, not begun,
or outcome unknown.

Webhooks are signed as `Standard Webhooks <https://www.standardwebhooks.com>`_ has them. The
receiver verifies ``webhook-signature`` with any library of that specification: an HMAC over the id,
the time and the body, so that nobody else can send one, or replay one later. The id is the same for
all attempts of one action: a receiver that drops ids that it has already seen gets each once.

In the operator's AWS account the stack's permissions, which its operator grants (parameter
``ActionTargets``), decide which buses, queues and state machines are reachable. Each call is made
once: a repeat uses the run's id, by which it is recognised.
"""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

from pydantic import Field, SecretStr, field_validator, model_validator

from lakesync.actions.engine import (
    NOT_DONE,
    UNKNOWN,
    Done,
    HandlerType,
    Looked,
    Run,
    SupportedAction,
    check_schema,
)
from lakesync.adapters.network import resolved_addresses
from lakesync.connectors.http import CREDENTIALS, Target, is_listed, target_of, trusted
from lakesync.connectors.port import Settings, signature_of, signing_key
from lakesync.errors import (
    ActionFailed,
    AdapterFailed,
    AdapterQuotaExceeded,
    AdapterRefused,
    AdapterUnreachable,
    LakeSyncError,
    NotFound,
    OutcomeUnknown,
    ValidationFailed,
)
from lakesync.result import Err, Ok, Result

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Self

    from lakesync.actions.engine import Run
    from lakesync.adapters.network import Resolve
    from lakesync.connectors.port import Outside
    from lakesync.result import Result

# --- declared actions -----------------------------------------------------------------------------


DECLARED_MAX = 50
"""Actions of one handler."""
DROPS_REPEATS: Any = Field(
    default=False,
    description="The receiver does nothing for an id that it has had: then what may have been sent "
    "is sent again, instead of leaving its outcome unknown.",
)
ActionName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]


class DeclaredAction(Settings):
    """One action: its name, and the schema of its parameters."""

    name: ActionName
    description: str = Field("", max_length=500)
    params: dict[str, Any] = Field(
        default_factory=lambda: {"type": "object"},
        description="A JSON Schema of the parameters, draft 2020-12 unless it says another.",
    )

    @field_validator("params")
    @classmethod
    def _is_schema(cls, value: dict[str, Any]) -> dict[str, Any]:
        try:
            check_schema(value)
        except ValidationFailed as error:
            raise ValueError(error.message) from None
        return value

    def supported(self) -> SupportedAction:
        return SupportedAction(self.name, self.description, self.params)


def message_of(run: Run, seconds: float) -> bytes:
    """Return an action as the JSON that outside systems receive.

    Args:
        seconds: the time of sending, since 1970.
    """
    body = {
        "id": run.run_id,
        "type": run.action,
        "timestamp": datetime.fromtimestamp(seconds, UTC).isoformat(),
        "gateway": run.gateway,
        "clientId": run.client_id,
        "user": run.user,
        "data": run.params,
    }
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


def unique(actions: Sequence[DeclaredAction]) -> None:
    """Refuse a name that is declared twice.

    Raises: ValueError: a name is declared twice.
    """
    names = [action.name for action in actions]
    if len(set(names)) < len(names):
        raise ValueError("an action is declared twice")


# --- answers of vendors ---------------------------------------------------------------------------


T = TypeVar("T")


def done(work: Callable[[], Mapping[str, Any]]) -> Result[Done, LakeSyncError]:
    """Do something; a refusal by the other side is final, and reported to the client."""
    try:
        return Ok(Done(work()))
    except LakeSyncError as error:
        return Err(meaning(error))


def written(write: Callable[[], T]) -> T:
    """Ask for a change.

    Raises:
        OutcomeUnknown: the request was sent, and no answer arrived that states the outcome.
        LakeSyncError: it was not carried out.
    """
    try:
        return write()
    except (AdapterUnreachable, AdapterQuotaExceeded, AdapterRefused):
        raise
    except AdapterFailed as error:
        raise OutcomeUnknown(error.message) from error


def meaning(error: LakeSyncError) -> LakeSyncError:
    if isinstance(error, AdapterRefused) and error.field == CREDENTIALS:
        # Somebody will mend them: the action stays open until then.
        return AdapterFailed(error.message, retry_after_s=60)
    if isinstance(error, AdapterRefused | NotFound):
        return ActionFailed(error.message)
    return error


# --- webhooks and AWS -----------------------------------------------------------------------------


# --- webhooks -------------------------------------------------------------------------------------


ANSWER_BYTES_MAX: Final = 65_536
"""What of a receiver's answer is read."""
WAIT_S_MAX: Final = 3_600
"""How long a receiver may ask for patience."""
CONNECT_S_MAX: Final = 3.0
"""How long connecting may take, out of an action's time: nothing has happened before."""
_OK: Final = range(200, 300)
_LATER: Final = frozenset({429, 503})
_NOT_DONE: Final = range(300, 500)


class WebhookSettings(Settings):
    """Where webhooks go, and how they are signed."""

    url: str = Field(max_length=2_000, description="https, at a host that the operator allows.")
    secret: SecretStr = Field(description="whsec_ and base64 of 24 to 64 random bytes.")
    actions: list[DeclaredAction] = Field(min_length=1, max_length=DECLARED_MAX)
    drops_repeats: bool = DROPS_REPEATS

    @field_validator("secret")
    @classmethod
    def _is_secret(cls, value: SecretStr) -> SecretStr:
        signing_key(value.get_secret_value())
        return value

    @model_validator(mode="after")
    def _sound(self) -> Self:
        unique(self.actions)
        if not self.url.startswith(("https://", "http://")):
            raise ValueError("url begins with https://")
        return self


class Webhook:
    """`lakesync.actions.ActionHandler` that posts to a URL."""

    def __init__(
        self,
        settings: WebhookSettings,
        allowed: tuple[str, ...],
        resolve: Resolve = resolved_addresses,
    ) -> None:
        self._settings = settings
        self._allowed = allowed
        self._resolve = resolve

    def supported_actions(self) -> list[SupportedAction]:
        return [action.supported() for action in self._settings.actions]

    def execute(self, run: Run) -> Result[Done, LakeSyncError]:
        import httpx  # noqa: PLC0415 - only who posts needs it

        try:
            target = target_of(self._settings.url, self._allowed, self._resolve)
        except AdapterRefused as error:
            return Err(ActionFailed(error.message))
        seconds = time.time()
        body = message_of(run, seconds)
        headers = {
            "content-type": "application/json",
            "user-agent": "lakesync",
            "webhook-id": run.run_id,
            "webhook-timestamp": str(int(seconds)),
            "webhook-signature": signature_of(
                self._settings.secret.get_secret_value(), run.run_id, int(seconds), body
            ),
        }
        try:
            return _post(target, headers, body, run.seconds)
        except (httpx.ConnectError, httpx.ConnectTimeout) as exc:
            return Err(AdapterUnreachable(f"{target.host} was not reached: {exc}"))
        except httpx.HTTPError as exc:
            return Err(OutcomeUnknown(f"{target.host} gave no answer: {type(exc).__name__}"))

    def lookup(self, run: Run) -> Result[Looked, LakeSyncError]:
        """Tell that it may be sent again, if its receiver drops what it has had."""
        del run
        return Ok(NOT_DONE if self._settings.drops_repeats else UNKNOWN)

    def close(self) -> None:
        """Hold nothing."""


def _post(
    target: Target, headers: dict[str, str], body: bytes, seconds: float
) -> Result[Done, LakeSyncError]:
    import httpx  # noqa: PLC0415 - only who posts needs it

    address = f"[{target.address}]" if ":" in target.address else target.address
    url = f"{target.scheme}://{address}:{target.port}{target.path}"
    deadline = time.monotonic() + seconds - 1
    timeout = httpx.Timeout(seconds - 2, connect=CONNECT_S_MAX)
    # The connection uses the address that was checked; the certificate must be the host's.
    extensions = {"sni_hostname": target.host}
    named = {**headers, "host": target.authority}
    with (
        httpx.Client(
            timeout=timeout, follow_redirects=False, trust_env=False, verify=trusted()
        ) as client,
        client.stream("POST", url, content=body, headers=named, extensions=extensions) as answer,
    ):
        raw = b""
        for part in answer.iter_bytes():
            raw += part
            if len(raw) > ANSWER_BYTES_MAX or time.monotonic() > deadline:
                break
        return _meaning(target.host, answer.status_code, answer.headers.get("retry-after"), raw)


def _meaning(
    host: str, status: int, retry_after: str | None, raw: bytes
) -> Result[Done, LakeSyncError]:
    if status in _OK:
        return Ok(Done({"status": status, "body": _read(raw)}))
    if status in _LATER:
        wait_s = int(retry_after) if retry_after and retry_after.isdecimal() else None
        message = f"{host} answered {status}: it accepts no more for now"
        return Err(AdapterQuotaExceeded(
            message, retry_after_s=None if wait_s is None else min(wait_s, WAIT_S_MAX)
        ))  # fmt: skip
    if status in _NOT_DONE:
        message = json.dumps(_read(raw[:500]), ensure_ascii=False)
        return Err(ActionFailed(f"the receiver refused it with {status}: {message[:300]}"))
    return Err(OutcomeUnknown(f"{host} answered {status}: it failed, perhaps after it was done"))


def _read(raw: bytes) -> Any:
    """Return an answer's JSON value, else its text, as far as it was read."""
    text = raw[:ANSWER_BYTES_MAX].decode("utf-8", "replace")
    if len(raw) > ANSWER_BYTES_MAX:
        return text
    try:
        return json.loads(text) if text else None
    except (ValueError, RecursionError):
        return text


def _make(settings: WebhookSettings, outside: Outside) -> Webhook:
    if not is_listed(settings.url, outside.hosts):
        raise ValidationFailed(
            "the operator of this stack does not allow webhooks to that host: ask for it to be "
            "listed in ActionHosts",
            field="configuration.url",
        )
    return Webhook(settings, outside.hosts)


WEBHOOK: Final = HandlerType("webhook", "Signed webhook", WebhookSettings, _make)


# --- EventBridge, SQS and Step Functions ----------------------------------------------------------


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
            raise _aws_meaning(self.service, code, status) from exc
        except (exceptions.EndpointConnectionError, exceptions.ConnectTimeoutError) as exc:
            raise AdapterUnreachable(f"{self.service} was not reached: {exc}") from exc
        except exceptions.BotoCoreError as exc:
            raise OutcomeUnknown(f"{self.service} gave no answer: {exc}") from exc


class EventBridge(_Handler):
    """`lakesync.actions.ActionHandler` that puts an event on a bus."""

    service = "events"

    def execute(self, run: Run) -> Result[Done, LakeSyncError]:
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
        return Err(_aws_meaning(self.service, code, _SERVER_ERROR if "Internal" in code else 0))


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


def _aws_meaning(service: str, code: str, status: int) -> LakeSyncError:
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
