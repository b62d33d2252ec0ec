"""The list of deliberate faults: each is a sentence, and a patch of a few lines, in memory."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias
from unittest.mock import patch

from tests.simulation.themes import PLAIN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Replaced: TypeAlias = "tuple[object, str, Any]"
"""``(owner, name, replacement)``."""


class Deliberate(NamedTuple):
    name: str
    message: str
    patches: Callable[[], list[Replaced]]
    theme: dict[str, Any]
    """One of ``tests.simulation.themes``, on which all seeds insist that look for the fault: what
    it takes is rare in all others."""

    @property
    def is_in_node(self) -> bool:
        """Whether it is one of the JavaScript client, which runs in Node.js."""
        return bool(self.theme.get("javascript"))


FAULTS: list[Deliberate] = []


def deliberate(
    message: str, theme: dict[str, Any] = PLAIN
) -> Callable[[Callable[[], list[Replaced]]], Callable[[], list[Replaced]]]:
    """Put a fault on the list; the function gives what it replaces."""

    def add(patches: Callable[[], list[Replaced]]) -> Callable[[], list[Replaced]]:
        FAULTS.append(Deliberate(patches.__name__, message, patches, theme))
        return patches

    return add


@contextmanager
def broken(fault: Deliberate) -> Iterator[None]:
    """Have a fault for as long as the block runs."""
    with ExitStack() as stack:
        for owner, name, replacement in fault.patches():
            stack.enter_context(patch.object(owner, name, replacement))
        yield
