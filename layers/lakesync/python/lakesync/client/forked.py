"""What becomes of open files and connections in a process that was forked.

SQLite forbids that a connection is used, or closed, behind a fork: both processes would count on
the same locks, and could damage the file. A lock of Python's that a thread held stays held in the
child, where that thread is not. So the child refuses what would use an open file, in words, and
never closes it.
"""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING, Final, NoReturn, Protocol

from lakesync.errors import ValidationFailed

if TYPE_CHECKING:

    class Forkable(Protocol):
        """What must know that it is in a forked process."""

        def forked(self) -> None:
            """Take note, in the child, before anything else runs there. Waits for nothing."""
            ...


SENTENCE: Final = (
    "this client was opened before its process was forked: open its file in the child, with a "
    "client of its own, or start the child by 'spawn'"
)
_known: Final[weakref.WeakSet[Forkable]] = weakref.WeakSet()
_kept: Final[list[object]] = []
"""What the child must not close, as it would if nobody referred to it."""


class Refusing:
    """A replacement for a lock that refuses every acquisition."""

    def acquire(self, *_: object, **__: object) -> NoReturn:
        """Refuse.

        Raises:
            ValidationFailed: always.
        """
        raise ValidationFailed(SENTENCE)

    def release(self) -> None:
        """Nobody has it."""

    def __enter__(self) -> NoReturn:
        self.acquire()

    def __exit__(self, *_: object) -> None: ...


def note_forks(known: Forkable) -> None:
    """Register an object whose `forked` is called in the child after a fork."""
    _known.add(known)


def keep(*kept: object) -> None:
    """Let the child never close something."""
    _kept.append(kept)


def _in_child() -> None:
    for known in list(_known):
        known.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
