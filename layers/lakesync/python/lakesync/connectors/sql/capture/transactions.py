"""Converts messages of pgoutput to changes: whole transactions, or parts of larger ones.

The end of a part depends only on its transaction's beginning and messages. So reading again from
the same `Position` gives the same parts.

Law N12: ``docs/spec/connectors.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from lakesync.connectors.sql.capture.parts import PART_BYTES_MAX, Fates, Part
from lakesync.connectors.sql.capture.pgoutput import (
    Begin,
    Commit,
    Delete,
    Insert,
    Relation,
    Truncate,
    Update,
    decode,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from lakesync.connectors.sql.capture.columns import CapturedTable


class Position(NamedTuple):
    """A position in the log."""

    lsn: int
    """All transactions that commit before this position were processed."""
    rows: int = 0
    """Messages about rows of the next transaction that were processed already."""
    us: int = 0
    """The time of the previous part; all later parts have later times."""


class Parts:
    """Makes parts of the messages behind a position.

    Args:
        start: where to begin.
        rows_max: about how many changes a part may have.
        until_us: the latest time of a change, unless it must be later than the one before.
        table_of: gives how a table's rows are decoded, as it was announced at a time; None for
            tables that are not captured.
        emptied: called with the name of a truncated table, and the time.
    """

    def __init__(
        self,
        start: Position,
        rows_max: int,
        until_us: int,
        table_of: Callable[[Relation, int], CapturedTable | None],
        emptied: Callable[[str, int], None],
    ) -> None:
        self._position = start
        self._rows_max = rows_max
        self._table_of = table_of
        self._tables: dict[int, CapturedTable | None] = {}
        self._fates = Fates(start.us, until_us, emptied)

    def of(self, messages: Iterable[bytes]) -> Iterator[Part]:
        """Yield the parts, in the order of commits.

        Raises:
            ValueError: a message is malformed.
        """
        is_done, seen, fates, commit_us = False, 0, self._fates, 0
        for data in messages:
            message = decode(data)
            if isinstance(message, Relation):
                self._tables[message.table_id] = self._table_of(message, fates.us)
            elif isinstance(message, Begin):
                is_done, seen = message.commit_lsn < self._position.lsn, 0
                commit_us = message.commit_us
                fates.time(commit_us)
            elif isinstance(message, Commit):
                if not is_done:
                    yield self._part(Position(message.end_lsn))
            elif isinstance(message, Insert | Update | Delete | Truncate) and not is_done:
                seen += 1
                if seen <= self._position.rows:
                    continue
                self._take(message)
                fates.rows += 1
                fates.size += len(data)
                if fates.rows >= self._rows_max or fates.size >= PART_BYTES_MAX:
                    yield self._part(Position(self._position.lsn, seen))
                    fates.time(commit_us)

    def _part(self, end: Position) -> Part:
        part = self._fates.part(end)
        self._position = part.end
        return part

    def _take(self, message: Insert | Update | Delete | Truncate) -> None:
        if isinstance(message, Truncate):
            for table_id in message.table_ids:
                emptied = self._tables.get(table_id)
                if emptied is not None:
                    self._fates.empty(emptied.name)
            return
        table = self._tables.get(message.table_id)
        if table is None:
            return
        if isinstance(message, Insert):
            self._fates.insert(table, message.new)
        elif isinstance(message, Delete):
            self._fates.delete(table, message.old)
        else:
            whole = message.old_is_whole
            self._fates.update(table, message.new, message.old, old_is_whole=whole)
