"""The roles of a deployed stack with their statements, and what AWS itself asks of each.

Lambda reads queues and streams, writes logs and sends what failed elsewhere with the function's own
role; the scheduler and Step Functions use the roles that they are given. No function makes those
calls, so they are read off the transformed template.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tests.support.policies import Statement
from tests.support.repository import ROOT
from tools.local_stack.calls.request import Question
from tools.local_stack.calls.rest_services import schedule_question

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.resolved import Deployed

_LOGS: Final = ("logs:CreateLogGroup", "logs:CreateLogStream", "logs:PutLogEvents")
_TRACES: Final = ("xray:PutTraceSegments", "xray:PutTelemetryRecords")
_NETWORK: Final = (
    *("ec2:CreateNetworkInterface", "ec2:DescribeNetworkInterfaces"),
    *("ec2:DeleteNetworkInterface", "ec2:DescribeSubnets"),
)
# AWS Managed Policy Reference: what matters here of AWS's own policies.
_AWS: Final = {
    "AWSLambdaBasicExecutionRole": _LOGS,
    "AWSLambdaVPCAccessExecutionRole": (*_LOGS, *_NETWORK),
    "AWSXrayWriteOnlyAccess": _TRACES,
    "AWSXRayDaemonWriteAccess": _TRACES,
    "AmazonAPIGatewayPushToCloudWatchLogs": _LOGS,
}
# Lambda Developer Guide: the rights that a mapping of each kind of source needs.
_READS_QUEUE: Final = ("sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes")
_READS_STREAM: Final = (
    *("dynamodb:DescribeStream", "dynamodb:GetRecords", "dynamodb:GetShardIterator"),
)
# Step Functions Developer Guide, "Integrating services": what a task needs of its machine's role.
_TASKS: Final = {
    "lambda:invoke": (("lambda:InvokeFunction",), "FunctionName"),
    "states:startExecution": (("states:StartExecution",), "StateMachineArn"),
    "glue:startJobRun": (("glue:StartJobRun",), "JobName"),
    "glue:startJobRun.sync": (
        ("glue:StartJobRun", "glue:GetJobRun", "glue:GetJobRuns", "glue:BatchStopJobRun"),
        "JobName",
    ),
    "aws-sdk:glue:getJobRuns": (("glue:GetJobRuns",), "JobName"),
    "aws-sdk:s3:listObjectsV2": (("s3:ListBucket",), "Bucket"),
}
# Step Functions Developer Guide, "Logging": of a machine that writes a log.
_LOG_DELIVERY: Final = tuple(
    f"logs:{name}"
    for name in (
        *("CreateLogDelivery", "GetLogDelivery", "UpdateLogDelivery", "DeleteLogDelivery"),
        *("ListLogDeliveries", "PutResourcePolicy", "DescribeResourcePolicies"),
        *("DescribeLogGroups",),
    )
)

_OF_FUNCTIONS: Final = ("Role", "LoggingConfig", "VpcConfig", "TracingConfig", "DeadLetterConfig")


class Granted(NamedTuple):
    """A statement, and where the template has it."""

    where: str
    """The logical id of the role or policy, and what it allows: `PullRole s3:GetObject`; the second
    statement with the same actions ends in ` (2)`."""
    ours: bool
    """Whether the template has it, and not one of AWS's own policies."""
    statement: Statement


def roles(deployed: Deployed) -> dict[str, list[Granted]]:
    """Return what each role may do, by the role's name in the deployed stack."""
    made = deployed.resources("AWS::IAM::Role")
    granted: dict[str, list[Granted]] = {}
    shared = {
        deployed.physical.get(name, name): _statements(name, properties["PolicyDocument"])
        for name, properties in deployed.resources("AWS::IAM::ManagedPolicy").items()
    }
    for name, properties in made.items():
        mine = granted.setdefault(deployed.physical[name], [])
        documents = [policy["PolicyDocument"] for policy in properties.get("Policies", [])]
        written = [statement for document in documents for statement in document["Statement"]]
        mine += _statements(name, {"Statement": written})
        for arn in properties.get("ManagedPolicyArns", []):
            mine += shared[arn] if arn in shared else _of_aws(arn)
    for kind in ("AWS::IAM::Policy", "AWS::IAM::ManagedPolicy"):
        for name, properties in deployed.resources(kind).items():
            for role in properties.get("Roles", []):
                granted[role] += _statements(name, properties["PolicyDocument"])
    return granted


def _statements(name: str, document: dict[str, Any]) -> list[Granted]:
    written = document["Statement"]
    listed = written if isinstance(written, list) else [written]
    named: Counter[str] = Counter()
    granted = []
    for statement in map(Statement.of, listed):
        where = " ".join((name, *statement.actions))
        named[where] += 1
        again = f" ({named[where]})" if named[where] > 1 else ""
        granted.append(Granted(where + again, True, statement))
    return granted


def _of_aws(arn: str) -> list[Granted]:
    name = arn.rpartition("/")[2]
    return [Granted(name, False, Statement("Allow", _AWS[name], ("*",), {}))]


