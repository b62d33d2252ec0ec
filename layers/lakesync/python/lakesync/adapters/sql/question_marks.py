"""Connections whose driver has ``?`` for parameters: a `Dialect` writes them as ``%s``."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_MARK = re.compile("%[%s]")


@lru_cache(maxsize=256)
def _marked(statement: str) -> str:
    return _MARK.sub(lambda mark: "?" if mark[0] == "%s" else "%", statement)


class QuestionMarks:
    """A connection of such a driver; its transactions may begin by a statement.

    Args:
        connection: the driver's (PEP 249).
        begin: the statement that begins each transaction; empty if the driver begins them.
    """

    def __init__(self, connection: Any, begin: str = "") -> None:
        self._connection = connection
        self._begin = begin
        self.commit = connection.commit
        self.rollback = connection.rollback
        self.close = connection.close

    def cursor(self) -> Any:
        cursor = self._connection.cursor()
        if self._begin:
            cursor.execute(self._begin)
        return _Cursor(cursor)


class _Cursor:
    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor
        self.fetchone = cursor.fetchone
        self.fetchall = cursor.fetchall

    @property
    def rowcount(self) -> int:
        count: int = self._cursor.rowcount
        return count

    def execute(self, statement: str, parameters: Sequence[object] = ()) -> None:
        self._cursor.execute(_marked(statement), parameters)

    def executemany(self, statement: str, rows: Iterable[Sequence[object]]) -> None:
        self._cursor.executemany(_marked(statement), rows)
