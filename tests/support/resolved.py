"""A transformed template's references worked out, as CloudFormation does for a deployed stack."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

NOTHING: Final = object()
"""What ``AWS::NoValue`` is; lists and mappings leave it out."""

_VARIABLE: Final = re.compile(r"\$\{([^!}]+)\}")
# The attribute `Arn` of resources whose physical id is no ARN: what stands before the id.
_ARNS: Final = {
    "AWS::DynamoDB::Table": "dynamodb:{region}:{account}:table/",
    "AWS::IAM::Role": "iam::{account}:role/",
    "AWS::Lambda::Function": "lambda:{region}:{account}:function:",
    "AWS::Logs::LogGroup": "logs:{region}:{account}:log-group:",
    "AWS::S3::Bucket": "s3:::",
}


class UnresolvedError(Exception):
    """A reference or function that is not worked out here."""


@dataclass(frozen=True)
class Deployed:
    template: Mapping[str, Any]
    parameters: Mapping[str, str]
    physical: Mapping[str, str]
    """The physical ids of its resources, by the logical."""
    stack_id: str
    region: str = "us-east-1"
    account: str = "000000000000"

    @property
    def stack(self) -> str:
        return self.stack_id.split("/")[1]

    def resources(self, kind: str, *properties: str) -> dict[str, dict[str, Any]]:
        return {
            name: self.value(
                {
                    named: value
                    for named, value in each.get("Properties", {}).items()
                    if not properties or named in properties
                }
            )
            for name, each in self.template["Resources"].items()
            if each["Type"] == kind and name in self.physical and self.met(each.get("Condition"))
        }

    def met(self, condition: str | None) -> bool:
        """Whether a condition of the template is met; None always is."""
        return condition is None or self._true(self.template["Conditions"][condition])

    def value(self, node: Any) -> Any:
        """Work out a part of the template.

        Raises:
            UnresolvedError: it has a reference that cannot be.
        """
        if isinstance(node, list):
            parts = [self.value(part) for part in node]
            return [part for part in parts if part is not NOTHING]
        if not isinstance(node, dict):
            return node
        if len(node) == 1:
            ((name, operand),) = node.items()
            if name == "Ref" or name.startswith("Fn::"):
                return self._call(name, operand)
        worked = {name: self.value(part) for name, part in node.items()}
        return {name: part for name, part in worked.items() if part is not NOTHING}

    def _call(self, name: str, operand: Any) -> Any:
        match name, operand:
            case "Ref", _:
                return self._ref(operand)
            case "Fn::GetAtt", _:
                parts = operand if isinstance(operand, list) else operand.split(".", 1)
                return self._attribute(*parts)
            case "Fn::If", [condition, yes, no]:
                return self.value(yes if self.met(condition) else no)
            case "Fn::Sub", _:
                return self._sub(operand)
            case "Fn::Join", [between, parts]:
                return between.join(self.value(parts))
            case "Fn::Select", [index, parts]:
                return self.value(parts)[int(index)]
            case "Fn::Split", [between, text]:
                return self.value(text).split(between)
            case "Fn::FindInMap", [table, *keys]:
                rows = self.template["Mappings"][table]
                first, second = (self.value(key) for key in keys)
                return self.value(rows[first][second])
        raise UnresolvedError(f"{name} {operand}")

    def _ref(self, name: str) -> Any:
        pseudo = {
            "AWS::AccountId": self.account,
            "AWS::NoValue": NOTHING,
            "AWS::Partition": "aws",
            "AWS::Region": self.region,
            "AWS::StackName": self.stack,
            "AWS::StackId": self.stack_id,
            "AWS::URLSuffix": "amazonaws.com",
        }
        if name in pseudo:
            return pseudo[name]
        if name in self.template["Parameters"]:
            declared = self.template["Parameters"][name]
            value = str(self.parameters.get(name, declared.get("Default", "")))
            listed = "List" in declared["Type"]
            return value.split(",") if listed else value
        if name in self.physical and self._is_secret(name):
            return self._secret(name)
        if name in self.physical:
            return self.physical[name]
        raise UnresolvedError(f"Ref {name}")

    def _is_secret(self, name: str) -> bool:
        kind: str = self.template["Resources"][name]["Type"]
        return kind == "AWS::SecretsManager::Secret"

    def _secret(self, name: str) -> str:
        """The ARN of a secret: the emulator knows it by its name, without AWS's six characters."""
        physical = self.physical[name]
        arn = f"arn:aws:secretsmanager:{self.region}:{self.account}:secret:{physical}-??????"
        return physical if physical.startswith("arn:") else arn

    def _attribute(self, name: str, attribute: str) -> Any:
        resource = self.template["Resources"][name]
        kind, physical = resource["Type"], self.physical.get(name, f"{self.stack}-{name}")
        if attribute == "Arn" and kind == "AWS::SQS::Queue":
            return f"arn:aws:sqs:{self.region}:{self.account}:{physical.rpartition('/')[2]}"
        if attribute == "StreamArn":
            return f"{self._attribute(name, 'Arn')}/stream/*"
        if attribute == "Arn" and kind in _ARNS:
            middle = _ARNS[kind].format(region=self.region, account=self.account)
            return f"arn:aws:{middle}{physical}"
        if self._is_secret(name):
            return self._secret(name)
        if attribute in {"Arn", "Id"} and physical.startswith("arn:"):
            return physical
        if attribute == "Value":
            return self.value(resource["Properties"]["Value"])
        if attribute == "QueueName":
            return physical.rpartition("/")[2]
        if kind.startswith("Custom::"):
            return f"{physical}.{attribute}"
        raise UnresolvedError(f"GetAtt {name}.{attribute} of {kind}")

    def _sub(self, operand: Any) -> str:
        text, own = operand if isinstance(operand, list) else (operand, {})

        def put(variable: re.Match[str]) -> str:
            name = variable[1].strip()
            if name in own:
                return str(self.value(own[name]))
            if "." in name:
                return str(self._attribute(*name.split(".", 1)))
            value = self._ref(name)
            # A list in a text is CloudFormation's list of one.
            return ",".join(value) if isinstance(value, list) else str(value)

        return _VARIABLE.sub(put, text)

    def _true(self, node: Any) -> bool:
        ((name, operand),) = node.items()
        match name:
            case "Condition":
                return self.met(operand)
            case "Fn::Equals":
                first, second = (self.value(part) for part in operand)
                return str(first) == str(second)
            case "Fn::Not":
                return not self._true(operand[0])
            case "Fn::And":
                return all(self._true(part) for part in operand)
            case "Fn::Or":
                return any(self._true(part) for part in operand)
        raise UnresolvedError(f"condition {node}")
