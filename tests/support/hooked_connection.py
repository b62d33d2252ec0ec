"""A connection whose ``execute`` a test may override, for what a client's cursor runs as well."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class _Cursor:
    """Executes as its connection does."""

    def __init__(self, execute: Callable[..., sqlite3.Cursor], real: sqlite3.Cursor) -> None:
        self._execute, self._real = execute, real

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        """Execute; to ask whether another wrote is no step at which anything could be lost."""
        if sql == "PRAGMA data_version":
            return self._real.execute(sql)
        return self._execute(sql, *parameters)


class HookedConnection(sqlite3.Connection):
    """Runs all statements of its cursors through its own ``execute``."""

    def cursor(self, *_: Any) -> Any:
        return _Cursor(self.execute, super().cursor())
