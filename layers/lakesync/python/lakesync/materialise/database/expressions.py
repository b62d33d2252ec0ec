"""PyIceberg's expressions: their own types know nothing of positions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyiceberg import expressions

if TYPE_CHECKING:
    from collections.abc import Iterable

_make: Any = expressions


def between(name: str, after: object, until: object) -> Any:
    """Return the expression for values behind one and no further than another."""
    return _make.And(_make.GreaterThan(name, after), _make.LessThanOrEqual(name, until))


def behind(name: str, after: object) -> Any:
    """Return the expression for values behind another."""
    return _make.GreaterThan(name, after)


def one_of(name: str, values: Iterable[str]) -> Any:
    """Return the expression for any of some values."""
    return _make.In(name, tuple(values))
