"""MySQL and MariaDB as sources by change capture: their binary log of rows.

The changes of all captured tables of MySQL or MariaDB, in the order of their commits. The feed
creates nothing at the source and acknowledges nothing to it: the source's own settings determine
how long it keeps its log. After a crash the same changes are read again, from the saved cursor.

Rules of the feed
    1. A position is between whole transactions, by their ids if the source has them: these stay
       valid after a failover.
    2. A log that was purged, or that is another server's, is a gap: the feed reports it with a
       separate cursor, and all tables are read again.

Converts events of the binary log to changes: whole transactions, or parts of large ones. The end of
a part depends only on its transaction's beginning and events. So reading again from the same
`Position` gives the same parts.

Law N12: ``docs/spec/connectors.md``.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pymysql
from pymysql.constants import ER

from lakesync.connectors.port import KEPT_BYTES, SourcePage, digest
from lakesync.errors import AdapterRefused, LakeSyncError
from lakesync.systems.mysql import binlog
from lakesync.systems.mysql.binlog import (
    BinlogReading,
    GoingBack,
    Position,
    Stream,
    mariadb_grown,
    mysql_grown,
    wait,
)
from lakesync.systems.mysql.binlog_events import (
    Begin,
    Decoder,
    Rows,
    Statement,
    Unreadable,
    tables_in,
)
from lakesync.systems.mysql.binlog_rows import reader_of, rows_of
from lakesync.systems.mysql.binlog_tables import Tables, captured_table
from lakesync.systems.mysql.mysql_source import MySqlSource
from lakesync.systems.sql.captured_tables import CAPTURE, Captured
from lakesync.systems.sql.log_changes import GapError, Gathering, LogFeed, NetChanges
from lakesync.systems.sql.sql_source import CapturedSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from lakesync.adapters.sql.standard import Dialect
    from lakesync.connectors.port import Storage
    from lakesync.result import Result
    from lakesync.systems.mysql.binlog import Look
    from lakesync.systems.mysql.binlog_events import Event, LoggedTable
    from lakesync.systems.mysql.binlog_rows import Reader
    from lakesync.systems.mysql.mysql_settings import MySqlSettings
    from lakesync.systems.sql.captured_tables import CapturedTable
    from lakesync.systems.sql.log_changes import Part

# --- the connector --------------------------------------------------------------------------------


_MAY_REPLICATE: Final = (
    ("REPLICATION SLAVE", "REPLICATION REPLICA", "ALL PRIVILEGES"),
    ("REPLICATION CLIENT", "BINLOG MONITOR", "ALL PRIVILEGES"),
)
"""The privileges to read the log and to query its end, as MySQL and MariaDB name them."""


class BinlogConnector(CapturedSource):
    """`lakesync.connectors.Connector` of MySQL or MariaDB, by its log of changes."""

    def __init__(self, source: MySqlSource, settings: MySqlSettings, storage: Storage) -> None:
        server_id = settings.server_id or 1 << 31 | int(
            digest(storage.gateway, storage.name)[:7], 16
        )
        tables = Tables(settings.database, settings.polled())
        feed = self._feed = Feed(source.dialect, tables, storage, server_id)
        super().__init__(source, settings, storage, feed, wait)

    def check(self) -> Result[str, LakeSyncError]:
        """Check that changes can be captured; nothing is created."""

        def work(cursor: Any) -> str:
            _check_may_replicate(cursor)
            look = self._feed.looked(cursor)
            if not (look.is_mariadb or look.end.is_by_gtid):
                _check_sees_transactions(cursor)
            self._check_tables(cursor)
            kept = f"for {look.kept_s // 3600} hours" if look.kept_s else "as long as it fits"
            return (
                f"{look.settings['version']} at {self._settings.host} answers, and changes of "
                f"{', '.join(self._tables)} can be captured; it keeps its log {kept}: after a "
                "longer pause all is read again."
            )

        return self._run(work)


def _check_may_replicate(cursor: Any) -> None:
    """Refuse a user who may not read the log, if that can be determined: a role's rights cannot."""
    cursor.execute("SHOW GRANTS")
    grants = [str(row[0]).upper() for row in cursor.fetchall()]
    if any(" ON " not in grant for grant in grants):
        return  # a role, which may have the privilege
    if not all(any(name in " ".join(grants) for name in names) for names in _MAY_REPLICATE):
        raise AdapterRefused(
            "the user may not read the log of changes: "
            "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO …"
        )


def _check_sees_transactions(cursor: Any) -> None:
    """Refuse a user who may not list open transactions, which is needed for MySQL without ids."""
    try:
        cursor.execute("SELECT count(*) FROM information_schema.INNODB_TRX")
    except pymysql.OperationalError as exc:
        if exc.args[:1] != (ER.SPECIFIC_ACCESS_DENIED_ERROR,):
            raise
        raise AdapterRefused(
            "the user may not see open transactions, which is needed where transactions have no "
            "ids: GRANT PROCESS ON *.* TO …, or set gtid_mode = ON"
        ) from exc
    cursor.fetchall()


