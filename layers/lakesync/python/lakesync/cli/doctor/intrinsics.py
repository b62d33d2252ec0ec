"""Evaluates CloudFormation's functions in a deployed template.

Only the functions for names of resources and permissions: ``Ref``, ``GetAtt`` of names and ARNs,
``Sub``, ``Join``, ``If``, ``FindInMap`` and the conditions. Anything else is `Unresolved`, never
guessed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_VARIABLE: Final = re.compile(r"\$\{(!?)([^}]+)\}")
_ARN_FORMS: Final = {
    "AWS::DynamoDB::Table": "arn:{partition}:dynamodb:{region}:{account}:table/{name}",
    "AWS::SQS::Queue": "arn:{partition}:sqs:{region}:{account}:{name}",
    "AWS::S3::Bucket": "arn:{partition}:s3:::{name}",
    "AWS::Lambda::Function": "arn:{partition}:lambda:{region}:{account}:function:{name}",
    "AWS::Logs::LogGroup": "arn:{partition}:logs:{region}:{account}:log-group:{name}:*",
    "AWS::IAM::Role": "arn:{partition}:iam::{account}:role/{name}",
    "AWS::KMS::Key": "arn:{partition}:kms:{region}:{account}:key/{name}",
}


class Unresolved(ValueError):
    """A value that only CloudFormation knows."""


@dataclass(frozen=True)
class Names:
    """The values of the names in a template.

    Attributes:
        template: the processed template.
        parameters: each parameter's value.
        resources: each resource's physical id; those that a condition left out are not there.
        outputs: each output's value, which says what attributes are that an output shows.
        partition: ``aws``, as a rule.
        region: where the stack is.
        account: whose it is.
        stack: its name.
    """

    template: Mapping[str, Any]
    parameters: Mapping[str, str]
    resources: Mapping[str, str]
    outputs: Mapping[str, str]
    partition: str
    region: str
    account: str
    stack: str

    def value(self, node: Any) -> Any:
        """Work a value out.

        Raises:
            Unresolved: it depends on what is not known here.
        """
        if isinstance(node, list):
            return [self.value(part) for part in node]
        if not isinstance(node, dict):
            return node
        if len(node) == 1:
            [(name, argument)] = node.items()
            if name in _FUNCTIONS:
                return _FUNCTIONS[name](self, argument)
            if name.startswith("Fn::"):
                raise Unresolved(name)
        return {name: self.value(part) for name, part in node.items()}

    def holds(self, condition: Any) -> bool:
        """Evaluate a condition, by its name or its definition."""
        if isinstance(condition, str):
            return self.holds(self.template["Conditions"][condition])
        return bool(self.value(condition))

    def ref(self, name: str) -> str:
        """Return the value of ``Ref``."""
        pseudo = {
            "AWS::Partition": self.partition,
            "AWS::Region": self.region,
            "AWS::AccountId": self.account,
            "AWS::StackName": self.stack,
            "AWS::NoValue": "",
        }
        for names in (pseudo, self.parameters, self.resources):
            if name in names:
                return names[name]
        raise Unresolved(name)

    def attribute(self, path: list[str]) -> str:
        """Return the value of ``GetAtt`` for attributes that are names or ARNs."""
        logical, attribute = path[0], ".".join(path[1:])
        if (shown := self._shown.get((logical, attribute))) is not None:
            return shown
        physical = self.ref(logical)
        if attribute == "Id" or (attribute == "Arn" and physical.startswith("arn:")):
            return physical
        name = physical.rpartition("/")[2] if "://" in physical else physical
        if attribute in {"QueueName", "Name"}:
            return name
        form = _ARN_FORMS.get(self.template["Resources"][logical]["Type"])
        if attribute != "Arn" or form is None:
            raise Unresolved(f"{logical}.{attribute}")
        return form.format(
            partition=self.partition, region=self.region, account=self.account, name=name
        )

    @cached_property
    def _shown(self) -> dict[tuple[str, str], str]:
        """The attributes that outputs show, with their values."""
        shown = {}
        for name, output in self.template.get("Outputs", {}).items():
            path = output["Value"].get("Fn::GetAtt") if isinstance(output["Value"], dict) else None
            if path and name in self.outputs:
                logical, attribute = path.split(".", 1) if isinstance(path, str) else path
                shown[logical, attribute] = self.outputs[name]
        return shown

    def substituted(self, argument: Any) -> str:
        """Return the value of ``Sub``."""
        text, own = argument if isinstance(argument, list) else (argument, {})

        def replaced(match: re.Match[str]) -> str:
            literal, name = match[1], match[2]
            if literal:
                return "${" + name + "}"
            if name in own:
                return str(self.value(own[name]))
            return self.attribute(name.split(".")) if "." in name else self.ref(name)

        return _VARIABLE.sub(replaced, text)


def _chosen(names: Names, argument: list[Any]) -> Any:
    condition, then, otherwise = argument
    return names.value(then if names.holds(condition) else otherwise)


def _get_att(names: Names, argument: Any) -> str:
    return names.attribute(argument if isinstance(argument, list) else argument.split("."))


def _equals(names: Names, argument: list[Any]) -> bool:
    one, other = map(names.value, argument)
    return str(one) == str(other)


def _in_map(names: Names, argument: list[Any]) -> Any:
    where, key, inner = map(names.value, argument)
    return names.template["Mappings"][where][key][inner]


_FUNCTIONS: Final[dict[str, Callable[[Names, Any], Any]]] = {
    "Ref": Names.ref,
    "Condition": Names.holds,
    "Fn::GetAtt": _get_att,
    "Fn::Sub": Names.substituted,
    "Fn::If": _chosen,
    "Fn::Join": lambda names, argument: argument[0].join(map(str, names.value(argument[1]))),
    "Fn::FindInMap": _in_map,
    "Fn::Equals": _equals,
    "Fn::Not": lambda names, argument: not names.holds(argument[0]),
    "Fn::And": lambda names, argument: all(names.holds(part) for part in argument),
    "Fn::Or": lambda names, argument: any(names.holds(part) for part in argument),
}