def asked_by_aws(deployed: Deployed) -> Iterator[Question]:
    """Return what AWS asks on its own behalf of each role: at least what the template says."""
    functions = {
        deployed.physical[name]: (name, properties)
        for name, properties in deployed.resources("AWS::Lambda::Function", *_OF_FUNCTIONS).items()
    }
    for name, properties in functions.values():
        yield from _function(deployed, name, properties)
    for properties in deployed.resources("AWS::Lambda::EventSourceMapping").values():
        function = properties["FunctionName"].split(":function:")[-1].split(":")[0]
        yield from _source(properties, _role(functions[function][1]["Role"]))
    for properties in deployed.resources("AWS::Lambda::EventInvokeConfig").values():
        role = _role(functions[properties["FunctionName"]][1]["Role"])
        for destination in properties.get("DestinationConfig", {}).values():
            yield Question("sqs:SendMessage", destination["Destination"], role=role)
    for properties in deployed.resources("AWS::Scheduler::Schedule").values():
        target = properties["Target"]
        yield schedule_question(target["Arn"], target["RoleArn"])
        if "DeadLetterConfig" in target:
            queue, role = target["DeadLetterConfig"]["Arn"], _role(target["RoleArn"])
            yield Question("sqs:SendMessage", queue, role=role)
    for properties in deployed.resources("AWS::Glue::Job", "Role", "DefaultArguments").values():
        logs = properties["DefaultArguments"].get("--custom-logGroup-prefix", "/aws-glue/jobs")
        resource = _arn(deployed, "logs", f"log-group:{logs}/error:log-stream:run")
        yield from _each(_LOGS, resource, _role(properties["Role"]))
    for name, properties in deployed.resources("AWS::StepFunctions::StateMachine").items():
        yield from _machine(deployed, name, properties)


def _function(deployed: Deployed, name: str, properties: dict[str, Any]) -> Iterator[Question]:
    role = _role(properties["Role"])
    group = properties.get("LoggingConfig", {}).get("LogGroup", f"/aws/lambda/{name}")
    stream = _arn(deployed, "logs", f"log-group:{group}:log-stream:one")
    yield from _each(_LOGS[1:], stream, role)
    if "VpcConfig" in properties:
        yield from _each(_NETWORK, "*", role)
    if properties.get("TracingConfig", {}).get("Mode") == "Active":
        yield from _each(_TRACES, "*", role)
    if "DeadLetterConfig" in properties:
        yield Question("sqs:SendMessage", properties["DeadLetterConfig"]["TargetArn"], role=role)


def _source(properties: dict[str, Any], role: str) -> Iterator[Question]:
    source = properties["EventSourceArn"]
    if ":sqs:" in source:
        yield from _each(_READS_QUEUE, source, role)
    else:
        yield from _each(_READS_STREAM, source, role)
        # Service Authorization Reference: it takes no resource.
        yield Question("dynamodb:ListStreams", "*", role=role)
    failed = properties.get("DestinationConfig", {}).get("OnFailure")
    if failed:
        yield Question("sqs:SendMessage", failed["Destination"], role=role)


def _machine(deployed: Deployed, name: str, properties: dict[str, Any]) -> Iterator[Question]:
    role = _role(properties["RoleArn"])
    text = definition_file(name).read_text()
    for variable, value in properties["DefinitionSubstitutions"].items():
        text = text.replace(f"${{{variable}}}", str(value))
    # A machine that starts itself finds its own name in its execution's context.
    text = text.replace("{% $states.context.StateMachine.Id %}", deployed.physical[name])
    for task in tasks(json.loads(text)):
        yield from _task(deployed, task, role)
    if properties.get("LoggingConfiguration", {}).get("Level", "OFF") != "OFF":
        yield from _each(_LOG_DELIVERY, "*", role)
    if properties.get("TracingConfiguration", {}).get("Enabled"):
        yield from _each(_TRACES, "*", role)


def definition_file(machine: str) -> Path:
    snake = "".join(f"_{one.lower()}" if one.isupper() else one for one in machine).lstrip("_")
    return ROOT / "stepfunctions" / f"{snake}.asl.json"


def tasks(machine: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for state in machine["States"].values():
        if state["Type"] == "Task":
            yield state
        if "ItemProcessor" in state:
            yield from tasks(state["ItemProcessor"])


def _task(deployed: Deployed, task: dict[str, Any], role: str) -> Iterator[Question]:
    actions, named = _TASKS[task["Resource"].partition(":states:::")[2]]
    arguments = task.get("Arguments") or task.get("Parameters") or {}
    said = arguments[named]
    context: tuple[tuple[str, tuple[str, ...]], ...] = ()
    if named == "JobName":
        said = _arn(deployed, "glue", f"job/{said}")
    if named == "Bucket":
        said = f"arn:aws:s3:::{said}"
        context = (("s3:prefix", (arguments["Prefix"],)),)
    # An expression may choose between several.
    targets = re.findall(r"'(arn:[^']+)'", said) if said.startswith("{%") else [said]
    assert targets, f"a task whose target is not known: {said}"
    for action in actions:
        for target in targets:
            yield Question(action, target, context, role)


def _each(actions: tuple[str, ...], resource: str, role: str) -> Iterator[Question]:
    for action in actions:
        yield Question(action, resource, role=role)


def _arn(deployed: Deployed, service: str, resource: str) -> str:
    return f"arn:aws:{service}:{deployed.region}:{deployed.account}:{resource}"


def _role(arn: str) -> str:
    return arn.rpartition("/")[2]
