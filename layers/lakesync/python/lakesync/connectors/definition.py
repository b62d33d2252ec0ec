"""A connector's definition: its type, its settings, its polling interval."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from lakesync.core.flows import FLOW, SCHEDULED
from lakesync.errors import ValidationFailed

if TYPE_CHECKING:
    from collections.abc import Mapping

EVERY_MINUTES_DEFAULT: Final = 15
EVERY_MINUTES_MAX: Final = 1_440
"""The longest polling interval: with a longer one, a stopped connector would not be noticed."""
CONFIGURATION_BYTES_MAX: Final = 16_384
"""A connector's settings: they lie in one item with how far it is."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_FIELDS: Final = frozenset({"type", "name", "configuration", "everyMinutes", "check"})


@dataclass(frozen=True)
class Definition:
    """A registered connector, without its secrets."""

    type: str
    configuration: dict[str, Any] = field(default_factory=dict)
    every_minutes: int = EVERY_MINUTES_DEFAULT
    paused: bool = False

    def reads(self) -> tuple[str, dict[str, Any]]:
        """Return the type and settings of the connector that reads the source, also for a flow.

        The type is empty for a flow from a database; no connector type has an empty name.
        """
        if self.type != FLOW:
            return self.type, self.configuration
        source = self.configuration["source"]
        return source.get("connector", ""), source.get("configuration", {})

    def to_json(self) -> bytes:
        """Write it."""
        return json.dumps(asdict(self), separators=(",", ":"), ensure_ascii=False).encode()


def definition_from(body: bytes) -> Definition:
    """Read what `Definition.to_json` wrote, in any release."""
    stored: dict[str, Any] = json.loads(body)
    known = {name: stored[name] for name in Definition.__dataclass_fields__ if name in stored}
    return Definition(**known)


@dataclass(frozen=True)
class Registration:
    """What somebody asks to register."""

    name: str
    type: str
    configuration: Mapping[str, Any]
    """With its secrets."""
    every_minutes: int
    check: bool
    """Ask the source before anything is registered."""


def registration_from(body: object) -> Registration:
    """Read a request to register a connector.

    Raises:
        ValidationFailed: it is invalid.
    """
    if not isinstance(body, dict) or not body.keys() <= _FIELDS:
        raise ValidationFailed(
            'send {"type": "…", "name": "…", "configuration": {…}, "everyMinutes"?: 15, '
            '"check"?: true}'
        )
    settings = body.get("configuration", {})
    if not isinstance(settings, dict) or len(json.dumps(settings)) > CONFIGURATION_BYTES_MAX:
        raise ValidationFailed(
            f"configuration is an object of at most {CONFIGURATION_BYTES_MAX} bytes",
            field="configuration",
        )
    if not isinstance(body.get("type"), str):
        raise ValidationFailed("type names a type of connector", field="type")
    every = body.get("everyMinutes", EVERY_MINUTES_DEFAULT)
    if isinstance(every, int | float) and every < 1 and not isinstance(every, bool):
        raise ValidationFailed(f"everyMinutes is at least 1: {SCHEDULED}", field="everyMinutes")
    if type(every) is not int or every > EVERY_MINUTES_MAX:
        raise ValidationFailed(
            f"everyMinutes is a whole number, 1 to {EVERY_MINUTES_MAX}", field="everyMinutes"
        )
    check = body.get("check", True)
    if not isinstance(check, bool):
        raise ValidationFailed("check is true or false", field="check")
    return Registration(check_name(body.get("name")), body["type"], settings, every, check)


def check_name(name: object) -> str:
    """Return a connector's name if it is valid.

    Raises:
        ValidationFailed: it is not.
    """
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise ValidationFailed(
            "a connector's name is 1 to 64 letters, digits, _ or -, and begins with a letter or "
            "digit",
            field="name",
        )
    return name
