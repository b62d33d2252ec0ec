"""The template as AWS's transform leaves it: what CloudFormation is really asked for."""

from __future__ import annotations

import atexit
import copy
import functools
import json
import os
import subprocess
from typing import Any

from tests.infrastructure.stack import template
from tests.support.some import some
from tools.local_stack.emulator.template_patches import with_values
from tools.local_stack.paths import EMULATOR_PYTHON

# Local folders are uploaded before the transform sees the template; it takes addresses alone.
_LOCAL = ("CodeUri", "ContentUri", "DefinitionUri")
# In the environment that has SAM's own translator, whose import takes longer than a template does.
_TRANSFORM = """
import json, sys, traceback
from samtranslator.translator.transform import transform

class NoPolicies:
    def load(self):
        return {}

for line in sys.stdin:
    given = json.loads(line)
    try:
        answer = transform(given["template"], given["parameters"], NoPolicies())
    except Exception:
        answer = {"failed": traceback.format_exc()}
    print(json.dumps(answer), flush=True)
"""


@functools.cache
def _translator() -> subprocess.Popen[str]:
    """Start SAM's translator: a template a line in, as it is after the transform a line out."""
    process = subprocess.Popen(
        [EMULATOR_PYTHON, "-c", _TRANSFORM],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env=os.environ | {"AWS_DEFAULT_REGION": "us-east-1"},
    )  # fmt: skip
    atexit.register(process.communicate)
    return process


@functools.cache
def transformed() -> dict[str, Any]:
    """Return the template after SAM's transform, with the parameters' defaults."""
    source = copy.deepcopy(template())
    return _after_sam(source, _defaults(source))


@functools.cache
def processed(layer: str = "key", **parameters: str) -> dict[str, Any]:
    """Return the template as AWS deploys it: parameters' values put in, then SAM's transform.

    What starts the functions is left out: it is no part of their versions, and takes SAM's
    translator nine tenths of its time.

    Args:
        layer: the object that holds the library's layer, which is named by its content.
        parameters: those that are not as by default.
    """
    source = copy.deepcopy(template())
    values = _defaults(source) | parameters
    source["Resources"] = with_values(source["Resources"], values)
    for resource in source["Resources"].values():
        resource.get("Properties", {}).pop("Events", None)
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
    translator = _translator()
    assert translator.stdin is not None
    assert translator.stdout is not None
    print(
        json.dumps({"template": source, "parameters": parameters}),
        file=translator.stdin,
        flush=True,
    )
    answer: dict[str, Any] = json.loads(translator.stdout.readline())
    assert "failed" not in answer, answer["failed"][-2000:]
    return answer


def made(kind: str) -> dict[str, dict[str, Any]]:
    """Return the properties of each resource of a type that the stack really has, by logical id.

    There are some.
    """
    every: dict[str, dict[str, Any]] = transformed()["Resources"]
    return dict(
        some((name, each.get("Properties", {})) for name, each in every.items()
             if each["Type"] == kind)
    )  # fmt: skip
