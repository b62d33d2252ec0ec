"""DynamoDB's update expressions and key conditions, as far as the product uses them."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from functools import cache
from typing import Final, NamedTuple, TypeAlias

from benchmarks.scale.expressions import (
    Bindings,
    Item,
    Operand,
    Reader,
    UnknownSyntax,
    Value,
)

Change: TypeAlias = Callable[[Item, Item, Bindings], None]
"""Changes the second item, by what is in the first."""
_ZERO: Final[Value] = {"N": "0"}
LAST: Final = "\U0010ffff"
"""Sorts behind every sort key."""


class UpdateRefused(Exception):
    """An update that DynamoDB refuses, because a value that it needs is not there."""


class _Updates(Reader):
    """Reads the clauses of an update."""

    def changes(self) -> list[Change]:
        """Read all clauses."""
        changes: list[Change] = []
        while self.peek():
            clause = self.take()
            read = {"SET": self._set, "REMOVE": self._remove, "ADD": self._add}.get(clause)
            if read is None:
                raise UnknownSyntax(f"{clause} is no clause of an update")
            changes.append(read())
            while self.accept(","):
                changes.append(read())
        return changes

    def _set(self) -> Change:
        path = self.path()
        self.expect("=")
        value = self._sum()

        def change(before: Item, after: Item, bound: Bindings) -> None:
            result = value(before, bound)
            if result is None:
                raise UpdateRefused(path(bound))
            after[path(bound)] = result

        return change

    def _sum(self) -> Operand:
        left = self._term()
        if self.peek() not in {"+", "-"}:
            return left
        sign = 1 if self.take() == "+" else -1
        return _added(left, self._term(), sign)

    def _term(self) -> Operand:
        if self.peek() != "if_not_exists":
            return self.operand()
        self.take()
        self.expect("(")
        path = self.path()
        self.expect(",")
        otherwise = self.operand()
        self.expect(")")
        return lambda item, bound: item.get(path(bound)) or otherwise(item, bound)

    def _remove(self) -> Change:
        path = self.path()

        def change(_: Item, after: Item, bound: Bindings) -> None:
            after.pop(path(bound), None)

        return change

    def _add(self) -> Change:
        path, value = self.path(), self.operand()

        def change(before: Item, after: Item, bound: Bindings) -> None:
            name = path(bound)
            total = _added(lambda item, _: item.get(name, _ZERO), value, 1)(before, bound)
            if total is None:
                raise UpdateRefused(name)
            after[name] = total

        return change


def _added(left: Operand, right: Operand, sign: int) -> Operand:
    def add(item: Item, bound: Bindings) -> Value | None:
        one, other = left(item, bound), right(item, bound)
        if one is None or other is None:
            return None
        return {"N": str(Decimal(one["N"]) + sign * Decimal(other["N"]))}

    return add


@cache
def update(text: str) -> Callable[[Item, Bindings], Item]:
    """Return what makes an item's next version out of the present one."""
    reader = _Updates(text)
    changes = reader.changes()
    reader.end()

    def apply(before: Item, bound: Bindings) -> Item:
        after = dict(before)
        for change in changes:
            change(before, after, bound)
        return after

    return apply


class Range(NamedTuple):
    """The items that a key condition asks for: sort keys from ``low`` to ``high``."""

    pk: str
    low: str = ""
    high: str = LAST
    behind_low: bool = False
    """``low`` itself is left out."""
    before_high: bool = False
    """``high`` itself is left out."""

    def ends_at(self, sk: str, *, forward: bool) -> bool:
        """Get whether a sort key is the last that the range could have, in order or against it."""
        if forward:
            return sk == self.high and not self.before_high
        return sk == self.low and not self.behind_low


@cache
def key_condition(text: str) -> Callable[[Bindings], Range]:
    """Return what makes the range that a key condition asks for."""
    reader = Reader(text)
    pk = _compared(reader, "pk", {"="})[1]
    if not reader.peek():
        return lambda bound: Range(_text(pk, bound))
    reader.expect("AND")
    make = _sort_key(reader)
    reader.end()
    return lambda bound: make(Range(_text(pk, bound)), bound)


def _sort_key(reader: Reader) -> Callable[[Range, Bindings], Range]:
    if reader.accept("begins_with"):
        reader.expect("(")
        reader.expect("sk")
        reader.expect(",")
        prefix = reader.operand()
        reader.expect(")")
        return lambda whole, bound: whole._replace(
            low=_text(prefix, bound), high=_text(prefix, bound) + LAST
        )
    sign, value = _compared(reader, "sk", {"=", "<", "<=", ">", ">=", "BETWEEN"})
    if sign == "BETWEEN":
        reader.expect("AND")
        high = reader.operand()
        return lambda whole, bound: whole._replace(low=_text(value, bound), high=_text(high, bound))

    def narrowed(whole: Range, bound: Bindings) -> Range:
        key = _text(value, bound)
        if sign == "=":
            return whole._replace(low=key, high=key)
        if sign in {"<", "<="}:
            return whole._replace(high=key, before_high=sign == "<")
        return whole._replace(low=key, behind_low=sign == ">")

    return narrowed


def _compared(reader: Reader, name: str, signs: set[str]) -> tuple[str, Operand]:
    reader.expect(name)
    sign = reader.take()
    if sign not in signs:
        raise UnknownSyntax(f"{sign} is not known in a key condition of {name}")
    return sign, reader.operand()


def _text(operand: Operand, bound: Bindings) -> str:
    value = operand({}, bound)
    if value is None or "S" not in value:
        raise UnknownSyntax("keys are text")
    return str(value["S"])
