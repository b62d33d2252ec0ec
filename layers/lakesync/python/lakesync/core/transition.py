"""The effect of a row's change on one client. Law V4: ``docs/spec/visibility.md``."""

from __future__ import annotations

from enum import Enum


class Transition(Enum):
    """The effect of a row's change on one client."""

    NOTHING = "nothing"
    """Hidden before and after: the client is sent nothing."""
    CHANGE = "change"
    """Visible before and after: it is sent the delta."""
    ENTER = "enter"
    """It is sent the whole row."""
    LEAVE = "leave"
    """It is sent a removal."""
    END = "end"
    """Visible before, now deleted: it is sent the delete, which is final."""


def transition_of(saw: bool, sees: bool, *, ends: bool) -> Transition:  # noqa: FBT001 - a truth table
    """Return the effect of a row's change on a client, from whether it saw the row and sees it now.

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
