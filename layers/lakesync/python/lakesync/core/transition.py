"""What a change of a row is to one client. Law V4: ``docs/spec/visibility.md``."""

from __future__ import annotations

from enum import Enum


class Transition(Enum):
    """What a change of a row is to one client."""

    NOTHING = "nothing"
    """Hidden before and after: the client hears nothing."""
    CHANGE = "change"
    """Visible before and after: it gets the delta."""
    ENTER = "enter"
    """It gets the whole row."""
    LEAVE = "leave"
    """It gets a removal."""
    END = "end"
    """Visible before, and deleted: it gets the delete, and knows for good."""


def transition_of(saw: bool, sees: bool, *, ends: bool) -> Transition:  # noqa: FBT001 - a truth table
    """Say what a change of a row is to a client, by whether it saw the row and sees it now.

    Args:
        saw: it saw the row before.
        sees: it may see the row after.
        ends: there is no row after.
    """
    if saw and ends:
        return Transition.END
    if saw:
        return Transition.CHANGE if sees else Transition.LEAVE
    return Transition.ENTER if sees else Transition.NOTHING
