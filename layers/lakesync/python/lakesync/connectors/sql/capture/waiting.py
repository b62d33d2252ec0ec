"""Waits for transactions of PostgreSQL that were open when a table's baseline was set."""

from __future__ import annotations

from typing import Any, Final

from lakesync.errors import AdapterTimedOut

OPEN_S_MAX: Final = 5
"""How long a poll waits for transactions to end that were open when a table's baseline was set."""
_LOOK_S: Final = 0.1
_ENDED: Final = "SELECT pg_snapshot_xmin(pg_current_snapshot()) >= %s::xid8"


def wait(cursor: Any, xid: str) -> None:
    """Wait until transactions with a lower number have ended.

    Raises:
        AdapterTimedOut: one is still open after `OPEN_S_MAX`.
    """
    for _ in range(int(OPEN_S_MAX / _LOOK_S)):
        cursor.execute(_ENDED, (xid,))
        if cursor.fetchone()[0]:
            return
        cursor.execute("SELECT pg_sleep(%s)", (_LOOK_S,))
    raise patience()


def patience() -> AdapterTimedOut:
    """Return the error for a transaction of the source that does not end."""
    return AdapterTimedOut(
        "a transaction of the source began before and is still open; tables are read once it ends: "
        "SELECT pid, xact_start, query FROM pg_stat_activity WHERE xact_start IS NOT NULL "
        "ORDER BY xact_start"
    )
