"""Converts events of the binary log to changes: whole transactions, or parts of large ones.

The end of a part depends only on its transaction's beginning and events. So reading again from the
same `Position` gives the same parts.

Law N12: ``docs/spec/connectors.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from lakesync.connectors.sql.binlog.events import Begin, Rows, Statement, Unreadable
from lakesync.connectors.sql.binlog.gtids import mariadb_grown, mysql_grown
from lakesync.connectors.sql.binlog.rows import rows_of
from lakesync.connectors.sql.capture.parts import PART_BYTES_MAX, Fates, Part

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from lakesync.connectors.sql.binlog.events import Decoder, Event
    from lakesync.connectors.sql.binlog.log import Position
    from lakesync.connectors.sql.binlog.rows import Reader
    from lakesync.connectors.sql.binlog.table_map import LoggedTable
    from lakesync.connectors.sql.capture.columns import CapturedTable


class GapError(Exception):
    """The log cannot be read beyond this point: all tables must be read again."""


_S: Final = 1_000_000


class Described(NamedTuple):
    """How a table's logged rows are decoded, since the log's last description of it."""

    table: CapturedTable
    readers: Sequence[Reader]


class Parts:
    """Makes parts of the events behind a position.

    Args:
        start: where to begin.
        rows_max: about how many changes a part may have.
        until_us: the latest time of a change, unless it must be later than the one before.
        table_of: gives how a table's rows are decoded; None for tables that are not captured.
        emptied: called with the name of a table that must be read again, and the time.
        stated: gives the tables that a statement may have changed.
        baselines: the times as of which tables were read whole. The log may have whole seconds
            only, so a change in the same second is dated later.
    """

    def __init__(
        self,
        start: Position,
        rows_max: int,
        until_us: int,
        table_of: Callable[[LoggedTable], Described | None],
        emptied: Callable[[str, int], None],
        stated: Callable[[Statement], Iterable[str]],
        baselines: Iterable[int] = (),
    ) -> None:
        self._position = start
        self._rows_max = rows_max
        self._table_of = table_of
        self._stated = stated
        self._baselines = sorted(baselines)
        self._described: dict[LoggedTable, Described | None] = {}
        self._fates = Fates(start.us, until_us, emptied)
        self._begun: Begin | None = None
        self._seen = 0

    def of(self, decoder: Decoder, packets: Iterable[bytes]) -> Iterator[Part]:
        """Yield the parts, in the order of commits.

        Raises:
            GapError: an event cannot be decoded.
            ValueError, IndexError: an event is malformed.
        """
        for packet in packets:
            event = decoder.event(packet)
            if event is not None:
                yield from self._of(event, decoder)

    def _of(self, event: Event, decoder: Decoder) -> Iterator[Part]:
        if isinstance(event, Rows):
            yield from self._rows(event)
        elif isinstance(event, Begin):
            self._begun, self._seen = event, 0
            self._fates.time(self._dated(event.commit_us))
        elif isinstance(event, Unreadable):
            raise GapError(event.reason)
        elif self._begun is None:
            return
        elif isinstance(event, Statement):
            yield from self._statement(event, self._begun, decoder)
        else:
            if event.is_xa:
                self._changed(Statement("", "XA COMMIT"))
            yield self._ended(self._begun, decoder)

    def _statement(self, event: Statement, begun: Begin, decoder: Decoder) -> Iterator[Part]:
        word = event.sql[:8].upper()
        if word[:5] == "BEGIN":
            self._begun = begun._replace(is_statement=False)
        elif word == "XA START":
            self._begun = begun._replace(is_statement=False, is_prepared=True)
        else:
            self._changed(event)
            if begun.is_statement:
                yield self._ended(begun, decoder)

    def _changed(self, event: Statement) -> None:
        """Schedule tables to be read again that a statement may have changed."""
        for name in self._stated(event):
            self._fates.empty(name)
            self._fates.rows += 1  # this time is in use
            self._described.clear()

    def _ended(self, begun: Begin, decoder: Decoder) -> Part:
        """End a transaction."""
        gtid = self._position.gtid
        if self._position.is_by_gtid and begun.gtid:
            grown = mysql_grown if ":" in begun.gtid else mariadb_grown
            gtid = grown(gtid, begun.gtid)
        self._begun = None
        end = self._position._replace(
            file=decoder.file, pos=decoder.pos, gtid=gtid, events=0, rows=0
        )
        # The log is requested by ids: a transaction that is not among them would be sent again.
        return self._part(end._replace(gtid="", is_by_gtid=False) if begun.is_tagged else end)

    def _rows(self, event: Rows) -> Iterator[Part]:
        self._seen += 1
        done = self._position.rows if self._seen == self._position.events + 1 else 0
        begun = self._begun
        if begun is None or begun.is_prepared or self._seen <= self._position.events:
            return
        if not event.table.is_named:
            raise GapError("binlog_row_metadata was not FULL: columns had no names")
        if event.table not in self._described:
            self._described[event.table] = self._table_of(event.table)
        described = self._described[event.table]
        if described is None:
            return
        fates = self._fates
        for count, (old, new) in enumerate(rows_of(event, described.readers), 1):
            if count <= done:
                continue
            self._take(described.table, old, new)
            fates.rows += 1
            if fates.rows >= self._rows_max or fates.size >= PART_BYTES_MAX:
                yield self._part(self._position._replace(events=self._seen - 1, rows=count))
                fates.time(self._dated(begun.commit_us))
        fates.size += len(event.data)

    def _take(self, table: CapturedTable, old: object, new: object) -> None:
        if old is None:
            self._fates.insert(table, new)
        elif new is None:
            self._fates.delete(table, old)
        else:
            self._fates.update(table, new, old, old_is_whole=True)

    def _dated(self, commit_us: int) -> int:
        second = commit_us - commit_us % _S
        near = [us + 1 for us in self._baselines if second <= us < second + _S]
        return max(commit_us, *near) if near else commit_us

    def _part(self, end: Position) -> Part:
        part = self._fates.part(end)
        self._position = part.end
        return part
