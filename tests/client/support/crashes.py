"""A connection that dies between two statements, as a process does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from tests.support.hooked_connection import HookedConnection

if TYPE_CHECKING:
    import sqlite3


class Crash(BaseException):
    """The process is gone: nothing may catch this."""


class CrashingConnection(HookedConnection):
    """Executes ``left`` statements and then none, not even a rollback."""

    left: ClassVar[int] = 1 << 60
    late: ClassVar[bool] = False
    """Die after the last statement, before its caller hears of it; else before it."""

    def execute(self, *arguments: Any) -> sqlite3.Cursor:
        """Execute, or die."""
        return self._run(super().execute, *arguments)

    def executemany(self, *arguments: Any) -> sqlite3.Cursor:
        """Execute, or die."""
        return self._run(super().executemany, *arguments)

    def _run(self, statement: Any, *arguments: Any) -> sqlite3.Cursor:
        kind = CrashingConnection
        kind.left -= 1
        if kind.left < 0 or (kind.left == 0 and not kind.late):
            kind.left = 0
            raise Crash
        cursor: sqlite3.Cursor = statement(*arguments)
        if kind.left == 0:
            cursor.close()
            raise Crash
        return cursor
