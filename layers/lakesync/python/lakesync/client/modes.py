"""Directions of syncing: both, or only one of them."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, get_args

from lakesync.errors import ValidationFailed

Mode: TypeAlias = Literal["full", "push", "pull"]
"""``full`` pushes and pulls. ``push`` sends edits, actions and attachments, and reads nothing.
``pull`` reads, and sends nothing: edits wait in the outbox.
"""


def checked_mode(value: Any) -> Mode:
    """Return a mode, or raise `ValidationFailed`."""
    if value not in get_args(Mode):
        sentence = f"mode is full, push or pull, not {value!r:.80}"
        raise ValidationFailed(sentence, field="mode")
    mode: Mode = value
    return mode
