"""Faults in what a cell says: its type is guessed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lakesync.client.storage import app_table, queries
from lakesync.client.storage.cell_values import reader, value_of
from lakesync.core.delta import parse
from lakesync.errors import ValidationFailed
from tests.simulation.deliberate.registry import Replaced, deliberate
from tests.simulation.themes import VALUES

if TYPE_CHECKING:
    from collections.abc import Callable


def _guessed(value: Any) -> Any:
    try:
        return parse(value.encode()) if isinstance(value, str) else value
    except ValidationFailed:
        return value


@deliberate("a text that reads as JSON is read as what it says", VALUES)
def type_is_guessed_when_read() -> list[Replaced]:
    def guessing(name: str) -> Callable[[Any], Any]:
        read = reader(name)
        return lambda value: _guessed(read(value))

    return [(queries, "reader", guessing)]


@deliberate("a text that reads as JSON is sent as what it says", VALUES)
def type_is_guessed_when_written() -> list[Replaced]:
    def guessing(content: Any, kind: str, forms: int) -> Any:
        return _guessed(value_of(content, kind, forms))

    return [(app_table, "value_of", guessing)]
