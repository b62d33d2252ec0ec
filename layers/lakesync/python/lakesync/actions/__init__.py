"""Actions: effects outside that clients request, exactly once as far as the outside allows.

What an action handler of yours is made of; see ``docs/actions.md``.
"""

from typing import Final

from lakesync.actions.engine import (
    ActionHandler,
    Done,
    HandlerType,
    Looked,
    Run,
    SupportedAction,
    Unfinished,
)
from lakesync.connectors.port import Outside

__all__ = [
    "ActionHandler",
    "Done",
    "HandlerType",
    "Looked",
    "Outside",
    "Run",
    "SupportedAction",
    "Unfinished",
]

DOORS: Final = (
    "declared_actions",
    "engine",
    "service",
)
"""What other folders may import, beside the names of this module."""
