"""The types of action handlers: those of this package, and those that others add by entry point.

A package adds one by an entry point of the group ``lakesync.actions`` that names a `HandlerType`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lakesync.actions.port import HandlerType
from lakesync.adapters.entry_points import loaded, names_in

if TYPE_CHECKING:
    from collections.abc import Mapping

GROUP: Final = "lakesync.actions"
"""The group of entry points."""
BUILT_IN: Final[Mapping[str, str]] = {
    "eventbridge": "lakesync.actions.handlers.aws:EVENTBRIDGE",
    "jira": "lakesync.actions.handlers.jira:JIRA",
    "mysql": "lakesync.actions.handlers.sql:MYSQL",
    "postgres": "lakesync.actions.handlers.sql:POSTGRES",
    "salesforce": "lakesync.actions.handlers.salesforce:SALESFORCE",
    "sqs": "lakesync.actions.handlers.aws:SQS",
    "stepfunctions": "lakesync.actions.handlers.aws:STEP_FUNCTIONS",
    "webhook": "lakesync.actions.handlers.webhook:WEBHOOK",
}


def type_names() -> list[str]:
    """Return the names of all types."""
    return names_in(GROUP, BUILT_IN)


def handler_type(name: str) -> HandlerType:
    """Return a type of action handler by its name.

    Raises:
        NotFound: there is none of that name, or it cannot be imported here.
    """
    return loaded(GROUP, BUILT_IN, name, HandlerType, "action handler")
