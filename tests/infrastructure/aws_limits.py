"""AWS's limits on what a stack is made of, and how much of each the transformed template uses.

An emulator counts nothing, so what it lets through AWS may refuse. Every resource is counted,
whatever its condition, and each of both branches of an ``If`` that is longer: what a stack with
every option on would use. Names are as long as CloudFormation makes them for a stack whose own name
has 40 characters.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tests.infrastructure.transformed import transformed
from tests.support.repository import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

STACK: Final = "lakesync-production-of-the-whole-company"
_PSEUDO: Final = {
    "AWS::Partition": "aws",
    "AWS::Region": "ap-southeast-2",
    "AWS::AccountId": "123456789012",
    "AWS::URLSuffix": "amazonaws.com",
    "AWS::StackName": STACK,
    "AWS::StackId": f"arn:aws:cloudformation:ap-southeast-2:123456789012:stack/{STACK}/" + 36 * "0",
    "AWS::NoValue": "",
}
_RANDOM: Final = "-ABCDEFGHIJKL"
_NAME_CHARS_MAX: Final = 64
_HOUR_S: Final = 3_600


class Use(NamedTuple):
    """What a part of the stack uses of one limit."""

    limit: str
    of: str
    used: int
    most: int


LIMITS: Final[dict[str, tuple[int, str]]] = {
    "resources of a stack": (500, "CloudFormation quotas"),
    "parameters of a stack": (200, "CloudFormation quotas"),
    "outputs of a stack": (200, "CloudFormation quotas"),
    "mappings of a stack": (200, "CloudFormation quotas"),
    "bytes of a template on S3": (1_048_576, "CloudFormation quotas"),
    "bytes of a parameter's description": (4_000, "CloudFormation, Parameters"),
    "bytes of a function's resource policy": (20_480, "Lambda quotas"),
    "bytes of a function's environment": (4_096, "Lambda quotas"),
    "layers of a function": (5, "Lambda quotas"),
    "filters of an event source": (5, "Lambda, event filtering"),
    "characters of an event source's filter": (4_096, "Lambda, event filtering"),
    "characters of a role's inline policies": (10_240, "IAM quotas"),
    "characters of a role's trust policy": (2_048, "IAM quotas"),
    "managed policies of a role": (10, "IAM quotas"),
    "routes of an API": (300, "API Gateway quotas"),
    "authorisers of an API": (10, "API Gateway quotas"),
    "alarms of a dashboard's alarm widget": (100, "CloudWatch, dashboard body structure"),
    "widgets of a dashboard": (500, "CloudWatch quotas"),
    "metrics of a dashboard's widget": (500, "CloudWatch quotas"),
    "metrics of a dashboard": (2_500, "CloudWatch quotas"),
    "seconds that an alarm of short periods looks at": (86_400, "CloudWatch, PutMetricAlarm"),
    "days that an alarm of periods of an hour or more looks at": (7, "CloudWatch, PutMetricAlarm"),
    "metrics of an alarm": (10, "CloudWatch, PutMetricAlarm"),
    "bytes of a state machine": (1_048_576, "Step Functions quotas"),
    "characters of an event pattern": (2_048, "EventBridge quotas"),
    "characters of a log group's name": (512, "CloudWatch Logs, CreateLogGroup"),
    "bytes of a bucket's policy": (20_480, "S3, bucket policies"),
    "lifecycle rules of a bucket": (1_000, "S3, lifecycle configuration"),
}
"""By what is limited: the most, and the page of AWS's documentation that says so."""


def uses() -> Iterator[Use]:
    """Return what the template uses of each limit; at least one use of each."""
    whole = transformed()
    every = whole["Resources"]
    yield _use("resources of a stack", "the stack", len(every))
    yield _use("parameters of a stack", "the stack", len(whole["Parameters"]))
    yield _use("outputs of a stack", "the stack", len(whole["Outputs"]))
    yield _use("mappings of a stack", "the stack", len(whole["Mappings"]))
    yield _use("bytes of a template on S3", "the stack", len(json.dumps(whole)))
    for name, parameter in whole["Parameters"].items():
        text = parameter.get("Description", "")
        yield _use("bytes of a parameter's description", name, len(text.encode()))
    yield from _resource_policies(every)
    for path in sorted((ROOT / "stepfunctions").glob("*.asl.json")):
        yield _use("bytes of a state machine", path.name, len(path.read_bytes()))
    for name, resource in every.items():
        yield from _of_resource(name, resource["Type"], resource.get("Properties", {}))
    yield from _inline_policies(every)


