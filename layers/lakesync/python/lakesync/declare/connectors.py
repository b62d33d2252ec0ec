"""Connectors, as administrators declare them. Law N7: ``docs/spec/connectors.md``.

The settings of each type are a model of its own; see `lakesync.connectors.registry`.
"""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, Final

from pydantic import Field

from lakesync.core.flows import SCHEDULED
from lakesync.declare import Declaration, Form, checked, text_form

EVERY_MINUTES_DEFAULT: Final = 15
EVERY_MINUTES_MAX: Final = 1_440
"""The longest polling interval: with a longer one, a stopped connector would not be noticed."""
CONFIGURATION_BYTES_MAX: Final = 16_384
"""A connector's settings: they lie in one item with how far it is."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
NAME: Final = text_form(
    _NAME.fullmatch,
    "a connector's name is 1 to 64 letters, digits, _ or -, and begins with a letter or digit",
    pattern=f"^{_NAME.pattern}$",
)


def minutes(most: int) -> Form:
    """Return the form of an interval between polls."""

    def read(value: object) -> int:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and value < 1:  # type: ignore[operator]  # a number
            raise ValueError(f"everyMinutes is at least 1: {SCHEDULED}")
        if type(value) is not int or value > most:
            raise ValueError(f"everyMinutes is a whole number from 1 to {most}")
        return value

    return Form(read, {"type": "integer", "minimum": 1, "maximum": most})


def settings(bytes_max: int) -> Form:
    """Return the form of a connector's settings."""

    def read(value: object) -> object:
        if not isinstance(value, dict) or len(json.dumps(value)) > bytes_max:
            raise ValueError(f"must be an object of at most {bytes_max} bytes")
        return value

    return Form(read, {"type": "object"})


class DeclaredConnector(Declaration):
    """A connector that somebody asks to register; its settings have its secrets."""

    name: Annotated[str, NAME]
    type: Annotated[str, text_form(lambda _: True, "names a type of connector")]
    configuration: Annotated[dict[str, Any], settings(CONFIGURATION_BYTES_MAX)] = Field({})
    every_minutes: Annotated[int, minutes(EVERY_MINUTES_MAX)] = EVERY_MINUTES_DEFAULT
    check: bool = Field(
        default=True, description="Check with the source first, before anything is registered."
    )


def read_connector(body: object) -> DeclaredConnector:
    """Read a connector as ``POST /admin/connectors`` accepts it.

    Raises:
        ValidationFailed: it is malformed; names every fault.
    """
    return checked(DeclaredConnector, body, "connector")
