"""How a client's connections to its file are opened."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Final

from lakesync.client.storage.app_table import COLLATION, compare

if TYPE_CHECKING:
    from collections.abc import Callable

BUSY_TIMEOUT_S: Final = 10.0
"""How long to wait for another process that is writing to the same file."""
_STATEMENTS_CACHED: Final = 512


def opened(
    connect: Callable[..., sqlite3.Connection],
    target: str,
    connection_class: type[sqlite3.Connection] = sqlite3.Connection,
) -> sqlite3.Connection:
    """Return a connection to a path or a URI; ``connect`` is SQLite's own, or knows the key."""
    connection = connect(
        target, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False,
        factory=connection_class, cached_statements=_STATEMENTS_CACHED,
        uri=target.startswith("file:"),
    )  # fmt: skip
    connection.create_collation(COLLATION, compare)
    return connection
