"""`Callback`: an app's function that is called when tables change, or when an own write lost.

Rules of this module
    1. It runs on a thread of its own, which exists while it runs: neither edits, nor syncing, nor
       other callbacks wait for one that blocks.
    2. It is never called concurrently; the next call reports what changes while it runs.
    3. Its exceptions are logged, and it is called again at the next change.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any, Final, Self

from lakesync.client.live.changes import NOTHING, Subscriber
from lakesync.errors import ValidationFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lakesync.client.live.changes import ChangeFeed, Changes

CALLBACK_S: Final = 5.0
"""A callback that runs longer is reported, once in each call."""

_log = logging.getLogger("lakesync.client")


def checked_callback(function: Callable[[Any], object]) -> Callable[[Any], object]:
    """Return a function that can be called, or raise `ValidationFailed`."""
    if not callable(function):
        raise ValidationFailed(f"a callback is a function, not {function!r}", field="callback")
    return function


class Callback(Subscriber):
    """The result of `Client.on_change`: close it to end the calls, or use it in a ``with``."""

    def __init__(
        self,
        feed: ChangeFeed,
        function: Callable[[Any], object],
        tables: frozenset[str] | None,
        every_table: Callable[[], frozenset[str]],
    ) -> None:
        super().__init__(tables)
        self._feed = feed
        self._function = checked_callback(function)
        self._every_table = every_table
        self._lock = threading.Lock()
        self._noted = NOTHING
        self._running = False
        self._closed = False
        self._since_s: float | None = None
        self.error: Exception | None = None
        """What its latest call raised; None if it did not."""
        feed.subscribe(self, keep=True)

    def concerns(self, changes: Changes) -> bool:
        """Return whether tables changed; a commit that changed none of them is ignored."""
        return (changes.everything or bool(changes.keys)) and super().concerns(changes)

    def wake(self, changes: Changes) -> None:
        """Have the function called, now or when it has returned."""
        with self._lock:
            if self._closed:
                return
            self._noted |= changes
            if self._running:
                return
            self._running = True
        threading.Thread(target=self._run, name="lakesync-callback", daemon=True).start()

    def _run(self) -> None:
        while True:
            with self._lock:
                changes, self._noted = self._noted, NOTHING
                if self._closed or changes is NOTHING:
                    self._running = False
                    return
            for argument in self._arguments(changes):
                self._call(argument)

    def _call(self, argument: object) -> None:
        self._since_s = time.monotonic()
        try:
            self._function(argument)
            self.error = None
        except Exception as exc:  # noqa: BLE001 - the app's code; see rule 3
            self.error = exc
            if self._closed:  # as what it used may be
                _log.info("%s ended with %s: it is closed", self._name, type(exc).__name__)
            else:
                _log.exception("%s raised; it is called again at the next change", self._name)
        self._since_s = None

    def _arguments(self, changes: Changes) -> Iterable[object]:
        """Return the arguments of the calls of the function."""
        return (self._names(changes),)

    def _names(self, changes: Changes) -> frozenset[str]:
        names = self._every_table() if changes.everything else changes.tables
        if self.tables is None:
            return names
        return frozenset(name for name in names if name.lower() in self.tables)

    @property
    def _name(self) -> str:
        return f"the callback {getattr(self._function, '__qualname__', repr(self._function))}"

    def check(self) -> None:
        """Report a call that takes long."""
        since_s = self._since_s
        if since_s is not None and time.monotonic() - since_s > CALLBACK_S:
            self._since_s = None
            _log.warning(
                "%s has run for %g s; it hears of further changes when it returns: hand long work "
                "to a thread of yours",
                self._name,
                CALLBACK_S,
            )

    def end(self) -> None:
        """Prevent further calls; a current one ends by itself."""
        with self._lock:
            self._closed = True

    def close(self) -> None:
        """As `end`; safe to repeat, from the callback too."""
        self._feed.forget(self)
        self.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ConflictCallback(Callback):
    """The result of `Client.on_conflict`: its function is called once for each write that lost."""

    def concerns(self, changes: Changes) -> bool:
        """Return whether a write of its tables lost."""
        return any(True for _ in self._arguments(changes))

    def _arguments(self, changes: Changes) -> Iterable[object]:
        tables = self.tables
        return (lost for lost in changes.lost if tables is None or lost.table.lower() in tables)
