"""Refuses misuse at once and in words: arguments of an app that are wrong, and use after a fork.

What an app hands over is checked where it hands it over, so that nothing fails later elsewhere.
Among it: the directions of syncing (`Mode`), and how large the pages are that a client asks for.

SQLite forbids that a connection is used, or closed, behind a fork: both processes would count on
the same locks, and could damage the file. A lock of Python's that a thread held stays held in the
child, where that thread is not. So the child refuses what would use an open file, in words, and
never closes it.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterable
from pathlib import PurePath
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Literal,
    NoReturn,
    Protocol,
    TypeAlias,
    TypeVar,
    get_args,
)

from lakesync.core.delta import utf8_bytes
from lakesync.errors import ValidationFailed

if TYPE_CHECKING:

    class Forkable(Protocol):
        """What must know that it is in a forked process."""

        def forked(self) -> None:
            """Take note, in the child, before anything else runs there. Waits for nothing."""
            ...


T = TypeVar("T")

_WAIT_S_MAX: Final = threading.TIMEOUT_MAX / 2
"""Far longer than any program runs; with room for the spread of waits."""


def checked_text(value: object, field: str) -> str:
    """Return text, or raise `ValidationFailed`."""
    if not isinstance(value, str):
        raise ValidationFailed(f"{field} must be text, not {_kind(value)}", field=field)
    return value


def checked_key(value: object, field: str) -> str:
    """Return text that SQLite can compare with what is stored, or raise `ValidationFailed`."""
    text = checked_text(value, field)
    utf8_bytes(text, field)
    return text


def checked_path(value: object, field: str) -> None:
    if not isinstance(value, str | PurePath):
        sentence = f"{field} must be text or a pathlib.Path, not {_kind(value)}"
        raise ValidationFailed(sentence, field=field)


def checked_whole(value: Any, field: str, least: int, most: int) -> None:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if not is_whole or not least <= value <= most:
        raise ValidationFailed(f"{field} must be {least} to {most}, not {value!r:.80}", field=field)


def checked_interval_s(value: Any, field: str) -> float:
    """Return seconds above 0 that may be waited for again and again; infinity becomes finite."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not value > 0:  # as no NaN is
        sentence = f"{field} must be a number of seconds above 0, not {value!r:.80}"
        raise ValidationFailed(sentence, field=field)
    return float(min(value, _WAIT_S_MAX))


def checked_names(value: Any, field: str) -> list[str]:
    """Return names of tables as a list; a single name is one table."""
    if isinstance(value, str):
        return [value]
    are_several = isinstance(value, Iterable) and not isinstance(value, bytes)
    names: list[Any] = list(value) if are_several else [value]
    if not all(isinstance(name, str) for name in names):
        sentence = f"{field} must be names of tables, such as ['todos'], not {value!r:.80}"
        raise ValidationFailed(sentence, field=field)
    return names


def checked_transport(value: object) -> None:
    """Refuse an address alone, for example, which would fail at the first sync only."""
    if not callable(getattr(value, "pull", None)) or not callable(getattr(value, "push", None)):
        raise ValidationFailed(
            f"transport must be a transport, such as HttpTransport(…), not {_kind(value)}",
            field="transport",
        )


def checked_clock(value: object) -> None:
    if not callable(value):
        sentence = f"wall_clock must be a function that gives milliseconds, not {_kind(value)}"
        raise ValidationFailed(sentence, field="wall_clock")


def checked_waits(value: T) -> T:
    """Refuse by `ValidationFailed` what is no `Waits`, such as a number of seconds."""
    if not callable(getattr(value, "backoff_s", None)):
        sentence = f"waits must be Waits(…), not {_kind(value)}"
        raise ValidationFailed(sentence, field="waits")
    return value


def _kind(value: object) -> str:
    return type(value).__name__


# --- directions of syncing ------------------------------------------------------------------------


Mode: TypeAlias = Literal["full", "push", "pull"]
"""``full`` pushes and pulls. ``push`` sends edits, actions and attachments, and reads nothing.
``pull`` reads, and sends nothing: edits wait in the outbox.
"""


def checked_mode(value: Any) -> Mode:
    if value not in get_args(Mode):
        sentence = f"mode is full, push or pull, not {value!r:.80}"
        raise ValidationFailed(sentence, field="mode")
    mode: Mode = value
    return mode


# --- sizes of pages -------------------------------------------------------------------------------


PAGE_DELTAS: Final = 5_000
"""Deltas of one page, by default."""
PAGE_DELTAS_MAX: Final = 10_000
"""The largest page that may be requested; no gateway returns more."""


def check_page_deltas(page_deltas: int) -> None:
    checked_whole(page_deltas, "page_deltas", 1, PAGE_DELTAS_MAX)


# --- open files and connections in a forked process -----------------------------------------------


SENTENCE: Final = (
    "this client was opened before its process was forked: open its file in the child, with a "
    "client of its own, or start the child by 'spawn'"
)
_known: Final[weakref.WeakSet[Forkable]] = weakref.WeakSet()
_kept: Final[list[object]] = []
"""What the child must not close, as it would if nobody referred to it."""


class Refusing:
    def acquire(self, *_: object, **__: object) -> NoReturn:
        raise ValidationFailed(SENTENCE)

    def release(self) -> None: ...

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
