"""Pushes as they arrive: local transactions come whole, and what was refused is remembered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.history import Violation
from tests.simulation.model import Edit, edit_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lakesync.core.delta import Delta
    from lakesync.core.messages import Push


class Pushes:
    """What is known of pushes before they become commits."""

    def __init__(self) -> None:
        self.said: set[str] = set()
        """Every sentence with which the gateway refused something."""
        self._together: dict[Edit, frozenset[Edit]] = {}
        """The edits of each local transaction of which no push has come yet."""

    def made_together(self, deltas: Iterable[Delta]) -> None:
        """Note a local transaction, by those of its edits that no other edit is equal to."""
        edits = frozenset(edit_of(delta) for delta in deltas if _is_marked(delta))
        self._together.update(dict.fromkeys(edits, edits))

    def arrived(self, push: Push) -> None:
        """Hold a push against the transactions of which none came before: each is there whole.

        What comes later need not be: some of its edits may have been refused.
        """
        edits = {edit_of(delta) for _, delta in push.deltas}
        for edit in edits & self._together.keys():
            whole = self._together.get(edit, frozenset())
            for each in whole:
                self._together.pop(each, None)
            missing = set() if push.unreadable else whole - edits
            if missing or (len(whole) > 1 and not push.atomic):
                message = f"{len(missing)} of {len(whole)} are missing, atomic: {push.atomic}"
                raise Violation("a transaction is pushed whole", f"{push.client_id}: {message}")


def _is_marked(delta: Delta) -> bool:
    """Return whether an edit has a value that no other edit has: its number, in a list or not."""
    values = dict(delta.columns)
    return values.get("size", b"").isdigit() or values.get("tags", b"")[1:2].isdigit()
