"""Which types of action handlers there are: those of this package, and by entry point of others.

A package adds one by an entry point of the group ``lakesync.actions`` that names a `HandlerType`.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Final

from lakesync.actions.port import HandlerType
from lakesync.errors import NotFound

if TYPE_CHECKING:
    from collections.abc import Mapping

GROUP: Final = "lakesync.actions"
"""The group of entry points."""
BUILT_IN: Final[Mapping[str, str]] = {
    "eventbridge": "lakesync.actions.handlers.aws:EVENTBRIDGE",
    "mysql": "lakesync.actions.handlers.sql:MYSQL",
    "postgres": "lakesync.actions.handlers.sql:POSTGRES",
    "sqs": "lakesync.actions.handlers.aws:SQS",
    "stepfunctions": "lakesync.actions.handlers.aws:STEP_FUNCTIONS",
    "webhook": "lakesync.actions.handlers.webhook:WEBHOOK",
}


def type_names() -> list[str]:
    """Give the names of all types."""
    return sorted({*BUILT_IN, *(entry.name for entry in entry_points(group=GROUP))})


def handler_type(name: str) -> HandlerType:
    """Give a type of action handler by its name.

    Raises:
        NotFound: there is none of that name, or it cannot be imported here.
    """
    if name in BUILT_IN:
        module, _, attribute = BUILT_IN[name].partition(":")
        kind: object = getattr(import_module(module), attribute)
    else:
        entry = next(iter(entry_points(group=GROUP, name=name)), None)
        if entry is None:
            raise NotFound(
                f"there is no action handler of type {name[:40]!r}; there are "
                f"{', '.join(type_names())}",
                field="type",
            )
        try:
            kind = entry.load()
        except Exception as exc:
            message = f"the action handler {name} cannot be imported: {exc}"
            raise NotFound(message, field="type") from exc
    if not isinstance(kind, HandlerType):
        raise NotFound(f"the entry point {name} is no HandlerType", field="type")
    return kind
