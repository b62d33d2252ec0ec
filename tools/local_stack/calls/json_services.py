"""What AWS asks about calls whose body is JSON: Glue, SQS, secrets, state machines, events.

AWS: Service Authorization Reference, under the names of the services; for Glue's catalogue, the
AWS Glue Developer Guide, "Specifying AWS Glue resource ARNs": who works on a table needs the right
to its database and its catalogue too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tools.local_stack.calls.request import Question, Request, UnknownCallError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_ANY: Final = "*"
_SUFFIX: Final = "AbCdEf"
"""Six characters that AWS puts behind the name of a secret in its ARN."""

_DATABASES: Final = frozenset({"GetDatabase", "CreateDatabase", "UpdateDatabase", "DeleteDatabase"})
_TABLES: Final = frozenset({"GetTable", "CreateTable", "UpdateTable", "DeleteTable"})
_JOBS: Final = frozenset({"StartJobRun", "GetJobRun", "GetJobRuns", "BatchStopJobRun", "GetJob"})
_UNASKED: Final = frozenset({"sts:GetCallerIdentity"})


def json_questions(request: Request, operation: str) -> Iterator[Question]:
    """The questions about one call; none where AWS asks nothing.

    Raises:
        UnknownCallError: an operation that LakeSync does not call.
    """
    service = _SERVICES.get(request.service)
    if f"{request.service}:{operation}" in _UNASKED:
        return
    if service is None:
        raise UnknownCallError(f"{request.service} {operation}")
    yield from service(request, operation)


def _glue(request: Request, operation: str) -> Iterator[Question]:
    said = request.document
    for resource in _glue_resources(operation, said):
        yield Question(f"glue:{operation}", request.arn(resource))


def _glue_resources(operation: str, said: dict[str, Any]) -> list[str]:
    if operation in _JOBS:
        return [f"job/{said['JobName']}"]
    if operation == "GetDatabases":
        return ["catalog", "database/*"]
    if operation in _DATABASES:
        name = said.get("Name") or said["DatabaseInput"]["Name"]
        return ["catalog", f"database/{name}"]
    if operation in _TABLES or operation == "GetTables":
        database = said["DatabaseName"]
        table = "*" if operation == "GetTables" else said.get("Name") or said["TableInput"]["Name"]
        return ["catalog", f"database/{database}", f"table/{database}/{table}"]
    raise UnknownCallError(f"glue {operation}")


def _sqs(request: Request, operation: str) -> Iterator[Question]:
    # A batch is allowed by the right to its messages.
    action = operation.removesuffix("Batch")
    if action not in {
        *("SendMessage", "ReceiveMessage", "DeleteMessage", "ChangeMessageVisibility"),
        *("GetQueueAttributes", "GetQueueUrl"),
    }:
        raise UnknownCallError(f"sqs {operation}")
    said = {**request.form, **request.document}
    name = said.get("QueueName") or said["QueueUrl"].rpartition("/")[2]
    yield Question(f"sqs:{action}", request.arn(name))


def _secrets(request: Request, operation: str) -> Iterator[Question]:
    if operation not in {"GetSecretValue", "PutSecretValue", "CreateSecret", "DeleteSecret"}:
        raise UnknownCallError(f"secretsmanager {operation}")
    named = request.document.get("SecretId") or request.document["Name"]
    arn = named if named.startswith("arn:") else request.arn(f"secret:{named}-{_SUFFIX}")
    yield Question(f"secretsmanager:{operation}", arn)


def _states(request: Request, operation: str) -> Iterator[Question]:
    if operation not in {"StartExecution", "DescribeStateMachine"}:
        raise UnknownCallError(f"states {operation}")
    yield Question(f"states:{operation}", request.document["stateMachineArn"])


def _events(request: Request, operation: str) -> Iterator[Question]:
    if operation != "PutEvents":
        raise UnknownCallError(f"events {operation}")
    for entry in request.document["Entries"]:
        bus = entry.get("EventBusName") or "default"
        yield Question(
            "events:PutEvents", bus if bus.startswith("arn:") else request.arn(f"event-bus/{bus}")
        )


def _metrics(_: Request, operation: str) -> Iterator[Question]:
    if operation != "GetMetricData":
        raise UnknownCallError(f"cloudwatch {operation}")
    yield Question(f"cloudwatch:{operation}", _ANY)


_SERVICES: Final[dict[str, Callable[[Request, str], Iterator[Question]]]] = {
    "glue": _glue,
    "sqs": _sqs,
    "secretsmanager": _secrets,
    "states": _states,
    "events": _events,
    "monitoring": _metrics,
}