def made(settings: MySqlSettings, storage: Storage, hosts: tuple[str, ...]) -> BinlogConnector:
    return BinlogConnector(MySqlSource(settings, hosts), settings, storage)


def forget(storage: Storage, following: MySqlSettings | None) -> str:
    """Remove capture's state, unless new settings continue it; nothing exists at the source."""
    if following is None or not following.changes:
        storage.remove(CAPTURE)
    return ""


# --- the feed -------------------------------------------------------------------------------------


READ_BYTES_MAX: Final = 32_000_000
"""Bytes of the log that are read for one page, of all tables together; or one transaction."""
_GONE: Final = 1236
"""The source's error for a position that its log does not contain."""


class Feed(LogFeed[BinlogReading]):
    """Reads the log for one connector."""

    def __init__(self, dialect: Dialect, tables: Tables, storage: Storage, server_id: int) -> None:
        super().__init__(dialect, Captured("", tables, storage), {})
        self._server_id = server_id
        self._going_back = GoingBack(dialect, server_id)
        self._tables = tables

    def forget(self) -> None:
        """End the current reading, and its stream."""
        reading, self._reading = self._reading, None
        if reading is not None and reading.stream is not None:
            reading.stream.close()

    def page(self, cursor: Any, after: str, rows_max: int, poll_ms: int) -> SourcePage:
        """Return the changes that were committed after a cursor."""
        try:
            return super().page(cursor, after, rows_max, poll_ms)
        except pymysql.MySQLError as exc:
            if exc.args[:1] != (_GONE,) or "same server" in str(exc):
                raise
            reason = f"the source's log lacks what was not read: {exc.args[1]}"
            return self._lost(reason, json.loads(after)["us"])

    def look(self, cursor: Any) -> None:
        self.looked(cursor)
        super().look(cursor)

    def looked(self, cursor: Any) -> Look:
        """Query the state of the log, by which tables are looked at."""
        look = binlog.look(cursor)
        self._tables.image = look.settings.get("binlog_row_image", "FULL").upper()
        self._tables.is_folded = look.is_folded
        self._tables.reached = binlog.reached(look, look.end)
        return look

    def _begun(
        self, cursor: Any, at: dict[str, Any], rows_max: int, poll_ms: int
    ) -> BinlogReading | SourcePage:
        look = self.looked(cursor)
        self.captured.load()
        if "file" not in at:
            return self._prepared(cursor, look, at, poll_ms)
        if "from" in at:
            at = self._going_back.moved(cursor, look, at)
        position = Position(**{name: at[name] for name in Position._fields})
        if not position.is_by_gtid and at["server"] != look.server:
            raise GapError("another server took over, without ids of transactions")
        unread = binlog.unread_bytes(cursor, position)
        if at["server"] == look.server and unread < 0:
            raise GapError(
                "the source's log ends before what was read: it was reset, or the source was "
                "restored from a backup"
            )
        self.captured.follow(cursor, at["us"])
        self._report = self._reported(**_sizes(look, max(unread, 0)))
        back = tuple(at.get("back", ()))
        if not back or position.place >= back:
            back = ()
            position = position._replace(us=max(at["us"], self.captured.kept.floor_us))
        is_same = at.get("poll") == poll_ms and at["server"] == look.server
        until = at["until"] if is_same else (look.end.file, look.end.pos)
        reading = BinlogReading(
            position=position, until=(until[0], until[1]), server=look.server, poll_ms=poll_ms,
            back=back,
        )  # fmt: skip
        if position.place < look.end.place or look.server != at["server"]:
            self._read(cursor, reading, look, rows_max)
        return reading

    def _read(self, cursor: Any, reading: BinlogReading, look: Look, rows_max: int) -> None:
        """Request the log from the source."""
        reading.stream = Stream(
            self._dialect, reading.position, self._server_id, is_mariadb=look.is_mariadb
        )
        decoder = Decoder(
            is_checked=look.settings.get("binlog_checksum", "NONE") != "NONE",
            is_mariadb=look.is_mariadb,
            wanted=lambda schema, table: self._tables.name_of(schema, table) is not None,
        )
        # A separate database cursor: it stays in use after this page's is closed.
        own = cursor.connection.cursor()
        logged = Logged(self.captured, self._tables)

        def emptied(name: str, us: int) -> None:
            place = Position(decoder.file, decoder.pos, reading.position.gtid)
            self._tables.reached = binlog.reached(look, place)
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

    def _counted(self, reading: BinlogReading) -> Iterator[bytes]:
        assert reading.stream is not None  # noqa: S101 - it was just asked for
        for packet in reading.stream.packets():
            reading.size += len(packet)
            yield packet

    def _until(self, parts: Iterator[Part], reading: BinlogReading) -> Iterator[Part]:
        until = Position(*reading.until).place
        for part in parts:
            yield part
            if part.end.place >= until and not part.end.events and not part.end.rows:
                return

    def _prepared(self, cursor: Any, look: Look, at: dict[str, Any], poll_ms: int) -> SourcePage:
        """Have all tables read as of now, and later changes from the log."""
        captured = self.captured
        self._tables.look(cursor)
        captured.begin(cursor, at.get("lost", ""), is_made=True)
        us = max(min(look.now_us, poll_ms * 1000), at.get("us", 0) + 1)
        captured.mark_all(cursor, us)
        after = look.end._replace(us=us)._asdict() | {"server": look.server}
        return self._step(after, self._reported(**_sizes(look, 0)))

    def _next(self, cursor: Any, reading: BinlogReading, rows_max: int) -> SourcePage:
        reading.size = 0
        return super()._next(cursor, reading, rows_max)

    def _cursor_of(self, reading: BinlogReading) -> dict[str, Any]:
        more = {"server": reading.server, "until": reading.until, "poll": reading.poll_ms}
        again = {"back": reading.back} if reading.position.place < reading.back else {}
        return reading.position._asdict() | more | again


