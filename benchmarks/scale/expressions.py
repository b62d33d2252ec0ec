"""DynamoDB's condition expressions, as far as the product uses them; all others raise.

Values stay as DynamoDB's JSON has them, ``{"N": "5"}``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from functools import cache
from typing import Any, Final, TypeAlias

Value: TypeAlias = dict[str, Any]
Item: TypeAlias = dict[str, Value]
Bindings: TypeAlias = "tuple[dict[str, str], dict[str, Value]]"
"""``ExpressionAttributeNames`` and ``ExpressionAttributeValues``."""
Condition: TypeAlias = Callable[[Item, Bindings], bool]
Operand: TypeAlias = "Callable[[Item, Bindings], Value | None]"

_TOKEN = re.compile(r"\s*(?:([#:]?[A-Za-z_]\w*)|(<=|>=|[=<>(),+-]))")
_WORDS: Final = {"AND", "OR", "NOT", "BETWEEN", "SET", "REMOVE", "ADD"}
_COMPARED: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "=": lambda left, right: left == right,
    "<": lambda left, right: left < right,
    "<=": lambda left, right: left <= right,
    ">": lambda left, right: left > right,
    ">=": lambda left, right: left >= right,
}


class UnknownSyntax(Exception):
    """An expression that the model does not know: teach it, rather than guess."""


def plain(value: Value) -> tuple[str, Any]:
    """Return a value's type, and the value as Python compares it."""
    ((kind, content),) = value.items()
    if kind == "N":
        return kind, Decimal(content)
    if kind in {"S", "B"}:
        return kind, content
    raise UnknownSyntax(f"values of type {kind}")


class Reader:
    """Reads one expression from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[str] = []
        at = 0
        while at < len(text.rstrip()):
            token = _TOKEN.match(text, at)
            if token is None:
                raise UnknownSyntax(text)
            self._tokens.append(token[1] or token[2])
            at = token.end()
        self._tokens.reverse()

    def peek(self) -> str:
        """Return the next token; words of the language in capitals, nothing at the end."""
        token = self._tokens[-1] if self._tokens else ""
        return token.upper() if token.upper() in _WORDS else token

    def take(self) -> str:
        """Return the next token, and go on behind it."""
        token = self.peek()
        if not token:
            raise UnknownSyntax(self._text)
        self._tokens.pop()
        return token

    def accept(self, token: str) -> bool:
        """Go on behind a token, if it is next; returns whether it was."""
        if self.peek() != token:
            return False
        self._tokens.pop()
        return True

    def expect(self, token: str) -> None:
        """Go on behind a token that must be next."""
        if not self.accept(token):
            raise UnknownSyntax(f"{self._text}: {token} is missing before {self.peek()!r}")

    def path(self) -> Callable[[Bindings], str]:
        """Read the name of an attribute."""
        token = self.take()
        if token in _WORDS or not re.match(r"#|[A-Za-z_]", token):
            raise UnknownSyntax(f"{self._text}: {token} is no name")
        if token.startswith("#"):
            return lambda bound: bound[0][token]
        return lambda _: token

    def operand(self) -> Operand:
        """Read a value, or the name of an attribute."""
        if self.peek().startswith(":"):
            name = self.take()
            return lambda _, bound: bound[1][name]
        path = self.path()
        return lambda item, bound: item.get(path(bound))

    def end(self) -> None:
        """Check that all was read."""
        if self._tokens:
            raise UnknownSyntax(f"{self._text}: {self.peek()} was not expected")

    # --- conditions

    def condition(self) -> Condition:
        """Read a condition."""
        left = self._all_of()
        while self.accept("OR"):
            left = _either(left, self._all_of())
        return left

    def _all_of(self) -> Condition:
        left = self._single()
        while self.accept("AND"):
            left = _both(left, self._single())
        return left

    def _single(self) -> Condition:
        if self.accept("NOT"):
            inner = self._single()
            return lambda item, bound: not inner(item, bound)
        if self.accept("("):
            inner = self.condition()
            self.expect(")")
            return inner
        if self.peek() in {"attribute_exists", "attribute_not_exists", "begins_with"}:
            return self._function()
        return self._comparison()

    def _function(self) -> Condition:
        function = self.take()
        self.expect("(")
        path = self.path()
        if function == "begins_with":
            self.expect(",")
            prefix = self.operand()
            self.expect(")")
            return _beginning(path, prefix)
        self.expect(")")
        if function == "attribute_exists":
            return lambda item, bound: path(bound) in item
        return lambda item, bound: path(bound) not in item

    def _comparison(self) -> Condition:
        left = self.operand()
        if self.accept("BETWEEN"):
            low = self.operand()
            self.expect("AND")
            high = self.operand()
            return _both(_comparing(left, ">=", low), _comparing(left, "<=", high))
        sign = self.take()
        if sign not in _COMPARED:
            raise UnknownSyntax(f"{self._text}: {sign} is no comparison")
        return _comparing(left, sign, self.operand())


def _either(left: Condition, right: Condition) -> Condition:
    return lambda item, bound: left(item, bound) or right(item, bound)


def _both(left: Condition, right: Condition) -> Condition:
    return lambda item, bound: left(item, bound) and right(item, bound)


def _comparing(left: Operand, sign: str, right: Operand) -> Condition:
    compare = _COMPARED[sign]

    def holds(item: Item, bound: Bindings) -> bool:
        values = left(item, bound), right(item, bound)
        if values[0] is None or values[1] is None:
            return False
        (kind, one), (other_kind, other) = plain(values[0]), plain(values[1])
        return kind == other_kind and compare(one, other)

    return holds


def _beginning(path: Callable[[Bindings], str], prefix: Operand) -> Condition:
    def holds(item: Item, bound: Bindings) -> bool:
        value, begins = item.get(path(bound)), prefix(item, bound)
        if value is None or begins is None:
            return False
        return "S" in value and bool(value["S"].startswith(begins["S"]))

    return holds


@cache
def condition(text: str) -> Condition:
    """Get what tells whether a condition holds for an item; an item that is not there is empty."""
    reader = Reader(text)
    holds = reader.condition()
    reader.end()
    return holds


def bindings(request: dict[str, Any]) -> Bindings:
    """Return what the names and values in a request's expressions stand for."""
    names = request.get("ExpressionAttributeNames", {})
    return names, request.get("ExpressionAttributeValues", {})
