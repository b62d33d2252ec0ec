"""The cursor of a flow from a database that LakeSync writes: the position in one table."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lakesync.adapters.database import ORDINAL_END

if TYPE_CHECKING:
    from lakesync.core.clock import Stamp

ROWS: Final = "rows"
CHECK: Final = "check"
HISTORY: Final = "history"
RESTORED: Final = "restored"
ANEW: Final = 2
"""Value of `Place.again`: the delivered version of any row may have been newer than this one.
Earlier releases treat it as true."""


class Place(NamedTuple):
    """A position in a table; as JSON it is the cursor."""

    step: str
    """`ROWS`, then `CHECK` (delivered rows that no longer exist are deleted), then `HISTORY`.
    `RESTORED`: the source was restored to before its last read commit, and is waited for until it
    has a later one."""
    commit: Stamp
    """For rows, the commit as of which they are read; for the history, the last commit read."""
    at: Any = ""
    """For `ROWS` the last id, for `CHECK` a place among the delivered rows, else the ordinal."""
    again: int = False
    """Whether rows were delivered before these were read; or `ANEW`."""

    def text(self) -> str:
        """Return the cursor."""
        return json.dumps(self, separators=(",", ":"))


def place_from(cursor: str) -> Place:
    """Parse a cursor of `Place.text`."""
    return Place(*json.loads(cursor))


def begun_at(cursor: str, commit: Stamp) -> str:
    """Return the cursor behind a commit; the current one if it is earlier, or reads rows."""
    place = place_from(cursor)
    if place.step != HISTORY or place.commit <= commit:
        return cursor
    return Place(HISTORY, commit, ORDINAL_END).text()
