"""Where the sources call AWS, as a search of their syntax trees sees it."""

from __future__ import annotations

import ast
import functools
from typing import TYPE_CHECKING, Final, NamedTuple

import botocore.session
from botocore import xform_name

from tests.support.repository import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

SERVICES: Final = (
    *("apigatewaymanagementapi", "athena", "cloudformation", "cloudwatch", "dynamodb", "events"),
    *("glue", "iam", "kms", "lambda", "logs", "s3", "s3tables", "scheduler", "secretsmanager"),
    *("service-quotas", "sns", "sqs", "ssm", "stepfunctions", "sts"),
)
"""Those of AWS's services of which the sources make clients, and some that they might."""

FOLDERS: Final = ("functions", "glue_jobs", "layers/lakesync/python/lakesync")
# Calls that name an operation by a text.
_BY_NAME: Final = frozenset({"get_paginator", "generate_presigned_url", "get_waiter"})

# Names of one word, which as texts are taken for operations; others of one word may be anything.
_SHORT: Final = frozenset({"Query", "Scan"})


class Site(NamedTuple):
    """A place that calls an operation."""

    file: str
    line: int
    operation: str


@functools.cache
def methods() -> dict[str, list[tuple[str, frozenset[str], bool]]]:
    """Return the operations of each method of a client, with what each takes, and needs."""
    session = botocore.session.get_session()
    every: dict[str, list[tuple[str, frozenset[str], bool]]] = {}
    for service in SERVICES:
        model = session.get_service_model(service)
        for operation in model.operation_names:
            taken = model.operation_model(operation).input_shape
            members = frozenset(taken.members) if taken else frozenset()
            needs = bool(taken and taken.required_members)
            every.setdefault(xform_name(operation), []).append((operation, members, needs))
    return every


@functools.cache
def _operations() -> frozenset[str]:
    return frozenset(operation for known in methods().values() for operation, *_ in known)


def sites() -> Iterator[Site]:
    """Return every place in the sources that calls an operation."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield from sites_of(path.read_text(), str(path.relative_to(ROOT)))


def sites_of(source: str, file: str) -> Iterator[Site]:
    """Return the places in one source.

    A client's method takes arguments by name alone, each of which the service's description knows:
    methods of ours that have such a name take others. Names of operations as texts count too.
    """
    for node in ast.walk(ast.parse(source)):
        # Sent by an HTTP client of our own, not by one of AWS's.
        if isinstance(node, ast.Constant) and "/@connections/" in str(node.value):
            yield Site(file, node.lineno, "PostToConnection")
        if isinstance(node, ast.Call):
            for operation in dict.fromkeys((*_method(node), *_texts(node), *_bound(node))):
                yield Site(file, node.lineno, operation)


def _method(node: ast.Call) -> Iterator[str]:
    if not isinstance(node.func, ast.Attribute) or node.args:
        return
    given = {keyword.arg for keyword in node.keywords}
    for operation, members, needs in methods().get(node.func.attr, []):
        named = given - {None}
        if named <= members and (given or not needs):
            yield operation


def _texts(node: ast.Call) -> Iterator[str]:
    texts = [
        argument.value
        for argument in node.args
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    ]
    by_name = isinstance(node.func, ast.Attribute) and node.func.attr in _BY_NAME
    for text in texts:
        if text in _operations() and (text in _SHORT or not text[1:].islower()):
            yield text
        elif text in methods() and ("_" in text or by_name):
            yield from (operation for operation, *_ in methods()[text])


def _bound(node: ast.Call) -> Iterator[str]:
    """Return what is called later: ``retried(client.get_object, Bucket=…)``."""
    for argument in node.args:
        if isinstance(argument, ast.Attribute) and node.keywords:
            given = {keyword.arg for keyword in node.keywords} - {None}
            for operation, members, _ in methods().get(argument.attr, []):
                if given and given <= members:
                    yield operation
