"""The template as Python values, for tests that ask it questions."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any

import yaml

from tests.support.repository import ROOT
from tests.support.some import some

if TYPE_CHECKING:
    from collections.abc import Iterator


class _Loader(yaml.SafeLoader):
    """YAML with CloudFormation's short forms: ``!Ref x`` is ``{"Ref": "x"}``."""


def _short_form(loader: _Loader, tag: str, node: yaml.Node) -> dict[str, Any]:
    if isinstance(node, yaml.MappingNode):
        value: Any = loader.construct_mapping(node, deep=True)
    elif isinstance(node, yaml.SequenceNode):
        value = loader.construct_sequence(node, deep=True)
    else:
        value = node.value
    if tag == "GetAtt" and isinstance(value, str):
        value = value.split(".")
    return {tag if tag in {"Ref", "Condition"} else f"Fn::{tag}": value}


_Loader.add_multi_constructor("!", _short_form)


@functools.cache
def template() -> dict[str, Any]:
    """Return the whole template."""
    loaded: dict[str, Any] = yaml.load((ROOT / "template.yaml").read_text(), _Loader)  # noqa: S506 - a SafeLoader
    return loaded


def resources(kind: str) -> dict[str, dict[str, Any]]:
    """Return the resources of one type, by logical id; there are some."""
    every: dict[str, dict[str, Any]] = template()["Resources"]
    return dict(some((name, each) for name, each in every.items() if each["Type"] == kind))


def functions() -> dict[str, dict[str, Any]]:
    """Return each function's properties, those of ``Globals`` beneath its own."""
    shared = template()["Globals"]["Function"]
    return {
        name: shared | resource["Properties"]
        for name, resource in resources("AWS::Serverless::Function").items()
    }


def folder_of(properties: dict[str, Any]) -> str:
    return str(properties["CodeUri"]).removeprefix("functions/")


def statements() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every statement that allows something to a function, job or state machine of ours."""
    for name, resource in template()["Resources"].items():
        properties = resource.get("Properties", {})
        for policy in properties.get("Policies", []):
            if "Fn::If" in policy:  # the ARN of an operator's own policy, if there is one
                continue
            document = policy.get("PolicyDocument", policy)
            for statement in document["Statement"]:
                # One that depends on a parameter is `!If [condition, statement, nothing]`.
                yield name, statement.get("Fn::If", [statement, statement])[1]


def watched() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what each alarm looks at, by the alarm's name."""
    for name, alarm in resources("AWS::CloudWatch::Alarm").items():
        yield name, alarm["Properties"]


def alarms_on(namespace: str, metric: str) -> list[Any]:
    """Return the first dimension's values that alarms watch for a metric."""
    return [
        one["Dimensions"][0]["Value"]
        for _, one in watched()
        if (one["Namespace"], one["MetricName"]) == (namespace, metric)
    ]


def part(place: int, parameter: str) -> dict[str, Any]:
    """Return how the template takes one of a parameter's values, which have commas between."""
    return {"Fn::Select": [place, {"Fn::Split": [",", {"Ref": parameter}]}]}


def accepts(parameter: str, value: str) -> bool:
    """Return whether CloudFormation takes a value for a parameter that has a pattern."""
    pattern = template()["Parameters"][parameter]["AllowedPattern"]
    return re.fullmatch(pattern, value) is not None


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def refusals(parameters: dict[str, str]) -> list[str]:
    """Return why CloudFormation would not begin to deploy with such parameters."""
    declared: dict[str, Any] = template()["Parameters"]
    values = {name: str(each["Default"]) for name, each in declared.items()} | parameters
    return [
        assertion["AssertDescription"]
        for rule in template()["Rules"].values()
        if _value(rule["RuleCondition"], values)
        for assertion in rule["Assertions"]
        if not _value(assertion["Assert"], values)
    ]


def _value(expression: Any, parameters: dict[str, str]) -> Any:
    """Work out a condition of the template, as CloudFormation does."""
    if not isinstance(expression, dict):
        return expression
    ((function, operand),) = expression.items()
    if function == "Ref":
        return parameters[operand]
    operands = [_value(each, parameters) for each in operand]
    if function == "Fn::Not":
        return not operands[0]
    if function in {"Fn::And", "Fn::Or"}:
        return all(operands) if function == "Fn::And" else any(operands)
    assert function == "Fn::Equals"
    return operands[0] == operands[1]
