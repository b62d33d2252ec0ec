"""The changes of all captured tables of MySQL or MariaDB, in the order of their commits.

The feed creates nothing at the source and acknowledges nothing to it: the source's own settings
determine how long it keeps its log. After a crash the same changes are read again, from the saved
cursor.

Rules of this module
    1. A position is between whole transactions, by their ids if the source has them: these stay
       valid after a failover.
    2. A log that was purged, or that is another server's, is a gap: the feed reports it with a
       separate cursor, and all tables are read again.

Law N12: ``docs/spec/connectors.md``.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import pymysql

from lakesync.connectors.port import KEPT_BYTES, SourcePage
from lakesync.connectors.sql.binlog import log
from lakesync.connectors.sql.binlog.events import Decoder
from lakesync.connectors.sql.binlog.going_back import GoingBack
from lakesync.connectors.sql.binlog.log import Position
from lakesync.connectors.sql.binlog.logged import Logged
from lakesync.connectors.sql.binlog.parts import GapError, Parts
from lakesync.connectors.sql.binlog.reading import Reading
from lakesync.connectors.sql.binlog.stream import Stream
from lakesync.connectors.sql.capture.captured import Captured
from lakesync.connectors.sql.capture.gathering import Gathering
from lakesync.connectors.sql.capture.omitted import with_omitted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from lakesync.adapters.sql.dialect import Dialect
    from lakesync.connectors.sql.binlog.log import Look
    from lakesync.connectors.sql.binlog.tables import Tables
    from lakesync.connectors.sql.capture.parts import Part
    from lakesync.connectors.sql.configuration import PolledTable
    from lakesync.connectors.storage import Storage

READ_BYTES_MAX: Final = 32_000_000
"""Bytes of the log that are read for one page, of all tables together; or one transaction."""
_GONE: Final = 1236
"""The source's error for a position that its log does not contain."""


