"""What the emulator asks a role's policies: as AWS asks."""

# The emulator's own names are private; names.py watches over them.
# ruff: noqa: SLF001

from __future__ import annotations

import json
from contextvars import ContextVar
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from tools.local_stack.emulator.names import emulator_module

if TYPE_CHECKING:
    from collections.abc import Callable

_SIMULATED: ContextVar[dict[str, str] | None] = ContextVar("simulated", default=None)


def name_glue_resources() -> None:
    """AWS: `GetDatabase` is about `database/name`, `UpdateTable` about `table/database/name`.

    The emulator asks for `table/name` in the first case and for `database/name` in the second, so
    that a policy which is right on AWS is refused, and one that is wrong there may pass.
    """
    actions = emulator_module("ministack.core.iam_actions")
    original = actions.extract_resource_arn

    def extract(
        service: str, method: str, path: str, headers: dict[str, str], body: bytes, *rest: Any
    ) -> Any:
        if service != "glue":
            return original(service, method, path, headers, body, *rest)
        _, region, account = rest
        operation = headers.get("x-amz-target", "").rpartition(".")[2]
        return f"arn:aws:glue:{region}:{account}:{glue_resource(operation, body)}"

    actions.extract_resource_arn = extract


def name_schedules_by_their_group() -> None:
    """AWS: a schedule is `schedule/group/name`; the emulator takes every group for `default`."""
    actions = emulator_module("ministack.core.iam_actions")
    original = actions.extract_resource_arn

    def extract(
        service: str, method: str, path: str, headers: dict[str, str], body: bytes,
        query: dict[str, Any], *rest: Any,
    ) -> Any:  # fmt: skip
        resource = original(service, method, path, headers, body, query, *rest)
        if service != "scheduler":
            return resource
        group = schedule_group(body, query)
        return resource.replace(":schedule/default/", f":schedule/{group}/")

    actions.extract_resource_arn = extract


def schedule_group(body: bytes, query: dict[str, Any]) -> str:
    """The group that a request about a schedule names, in its body or its query."""
    try:
        named = json.loads(body or b"{}").get("GroupName")
    except ValueError:
        named = None
    return str(named or _first(query, "groupName") or "default")


def count_every_call_as_encrypted() -> None:
    """AWS: SDKs speak TLS, so that a bucket which refuses anything else is open to them.

    The emulator speaks plain HTTP, and a policy that denies `aws:SecureTransport: false`, such as
    that of the bucket which `sam deploy` makes, would refuse everybody.
    """
    evaluator = emulator_module("ministack.core.iam_evaluator")
    original = evaluator._resolve_condition_key

    def resolve(key: str, context: Any) -> Any:
        return "true" if key.lower() == "aws:securetransport" else original(key, context)

    evaluator._resolve_condition_key = resolve


def simulate_with_context() -> None:
    """AWS: a simulation knows the condition keys that it is given, such as `s3:prefix`.

    The emulator reads none of them, and denies whatever a condition allows.
    """
    evaluator = emulator_module("ministack.core.iam_evaluator")
    handlers = emulator_module("ministack.services.iam")._IAM_HANDLERS
    resolve_key, simulate_policy = (
        evaluator._resolve_condition_key,
        handlers["SimulatePrincipalPolicy"],
    )

    def resolve(key: str, context: Any) -> Any:
        given = _SIMULATED.get() or {}
        return given[key.lower()] if key.lower() in given else resolve_key(key, context)

    def simulate(parameters: dict[str, Any]) -> Any:
        token = _SIMULATED.set(context_entries(parameters))
        try:
            return simulate_policy(parameters)
        finally:
            _SIMULATED.reset(token)

    evaluator._resolve_condition_key = resolve
    handlers["SimulatePrincipalPolicy"] = simulate


def context_entries(parameters: dict[str, Any]) -> dict[str, str]:
    """The first value of each condition key of a simulation, by the key in lower case."""
    entries = {}
    number = 1
    while name := _first(parameters, f"ContextEntries.member.{number}.ContextKeyName"):
        value = f"ContextEntries.member.{number}.ContextKeyValues.member.1"
        entries[name.lower()] = _first(parameters, value)
        number += 1
    return entries


def _first(parameters: dict[str, Any], name: str) -> str:
    value = parameters.get(name, "")
    return str(value[0] if isinstance(value, list) else value)


def count_batches_as_their_actions() -> None:
    """AWS: who may `SendMessage` may `SendMessageBatch`; SQS has no action of that name.

    The emulator asks for one, and refuses a role that is right on AWS.
    """
    actions = emulator_module("ministack.core.iam_actions")
    original = actions.extract_iam_action

    def extract(service: str, *rest: Any) -> Any:
        return action_of_batch(original(service, *rest))

    actions.extract_iam_action = extract


def ask_once_for_a_transaction() -> None:
    """AWS: a transaction of 100 puts into one table costs its caller one decision, not 100.

    The emulator asks the role's policies for each item anew, parsing all of them each time: half of
    what it computes for a push. What it asks is action and table alone, so equals have one answer.
    """
    actions = emulator_module("ministack.core.iam_actions")
    original = actions.dynamodb_transaction_checks

    def checks(*args: Any) -> list[Any]:
        return list(dict.fromkeys(original(*args)))

    actions.dynamodb_transaction_checks = checks


def parse_once_for_all_questions() -> None:
    """AWS: who may do what is decided without the request's size mattering.

    The emulator parses a request's body anew for each question about it: its resource, its tables,
    its keys, its items. All read the same text, one after the other, and change nothing of it.
    """
    actions = emulator_module("ministack.core.iam_actions")
    actions.json = SimpleNamespace(**{**vars(json), "loads": read_once(json.loads)})


def read_once(parse: Callable[[str | bytes], Any]) -> Callable[[str | bytes], Any]:
    """Return a parser that gives the same value again for the very text that it parsed last."""
    last: tuple[str | bytes, Any] = (b"", None)

    def loads(text: str | bytes) -> Any:
        nonlocal last
        parsed, value = last
        if text is not parsed:
            value = parse(text)
            last = (text, value)
        return value

    return loads


def action_of_batch(action: str | None) -> str | None:
    """The action that allows a call: of SQS's calls for batches that of one message."""
    if action is not None and action.startswith("sqs:"):
        return action.removesuffix("Batch")
    return action


def glue_resource(operation: str, body: bytes) -> str:
    """The most particular resource of a request; AWS also wants the catalogue and the database."""
    try:
        request = json.loads(body or b"{}")
    except ValueError:
        request = {}
    database = request.get("DatabaseName")
    name = request.get("Name") or _inner_name(request)
    if "Job" in operation:
        return f"job/{request.get('JobName') or name}"
    if "Crawler" in operation:
        return f"crawler/{request.get('CrawlerName') or name}"
    if database:
        table = name or request.get("TableName")
        return f"table/{database}/{table}" if table else f"database/{database}"
    return f"database/{name}" if name else "catalog"


def _inner_name(request: dict[str, Any]) -> str | None:
    """The name inside `TableInput` or `DatabaseInput`."""
    inner = request.get("TableInput") or request.get("DatabaseInput") or {}
    name = inner.get("Name")
    return str(name) if name else None