def _use(limit: str, of: str, used: int) -> Use:
    return Use(limit, of, used, LIMITS[limit][0])


def _resource_policies(every: dict[str, Any]) -> Iterator[Use]:
    """Return the bytes of each function's or alias's policy, into which permissions are written."""
    total: Counter[str] = Counter()
    for name, resource in every.items():
        if resource["Type"] == "AWS::Lambda::Permission":
            asked = resource["Properties"]
            statement = {
                "Sid": f"{STACK}-{name}{_RANDOM}",
                "Effect": "Allow",
                "Principal": {"Service": asked["Principal"]},
                "Action": "lambda:InvokeFunction",
                "Resource": _written(asked["FunctionName"]),
                "Condition": {"ArnLike": {"AWS:SourceArn": _written(asked.get("SourceArn", ""))}},
            }
            total[json.dumps(asked["FunctionName"])] += len(_json(statement)) + 1
    frame = len(_json({"Version": "2012-10-17", "Id": "default", "Statement": []}))
    for function, size in total.items():
        yield _use("bytes of a function's resource policy", function, size + frame)


def _inline_policies(every: dict[str, Any]) -> Iterator[Use]:
    """Return the characters of each role's inline policies, those of other resources included."""
    total: Counter[str] = Counter()
    for name, resource in every.items():
        asked = resource.get("Properties", {})
        if resource["Type"] == "AWS::IAM::Role":
            total[name] += sum(
                len(_json(_resolved(one.get("PolicyDocument", one))))
                for one in asked.get("Policies", [])
            )
        if resource["Type"] == "AWS::IAM::Policy":
            for role in asked["Roles"]:
                total[role["Ref"]] += len(_json(_resolved(asked["PolicyDocument"])))
    for role, size in total.items():
        yield _use("characters of a role's inline policies", role, size)


def _of_resource(name: str, kind: str, asked: dict[str, Any]) -> Iterator[Use]:
    reader = _READERS.get(kind)
    if reader:
        for limit, used in reader(asked):
            yield _use(limit, name, used)


def _function(asked: dict[str, Any]) -> Iterator[tuple[str, int]]:
    variables = _resolved(asked.get("Environment", {}).get("Variables", {}))
    size = sum(len(name) + len(str(value)) for name, value in variables.items())
    yield "bytes of a function's environment", size
    yield "layers of a function", len(asked.get("Layers", []))


def _mapping(asked: dict[str, Any]) -> Iterator[tuple[str, int]]:
    filters = asked.get("FilterCriteria", {}).get("Filters", [])
    yield "filters of an event source", len(filters)
    for one in filters:
        yield "characters of an event source's filter", len(one["Pattern"])


def _role(asked: dict[str, Any]) -> Iterator[tuple[str, int]]:
    yield (
        "characters of a role's trust policy",
        len(_json(_resolved(asked["AssumeRolePolicyDocument"]))),
    )
    yield "managed policies of a role", len(asked.get("ManagedPolicyArns", []))


def _api(asked: dict[str, Any]) -> Iterator[tuple[str, int]]:
    body = asked.get("Body", {})
    routes = [verb for path in body.get("paths", {}).values() for verb in path]
    yield "routes of an API", len(routes)
    schemes = body.get("components", {}).get("securitySchemes", {})
    yield "authorisers of an API", len(schemes)


def _dashboard(asked: dict[str, Any]) -> Iterator[tuple[str, int]]:
    widgets = dashboard_widgets(asked)
    metrics = [len(one["properties"].get("metrics", [])) for one in widgets]
    yield "widgets of a dashboard", len(widgets)
    yield "metrics of a dashboard", sum(metrics)
    for number in metrics:
        yield "metrics of a dashboard's widget", number
    for one in widgets:
        if one["type"] == "alarm":
            yield "alarms of a dashboard's alarm widget", len(one["properties"]["alarms"])


