"""The cursor of a flow from a database that LakeSync keeps: how far a table is read."""

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
"""Of `Place.again`: what was brought may have been newer, of every row. Another release reads it as
what is true."""


class Place(NamedTuple):
    """How far a table is read; a cursor in JSON."""

    step: str
    """Rows first, then which of those that were brought are gone, then the history; or that the
    history went back behind its commit, until the table is further than that."""
    commit: Stamp
    """For rows, the commit as of which they are read; for the history, the last commit read."""
    at: Any = ""
    """For rows the last id, for the check a place among the brought rows, else the ordinal."""
    again: int = False
    """Whether something was brought before these rows were read; or `ANEW`."""

    def text(self) -> str:
        """Write it."""
        return json.dumps(self, separators=(",", ":"))


def place_from(cursor: str) -> Place:
    """Read what `Place.text` wrote."""
    return Place(*json.loads(cursor))


def begun_at(cursor: str, commit: Stamp) -> str:
    """Return the cursor behind a commit; the current one if it is earlier, or reads rows."""
    place = place_from(cursor)
    if place.step != HISTORY or place.commit <= commit:
        return cursor
    return Place(HISTORY, commit, ORDINAL_END).text()
