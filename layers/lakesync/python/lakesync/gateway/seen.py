"""When a client's last contact is worth a write: law U7, ``docs/spec/access.md``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from lakesync.ports import Seen

NOTED_MS_MIN: Final = 900_000
"""The shortest time between two notes of a client that keeps reading: four write units an hour."""
REFUSALS_NOTED_MS_MIN: Final = 60_000
"""The same if the number of its quarantined edits changed."""


def is_worth_noting(last: Seen | None, seen: Seen) -> bool:
    """Return whether to note the state of a client.

    Args:
        last: the noted state.
        seen: the present state.
    """
    if last is None:
        return True
    passed_ms = seen.at_ms - last.at_ms
    if last.quarantined != seen.quarantined:
        return passed_ms >= REFUSALS_NOTED_MS_MIN
    return last.cursor != seen.cursor and passed_ms >= NOTED_MS_MIN
