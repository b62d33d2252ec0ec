"""How far a table of a database that LakeSync keeps is read: the cursor of a flow from one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lakesync.core.clock import STAMP_MAX

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
    """As of when the rows are read; of the history, the last commit that was read."""
    at: Any = ""
    """Of rows the last id, of the check a place among what was brought, else the ordinal."""
    again: int = False
    """Whether something was brought before these rows were read; or `ANEW`."""

    def text(self) -> str:
        """Write it."""
        return json.dumps(self, separators=(",", ":"))


def place_from(cursor: str) -> Place:
    """Read what `Place.text` wrote."""
    return Place(*json.loads(cursor))


def begun_at(cursor: str, commit: Stamp) -> str:
    """Give the cursor behind a commit; the one that there is if it lies before, or reads rows."""
    place = place_from(cursor)
    if place.step != HISTORY or place.commit <= commit:
        return cursor
    return Place(HISTORY, commit, STAMP_MAX).text()