def _sizes(look: Look, unread_bytes: int) -> dict[str, str | int]:
    return {KEPT_BYTES: unread_bytes, "logKeptS": look.kept_s}


# --- tables in the log ----------------------------------------------------------------------------


class Logged:
    """The captured tables, as the log describes them up to the current event."""

    def __init__(self, captured: Captured, tables: Tables) -> None:
        self._captured = captured
        self._tables = tables

    def described(self, logged: LoggedTable) -> Described | None:
        """Return how a table's logged rows are decoded; None if it is not captured."""
        name = self._tables.name_of(logged.schema, logged.name)
        if name is None or name not in self._captured.kept.tables:
            return None
        try:
            table = captured_table(logged, self._tables.looks[name], self._tables.settings[name])
            readers = tuple(map(reader_of, logged.columns))
        except AdapterRefused:
            # A configured column is missing, in the table or in the log: read once it exists.
            self._captured.kept.tables.pop(name, None)
            self._captured.save()
            return None
        return Described(table, readers)

    def stated(self, statement: Statement) -> list[str]:
        """Return the tables that a statement may have changed without logging their rows."""
        places = {name: self._tables.place(name) for name in self._tables.settings}
        return tables_in(statement.sql, statement.schema, places)

    def restate(self, cursor: Any, name: str, us: int) -> None:
        """Schedule a table to be read again; forget it if it no longer exists."""
        cursor.connection.rollback()
        self._tables.look(cursor)
        if name in self._tables.looks:
            self._captured.mark(cursor, name, us)
        else:
            self._captured.kept.tables.pop(name, None)
        self._captured.save()


# --- transactions ---------------------------------------------------------------------------------


_S: Final = 1_000_000


class Described(NamedTuple):
    """How a table's logged rows are decoded, since the log's last description of it."""

    table: CapturedTable
    readers: Sequence[Reader]


class Parts:
    """Makes parts of the events behind a position.

    Args:
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
        self._table_of = table_of
        self._stated = stated
        self._baselines = sorted(baselines)
        self._described: dict[LoggedTable, Described | None] = {}
        self._changes = NetChanges(start, rows_max, until_us, emptied)
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
            self._changes.time(self._dated(event.commit_us))
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
            self._changes.empty(name)
            self._changes.rows += 1  # this time is in use
            self._described.clear()

    def _ended(self, begun: Begin, decoder: Decoder) -> Part:
        gtid = self._changes.position.gtid
        if self._changes.position.is_by_gtid and begun.gtid:
            grown = mysql_grown if ":" in begun.gtid else mariadb_grown
            gtid = grown(gtid, begun.gtid)
        self._begun = None
        end = self._changes.position._replace(
            file=decoder.file, pos=decoder.pos, gtid=gtid, events=0, rows=0
        )
        # The log is requested by ids: a transaction that is not among them would be sent again.
        if begun.is_tagged:
            end = end._replace(gtid="", is_by_gtid=False)
        return self._changes.part(end)

    def _rows(self, event: Rows) -> Iterator[Part]:
        self._seen += 1
        at, begun = self._changes.position, self._begun
        done = at.rows if self._seen == at.events + 1 else 0
        if begun is None or begun.is_prepared or self._seen <= at.events:
            return
        if not event.table.is_named:
            raise GapError("binlog_row_metadata was not FULL: columns had no names")
        if event.table not in self._described:
            self._described[event.table] = self._table_of(event.table)
        described = self._described[event.table]
        if described is None:
            return
        changes = self._changes
        for count, (old, new) in enumerate(rows_of(event, described.readers), 1):
            if count <= done:
                continue
            self._take(described.table, old, new)
            changes.rows += 1
            if changes.is_full:
                yield self._changes.part(
                    self._changes.position._replace(events=self._seen - 1, rows=count)
                )
                changes.time(self._dated(begun.commit_us))
        changes.size += len(event.data)

    def _take(self, table: CapturedTable, old: object, new: object) -> None:
        if old is None:
            self._changes.insert(table, new)
        elif new is None:
            self._changes.delete(table, old)
        else:
            self._changes.update(table, new, old, old_is_whole=True)

    def _dated(self, commit_us: int) -> int:
        second = commit_us - commit_us % _S
        near = [us + 1 for us in self._baselines if second <= us < second + _S]
        return max(commit_us, *near) if near else commit_us
