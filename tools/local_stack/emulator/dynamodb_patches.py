"""DynamoDB: a Query at a cost that hardly grows, and recovery that templates switch on."""

# The emulator's own names are private; names.py watches over them.
# ruff: noqa: SLF001

from __future__ import annotations

import base64
import functools
import operator
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from tools.local_stack.emulator.names import emulator_module

_NAME = r"(#?[A-Za-z_][\w.-]*|#\w+)"
# The forms of a key condition that programs write: a partition, and one condition on the sort key.
_KEY_CONDITION = re.compile(
    rf"^\s*{_NAME}\s*=\s*(:\w+)\s*(?:AND\s+(?:"
    rf"{_NAME}\s*(=|<=|>=|<|>)\s*(:\w+)"
    rf"|{_NAME}\s+BETWEEN\s+(:\w+)\s+AND\s+(:\w+)"
    rf"|begins_with\s*\(\s*{_NAME}\s*,\s*(:\w+)\s*\)))?\s*$",
    re.IGNORECASE,
)
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}

_CONDITIONS_MAX = 1_024

Attribute = dict[str, Any]
Condition = Callable[[dict[str, Attribute], dict[str, Attribute], dict[str, str]], bool]


def evaluate_key_conditions_quickly() -> None:
    """AWS: a Query reads only the items that it returns, so a large partition costs nothing.

    The emulator parses the key condition again for every item of the partition, under the
    interpreter's lock, so that one Query of 20,000 items stalls every other request for half a
    second. The plain forms are parsed once here; anything else still goes the emulator's way.
    """
    dynamodb = emulator_module("ministack.services.dynamodb")
    original = dynamodb._evaluate_condition

    def evaluate(
        expression: str,
        item: dict[str, Attribute],
        values: dict[str, Attribute],
        names: dict[str, str],
        slot: str = "ConditionExpression",
    ) -> Any:
        if slot == "KeyConditionExpression":
            condition = compile_key_condition(expression)
            if condition is not None:
                try:
                    return condition(item, values, names)
                except (KeyError, TypeError, ValueError, ArithmeticError):
                    pass  # the emulator's own evaluation has the right words for it
        return original(expression, item, values, names, slot)

    dynamodb._evaluate_condition = evaluate


def check_conditions_once() -> None:
    """AWS: a condition costs next to nothing.

    The emulator parses each condition of a transaction twice for its grammar alone; a push of 100
    rows brings the same few texts 100 times. What is wrong with a text is remembered by the text.
    """
    dynamodb = emulator_module("ministack.services.dynamodb")
    dynamodb._condition_syntax_error = functools.lru_cache(_CONDITIONS_MAX)(
        dynamodb._condition_syntax_error
    )


def recover_tables_of_templates() -> None:
    """AWS: `PointInTimeRecoverySpecification` of a template's table is in force.

    The emulator accepts it there, and keeps it off.
    """
    handlers = emulator_module("ministack.services.cloudformation.provisioners")._RESOURCE_HANDLERS
    settings = emulator_module("ministack.services.dynamodb")._pitr_settings
    table = handlers["AWS::DynamoDB::Table"]
    original = table["create"]

    def create(logical_id: str, properties: dict[str, Any], stack: str) -> Any:
        physical_id, attributes = original(logical_id, properties, stack)
        wanted = properties.get("PointInTimeRecoverySpecification") or {}
        # A template's booleans may be text by now, as parameters are.
        enabled = str(wanted.get("PointInTimeRecoveryEnabled", False)).lower() == "true"
        settings[physical_id] = enabled
        return physical_id, attributes

    table["create"] = create


@functools.lru_cache(1024)
def compile_key_condition(expression: str) -> Condition | None:
    """What decides whether an item meets the condition, or None for a form unknown here."""
    match = _KEY_CONDITION.match(expression)
    if match is None:
        return None
    partition, wanted, compared, sign, bound, between, low, high, prefixed, prefix = match.groups()

    def condition(
        item: dict[str, Attribute], values: dict[str, Attribute], names: dict[str, str]
    ) -> bool:
        def value(name: str) -> Any:
            return _comparable(item[names[name] if name.startswith("#") else name])

        if value(partition) != _comparable(values[wanted]):
            return False
        if compared:
            return _COMPARE[sign](value(compared), _comparable(values[bound]))
        if between:
            return bool(_comparable(values[low]) <= value(between) <= _comparable(values[high]))
        if prefixed:
            return bool(value(prefixed).startswith(_comparable(values[prefix])))
        return True

    return condition


def _comparable(attribute: Attribute) -> Any:
    """An attribute value as something that Python orders as DynamoDB does."""
    ((kind, value),) = attribute.items()
    if kind == "N":
        return Decimal(value)
    if kind == "B" and isinstance(value, str):
        return base64.b64decode(value)
    # DynamoDB orders strings by their UTF-8 bytes, which is the order of code points, as Python's.
    return value
