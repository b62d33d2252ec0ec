"""Messages to changes: whole transactions, or parts of those that are larger than a page.

Rules of this module
    1. Of a row there is one change in each part: what became of it in the end. Two changes of a row
       are in two parts, whose times differ.
    2. A part's time is its transaction's commit, but later than that of the part before: by a
       microsecond if the source's clock says otherwise. The order of commits decides, not a clock.
    3. Where a part ends depends on nothing but where its transaction begins, and its messages. Read
       again from the same `Position`, all is the same.

Law N12: ``docs/spec/connectors.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lakesync.connectors.port import Change, Unreadable
from lakesync.connectors.sql.capture.pgoutput import (
    UNCHANGED,
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
    from lakesync.connectors.sql.capture.pgoutput import Row

PART_BYTES_MAX: Final = 4_000_000
"""Messages of one part, unless one row alone has more."""

_NO_ID: Final = "(a row whose key cannot be read)"


class Position(NamedTuple):
    """How far a log of changes was read."""

    lsn: int
    """Transactions that commit before are done."""
    rows: int = 0
    """Messages about rows that are done of the first transaction behind."""
    us: int = 0
    """The time of the part before: every later one is later."""


class Omitted(NamedTuple):
    """A row under a new key, of which the source does not tell all columns."""

    table: CapturedTable
    row_id: str
    columns: tuple[str, ...]


class Part(NamedTuple):
    """A transaction, or a part of one."""

    changes: tuple[Change, ...]
    unreadable: tuple[Unreadable, ...]
    rows: int
    """Messages about rows."""
    size: int
    """Their bytes."""
    end: Position
    omitted: tuple[Omitted, ...] = ()


class _Fate(NamedTuple):
    """What became of a row within a part."""

    is_new: bool
    """It was not there before the part."""
    columns: dict[str, Any] | None
    reason: str = ""


class Parts:
    """Makes parts of the messages behind a position.

    Args:
        start: where to begin.
        rows_max: about how many changes a part may have.
        until_us: nothing is dated later, but to be later than what came before.
        table_of: gives how a table's rows are told, as it was announced at a time; None for tables
            that are not captured.
        emptied: is told a table whose rows are all gone, and when.
    """

    def __init__(
        self,
        start: Position,
        rows_max: int,
        until_us: int,
        table_of: Callable[[Relation, int], CapturedTable | None],
        emptied: Callable[[CapturedTable, int], None],
    ) -> None:
        self._position = start
        self._rows_max = rows_max
        self._until_us = until_us
        self._table_of = table_of
        self._emptied = emptied
        self._tables: dict[int, CapturedTable | None] = {}
        self._fates: dict[tuple[str, str], _Fate] = {}
        self._omitted: dict[tuple[str, str], Omitted] = {}
        self._rows = self._bytes = 0
        self._us = 0

    def of(self, messages: Iterable[bytes]) -> Iterator[Part]:
        """Give the parts, in the order of commits.

        Raises:
            ValueError: a message is none of pgoutput's.
        """
        is_done, seen = False, 0
        for data in messages:
            message = decode(data)
            if isinstance(message, Relation):
                self._tables[message.table_id] = self._table_of(message, self._us)
            elif isinstance(message, Begin):
                is_done, seen = message.commit_lsn < self._position.lsn, 0
                self._us = self._time(message.commit_us)
                self._commit_us = message.commit_us
            elif isinstance(message, Commit):
                if not is_done:
                    yield self._part(Position(message.end_lsn, 0, self._us))
            elif isinstance(message, Insert | Update | Delete | Truncate) and not is_done:
                seen += 1
                if seen <= self._position.rows:
                    continue
                self._take(message)
                self._rows += 1
                self._bytes += len(data)
                if self._rows >= self._rows_max or self._bytes >= PART_BYTES_MAX:
                    yield self._part(Position(self._position.lsn, seen, self._us))
                    self._us = self._time(self._commit_us)

    def _time(self, commit_us: int) -> int:
        return max(min(commit_us, self._until_us), self._position.us + 1)

    def _part(self, end: Position) -> Part:
        """End a part; one that holds nothing uses up no time."""
        if not self._rows:
            end = end._replace(us=self._position.us)
        part = Part(
            tuple(
                Change(row_id, fate.columns, self._us, table)
                for (table, row_id), fate in self._fates.items()
                if not fate.reason
            ),
            tuple(
                Unreadable(row_id, fate.reason, table)
                for (table, row_id), fate in self._fates.items()
                if fate.reason
            ),
            self._rows,
            self._bytes,
            end,
            tuple(self._omitted.values()),
        )
        self._fates, self._omitted = {}, {}
        self._rows = self._bytes = 0
        self._position = end
        return part

    def _take(self, message: Insert | Update | Delete | Truncate) -> None:
        if isinstance(message, Truncate):
            for table_id in message.table_ids:
                self._empty(self._tables.get(table_id))
            return
        table = self._tables.get(message.table_id)
        if table is None:
            return
        try:
            if isinstance(message, Insert):
                self._put(table, table.row_id(message.new), message.new, is_new=True)
            elif isinstance(message, Delete):
                self._remove(table, table.row_id(message.old))
            else:
                self._update(table, message)
        except ValueError as exc:
            self._fates[table.name, _NO_ID] = _Fate(is_new=False, columns=None, reason=str(exc))

    def _update(self, table: CapturedTable, message: Update) -> None:
        new, old = message.new, message.old
        if old is not None:
            keys = {table.places[at] for at in table.key_places}
            new = tuple(
                old[place] if value is UNCHANGED and place in keys else value
                for place, value in enumerate(new)
            )
        row_id = table.row_id(new)
        before = table.row_id(old) if old is not None else row_id
        if before == row_id:
            self._put(table, row_id, new, is_new=False)
            return
        self._move(table, before, row_id, new, old if message.old_is_whole else None)

    def _move(
        self, table: CapturedTable, before: str, row_id: str, new: Row, old: Row | None
    ) -> None:
        """Let a row go under its old key, and come under its new one."""
        if old is not None:
            pairs = zip(new, old, strict=True)
            new = tuple(was if value is UNCHANGED else value for value, was in pairs)
        omitted = table.omitted(new)
        self._remove(table, before)
        self._put(table, row_id, new, is_new=True)
        if omitted:
            self._omitted[table.name, row_id] = Omitted(table, row_id, omitted)

    def _put(self, table: CapturedTable, row_id: str, row: Row, *, is_new: bool) -> None:
        place = (table.name, row_id)
        fate = self._fates.pop(place, None)
        if fate is not None:
            is_new = fate.is_new
        try:
            columns = table.values(row)
        except ValueError as exc:
            self._fates[place] = _Fate(is_new, None, str(exc) or "it cannot be read")
            return
        if fate is not None and fate.columns is not None:
            columns = fate.columns | columns
        self._fates[place] = _Fate(is_new, columns)

    def _remove(self, table: CapturedTable, row_id: str) -> None:
        place = (table.name, row_id)
        fate = self._fates.pop(place, None)
        self._omitted.pop(place, None)
        if fate is None or not fate.is_new:
            self._fates[place] = _Fate(is_new=False, columns=None)

    def _empty(self, table: CapturedTable | None) -> None:
        if table is None:
            return
        for place in [place for place in self._fates if place[0] == table.name]:
            del self._fates[place]
            self._omitted.pop(place, None)
        self._emptied(table, self._us)
