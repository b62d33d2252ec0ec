"""The template as AWS's transform leaves it: what CloudFormation is really asked for."""

from __future__ import annotations

import copy
import functools
import json
import os
import subprocess
from typing import Any

from tests.infrastructure.stack import template
from tools.local_stack.emulator.template_patches import with_values
from tools.local_stack.paths import EMULATOR_PYTHON

# Local folders are uploaded before the transform sees the template; it takes addresses alone.
_LOCAL = ("CodeUri", "ContentUri", "DefinitionUri")
# In the environment that has SAM's own translator.
_TRANSFORM = """
import json, sys
from samtranslator.translator.transform import transform

class NoPolicies:
    def load(self):
        return {}

given = json.load(sys.stdin)
json.dump(transform(given["template"], given["parameters"], NoPolicies()), sys.stdout)
"""


@functools.cache
def transformed() -> dict[str, Any]:
    """Give the template after SAM's transform, with the parameters' defaults."""
    source = copy.deepcopy(template())
    return _after_sam(source, _defaults(source))


@functools.cache
def processed(layer: str = "key", **parameters: str) -> dict[str, Any]:
    """Give the template as AWS deploys it: parameters' values put in, then SAM's transform.

    Args:
        layer: the object that holds the library's layer, which is named by its content.
        parameters: those that are not as by default.
    """
    source = copy.deepcopy(template())
    values = _defaults(source) | parameters
    source["Resources"] = with_values(source["Resources"], values)
    source["Resources"]["LakesyncLayer"]["Properties"]["ContentUri"] = f"s3://bucket/{layer}"
    return _after_sam(source, values)


def _defaults(source: dict[str, Any]) -> dict[str, str]:
    return {name: str(each["Default"]) for name, each in source["Parameters"].items()}


def _after_sam(source: dict[str, Any], parameters: dict[str, str]) -> dict[str, Any]:
    source["Transform"] = "AWS::Serverless-2016-10-31"
    for resource in source["Resources"].values():
        for name in _LOCAL:
            if not str(resource.get("Properties", {}).get(name, "s3:")).startswith("s3:"):
                resource["Properties"][name] = "s3://bucket/key"
    answer = subprocess.run(
        [EMULATOR_PYTHON, "-c", _TRANSFORM],
        input=json.dumps({"template": source, "parameters": parameters}),
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"AWS_DEFAULT_REGION": "us-east-1"},
    )
    assert answer.returncode == 0, answer.stderr[-2000:]
    result: dict[str, Any] = json.loads(answer.stdout)
    return result


def made(kind: str) -> dict[str, dict[str, Any]]:
    """Give the properties of each resource of a type that the stack really has, by logical id."""
    return {
        name: resource.get("Properties", {})
        for name, resource in transformed()["Resources"].items()
        if resource["Type"] == kind
    }
