"""Loops of tests that look at something: a loop over nothing would pass whatever the code does."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

T = TypeVar("T")


def some(items: Iterable[T]) -> list[T]:
    """Return all of them; it fails if there are none."""
    listed = list(items)
    assert listed, "there is nothing to look at"
    return listed