class Feed:
    """Reads the log for one connector.

    Attributes:
        captured, tables: the captured tables, and their descriptions at the source.
    """

    def __init__(
        self,
        dialect: Dialect,
        tables: Tables,
        settings: Mapping[str, PolledTable],
        storage: Storage,
        server_id: int,
    ) -> None:
        self._dialect = dialect
        self._server_id = server_id
        self._going_back = GoingBack(dialect, server_id)
        self._reading: Reading | None = None
        self._report: dict[str, str | int] = {}
        self.tables = tables
        self.captured = Captured("", tables, settings, storage)

    def forget(self) -> None:
        """End the current reading."""
        reading, self._reading = self._reading, None
        if reading is not None and reading.stream is not None:
            reading.stream.close()

    def page(self, cursor: Any, after: str, rows_max: int, poll_ms: int) -> SourcePage:
        """Return the changes that were committed after a cursor."""
        at = json.loads(after or "{}")
        try:
            reading = self._reading
            if reading is None or reading.expected != after or reading.poll_ms != poll_ms:
                self.forget()
                begun = self._begun(cursor, at, rows_max, poll_ms)
                if isinstance(begun, SourcePage):
                    return begun
                reading = self._reading = begun
            return self._next(cursor, reading, rows_max)
        except GapError as exc:
            return self._lost(str(exc), at["us"])
        except pymysql.MySQLError as exc:
            if exc.args[:1] != (_GONE,) or "same server" in str(exc):
                raise
            return self._lost(f"the source's log lacks what was not read: {exc.args[1]}", at["us"])

    def looked(self, cursor: Any) -> Look:
        """Query the state of the log and of the tables."""
        look = log.look(cursor)
        self.tables.image = look.settings.get("binlog_row_image", "FULL").upper()
        self.tables.is_folded = look.is_folded
        self.tables.reached = log.reached(look, look.end)
        return look

    def _begun(
        self, cursor: Any, at: dict[str, Any], rows_max: int, poll_ms: int
    ) -> Reading | SourcePage:
        """Begin to read behind a position; return a page if something must be done first."""
        look = self.looked(cursor)
        self.captured.load()
        if "file" not in at:
            return self._prepared(cursor, look, at, poll_ms)
        if "from" in at:
            at = self._going_back.moved(cursor, look, at)
        position = Position(**{name: at[name] for name in Position._fields})
        if not position.is_by_gtid and at["server"] != look.server:
            return self._lost("another server took over, without ids of transactions", at["us"])
        unread = log.unread_bytes(cursor, position)
        if at["server"] == look.server and unread < 0:
            return self._lost(
                "the source's log ends before what was read: it was reset, or the source was "
                "restored from a backup",
                at["us"],
            )
        self.captured.follow(cursor, at["us"])
        self._report = self._reported(look, max(unread, 0))
        back = tuple(at.get("back", ()))
        if not back or position.place >= back:
            back = ()
            position = position._replace(us=max(at["us"], self.captured.kept.floor_us))
        is_same = at.get("poll") == poll_ms and at["server"] == look.server
        until = at["until"] if is_same else (look.end.file, look.end.pos)
        reading = Reading(position, (until[0], until[1]), look.server, poll_ms, back)
        if position.place < look.end.place or look.server != at["server"]:
            self._read(cursor, reading, look, rows_max)
        return reading

    def _read(self, cursor: Any, reading: Reading, look: Look, rows_max: int) -> None:
        """Request the log from the source."""
        reading.stream = Stream(
            self._dialect, reading.position, self._server_id, is_mariadb=look.is_mariadb
        )
        decoder = Decoder(
            is_checked=look.settings.get("binlog_checksum", "NONE") != "NONE",
            is_mariadb=look.is_mariadb,
            wanted=lambda schema, table: self.tables.name_of(schema, table) is not None,
        )
        # A separate database cursor: it stays in use after this page's is closed.
        own = cursor.connection.cursor()
        logged = Logged(self.captured, self.tables)

        def emptied(name: str, us: int) -> None:
            place = Position(decoder.file, decoder.pos, reading.position.gtid)
            self.tables.reached = log.reached(look, place)
            logged.restate(own, name, us)

        parts = Parts(
            reading.position,
            rows_max,
            reading.poll_ms * 1000,
            logged.described,
            emptied,
            logged.stated,
            [mark.us for mark in self.captured.kept.tables.values()],
        )
        behind = self._until(parts.of(decoder, self._counted(reading)), reading)
        reading.gathering = Gathering(behind, lambda: reading.size < READ_BYTES_MAX)

    def _counted(self, reading: Reading) -> Iterator[bytes]:
        assert reading.stream is not None  # noqa: S101 - it was just asked for
        for packet in reading.stream.packets():
            reading.size += len(packet)
            yield packet

    def _until(self, parts: Iterator[Part], reading: Reading) -> Iterator[Part]:
        until = Position(*reading.until).place
        for part in parts:
            yield part
            if part.end.place >= until and not part.end.events and not part.end.rows:
                return

    def _lost(self, reason: str, us: int) -> SourcePage:
        """Report that changes are missing; the recovery waits until that is durable."""
        self.forget()
        report: dict[str, str | int] = {"readAgain": reason}
        return SourcePage((), json.dumps({"lost": reason, "us": us}), has_more=True, report=report)

    def _prepared(self, cursor: Any, look: Look, at: dict[str, Any], poll_ms: int) -> SourcePage:
        """Have all tables read as of now, and later changes from the log."""
        captured = self.captured
        self.tables.look(cursor)
        captured.begin(cursor, at.get("lost", ""), is_made=True)
        us = max(min(look.now_us, poll_ms * 1000), at.get("us", 0) + 1)
        captured.mark_all(cursor, us)
        after = look.end._replace(us=us)._asdict() | {"server": look.server}
        report = self._reported(look, 0)
        return SourcePage((), json.dumps(after), has_more=True, report=report)

    def _reported(self, look: Look, unread_bytes: int) -> dict[str, str | int]:
        report: dict[str, str | int] = {KEPT_BYTES: unread_bytes, "logKeptS": look.kept_s}
        again = self.captured.kept.again
        return report | ({"readAgain": again} if again else {})

    def _next(self, cursor: Any, reading: Reading, rows_max: int) -> SourcePage:
        reading.size = 0
        gathered = reading.gathering.page(rows_max)
        if gathered.last is not None:
            reading.position = gathered.last.end
        if gathered.is_end:
            return self._last(cursor, reading, gathered.parts)
        return self._page(cursor, reading, gathered.parts, has_more=True)

    def _last(self, cursor: Any, reading: Reading, parts: list[Part]) -> SourcePage:
        """Return the last page of a reading."""
        # What was read must be durable first: its times must not change if it is read again.
        has_more = bool(parts and self.captured.altered())
        if not has_more:
            us = self.captured.read_altered_again(cursor, reading.position.us)
            reading.position = reading.position._replace(us=us)
        page = self._page(cursor, reading, parts, has_more=has_more)
        self.forget()
        return page

    def _page(
        self, cursor: Any, reading: Reading, parts: list[Part], *, has_more: bool
    ) -> SourcePage:
        changes = with_omitted(cursor, self._dialect, parts)
        more = {"server": reading.server, "until": reading.until, "poll": reading.poll_ms}
        again = {"back": reading.back} if reading.position.place < reading.back else {}
        reading.expected = json.dumps(reading.position._asdict() | more | again)
        return SourcePage(
            changes,
            reading.expected,
            has_more,
            tuple(each for part in parts for each in part.unreadable),
            is_dated=True,
            report=self._report,
        )