def dashboard_widgets(asked: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the widgets of a dashboard's body, names of resources left as they are."""
    body = asked["DashboardBody"]["Fn::Sub"]
    text = body if isinstance(body, str) else body[0]
    widgets: list[dict[str, Any]] = json.loads(text)["widgets"]
    return widgets


def _alarm(asked: dict[str, Any]) -> Iterator[tuple[str, int]]:
    metrics = asked.get("Metrics", [])
    periods = [one["MetricStat"]["Period"] for one in metrics if "MetricStat" in one]
    period = asked.get("Period") or max(periods)
    seconds = period * asked["EvaluationPeriods"]
    if period < _HOUR_S:
        yield "seconds that an alarm of short periods looks at", seconds
    else:
        days = -(-seconds // (24 * _HOUR_S))
        yield "days that an alarm of periods of an hour or more looks at", days
    yield "metrics of an alarm", len(metrics)


def _rule(asked: dict[str, Any]) -> Iterator[tuple[str, int]]:
    yield "characters of an event pattern", len(_json(_resolved(asked["EventPattern"])))


def _log_group(asked: dict[str, Any]) -> Iterator[tuple[str, int]]:
    # One that CloudFormation names is far below.
    yield "characters of a log group's name", len(str(_resolved(asked.get("LogGroupName", ""))))


def _bucket_policy(asked: dict[str, Any]) -> Iterator[tuple[str, int]]:
    yield "bytes of a bucket's policy", len(_json(_resolved(asked["PolicyDocument"])))


def _bucket(asked: dict[str, Any]) -> Iterator[tuple[str, int]]:
    rules = asked.get("LifecycleConfiguration", {}).get("Rules", [])
    yield "lifecycle rules of a bucket", len(rules)


_READERS: Final = {
    "AWS::Lambda::Function": _function,
    "AWS::Lambda::EventSourceMapping": _mapping,
    "AWS::IAM::Role": _role,
    "AWS::ApiGatewayV2::Api": _api,
    "AWS::CloudWatch::Dashboard": _dashboard,
    "AWS::CloudWatch::Alarm": _alarm,
    "AWS::Events::Rule": _rule,
    "AWS::Logs::LogGroup": _log_group,
    "AWS::S3::BucketPolicy": _bucket_policy,
    "AWS::S3::Bucket": _bucket,
}


# --- what stands in a document once CloudFormation has put values in ------------------------------


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _written(value: Any) -> str:
    return str(_resolved(value))


def _resolved(value: Any) -> Any:
    """Return a value with text in place of each intrinsic function, as long as it may become."""
    if isinstance(value, list):
        return [_resolved(each) for each in value]
    if not isinstance(value, dict):
        return value
    (name, asked), *more = value.items() or [("", None)]
    if more or not (name == "Ref" or name.startswith("Fn::")):
        return {name: _resolved(each) for name, each in value.items()}
    return _INTRINSIC[name](asked) if name in _INTRINSIC else _NAME_CHARS_MAX * "x"


def _chosen(asked: list[Any]) -> Any:
    return max((_resolved(each) for each in asked[1:]), key=lambda each: len(_json(each)))


def _joined(asked: list[Any]) -> str:
    between, parts = asked
    resolved = _resolved(parts)
    return resolved if isinstance(resolved, str) else between.join(map(str, resolved))


def _reference(name: str) -> str:
    if name in _PSEUDO:
        return _PSEUDO[name]
    parameters = transformed()["Parameters"]
    if name in parameters:
        return str(parameters[name].get("Default", "")) or _NAME_CHARS_MAX * "x"
    # An alias is an ARN; all else is a name, an id or a URL with a name.
    return _attribute(name) if "Alias" in name else _name(name)


def _name(logical: str) -> str:
    return f"{STACK}-{logical}"[: _NAME_CHARS_MAX - len(_RANDOM)] + _RANDOM


def _attribute(logical: str) -> str:
    region, account = _PSEUDO["AWS::Region"], _PSEUDO["AWS::AccountId"]
    return f"arn:aws:lambda:{region}:{account}:function:{_name(logical)}:live"


def _substituted(value: Any) -> str:
    text, given = (value, {}) if isinstance(value, str) else value

    def put(match: re.Match[str]) -> str:
        name = match[1]
        if name in given:
            return _written(given[name])
        return _attribute(name.split(".")[0]) if "." in name else _reference(name)

    return re.sub(r"\$\{([^!}]+)\}", put, text)


_INTRINSIC: Final[dict[str, Callable[[Any], Any]]] = {
    "Ref": _reference,
    "Fn::GetAtt": lambda asked: _attribute(
        (asked if isinstance(asked, list) else asked.split("."))[0]
    ),
    "Fn::Sub": _substituted,
    "Fn::If": _chosen,
    "Fn::Join": _joined,
}
