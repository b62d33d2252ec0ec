"""PostgreSQL as a source by change capture: its own log of changes, by a replication slot.

The changes of all captured tables, in the order of their commits, by a replication slot. The slot
is peeked, which does not move it. Once the cursor behind the changes is durable, the slot is
advanced, before the next peek. After a crash between any two of these steps, the same changes are
read again.

Rules of the feed
    1. Irreversible operations at the source (a slot is dropped, created, advanced) are done for a
       cursor that was passed in, which is durable, and never for one that is about to be returned.
    2. A slot that is gone, or that another client moved, is a gap: the feed reports it with a
       separate cursor, and all tables are read again.

Converts messages of pgoutput to changes: whole transactions, or parts of larger ones. The end of a
part depends only on its transaction's beginning and messages. So reading again from the same
`Position` gives the same parts.

Law N12: ``docs/spec/connectors.md``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from psycopg import errors as pg

from lakesync.connectors.port import FEED, KEPT_BYTES, SourceColumn, SourcePage, SourceTable
from lakesync.errors import (
    AdapterFailed,
    AdapterRefused,
    AdapterTimedOut,
    LakeSyncError,
    ValidationFailed,
)
from lakesync.systems.postgres.pgoutput import (
    Begin,
    Commit,
    Delete,
    Insert,
    Relation,
    Truncate,
    Update,
    decode,
)
from lakesync.systems.postgres.postgres_source import PostgresSource, PostgresValues, resolved
from lakesync.systems.postgres.replication_slot import (
    PEEK_MESSAGES_MAX,
    Slot,
    Tables,
    forgotten,
    wait,
)
from lakesync.systems.sql import sql_source
from lakesync.systems.sql.captured_tables import CAPTURE, Captured, CapturedTable, kept_in
from lakesync.systems.sql.log_changes import PART_BYTES_MAX, Fates, Gathering, Part, with_omitted
from lakesync.systems.sql.sql_source import SnapshotConnector
from lakesync.systems.sql.table_plan import READ_S_MAX, plan_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from lakesync.connectors.port import Storage
    from lakesync.result import Result
    from lakesync.systems.postgres.postgres_settings import PostgresSettings
    from lakesync.systems.postgres.replication_slot import Look
    from lakesync.systems.sql.captured_tables import Baseline
    from lakesync.systems.sql.sql_settings import PolledTable
    from lakesync.systems.sql.table_plan import Plan

# --- the connector --------------------------------------------------------------------------------


class CaptureConnector(SnapshotConnector):
    """`lakesync.connectors.Connector` of a PostgreSQL database, by its log of changes."""

    def __init__(
        self, source: PostgresSource, settings: PostgresSettings, storage: Storage
    ) -> None:
        super().__init__(source, settings, storage)
        self._source = source
        self._slot = Slot(source, settings, storage)
        self._feed = Feed(source, self._slot, self._tables, storage)

    def check(self) -> Result[str, LakeSyncError]:
        """Check that changes can be captured; nothing is created."""

        def work(cursor: Any) -> str:
            self._slot.check(cursor)
            tables = Tables(self._source, self._slot, self._tables)
            tables.look(cursor)
            if tables.faults:
                raise AdapterRefused(" ".join(tables.faults.values()))
            for name in self._tables:
                tables.plan(cursor, name)
            tables.check(cursor, is_made=self._slot.look(cursor).is_published)
            return (
                f"PostgreSQL at {self._settings.host} answers, and changes of "
                f"{', '.join(self._tables)} can be captured by the slot {self._slot.name}."
            )

        return self._run(work)

    def read(
        self, table: str, cursor: str, *, rows_max: int, poll_ms: int
    ) -> Result[SourcePage, LakeSyncError]:
        """Return a page of the feed, or of a table that is read whole."""

        def feed(connected: Any) -> SourcePage:
            return self._feed.page(connected, cursor, rows_max, poll_ms)

        def whole(connected: Any) -> SourcePage:
            return self._whole(connected, table, cursor, rows_max)

        return self._run(feed, keeps=True) if table == FEED else self._run(whole)

    def close(self) -> None:
        """End the connection."""
        self._feed.forget()
        super().close()

    def _whole(self, cursor: Any, name: str, after: str, rows_max: int) -> SourcePage:
        marked = self._marked(cursor, name)
        if marked is None:
            return SourcePage((), after, has_more=False)  # the feed reports the reason
        dialect = self._source.dialect
        return sql_source.read_snapshot(
            cursor, dialect, *marked, self._storage, after, rows_max, wait
        )

    def _marked(self, cursor: Any, name: str) -> tuple[Plan, Baseline] | None:
        if name not in self._tables:
            raise ValidationFailed(f"this connector does not poll {name}", field="table")
        tables = self._feed.captured.tables
        mark = kept_in(self._storage).tables.get(name)
        if mark is None:
            tables.look(cursor)
            if name in tables.faults:
                raise AdapterRefused(tables.faults[name])
            return None
        if name not in tables.looks:
            tables.look(cursor)
        return tables.plan(cursor, name), mark


def made(settings: PostgresSettings, storage: Storage, hosts: tuple[str, ...]) -> CaptureConnector:
    """Return the connector that reads the log."""
    return CaptureConnector(PostgresSource(settings, hosts), settings, storage)


def forget(
    settings: PostgresSettings,
    storage: Storage,
    following: PostgresSettings | None,
    hosts: tuple[str, ...] = (),
) -> str:
    """Drop what was created at the source, unless new settings use it; returns what remains."""
    kept = kept_in(storage)
    places = ("host", "port", "database", "changes", "slot", "publication")
    if following is not None and all(
        getattr(settings, name) == getattr(following, name) for name in places
    ):
        return ""
    if not kept.slot:
        return ""
    source = PostgresSource(settings, hosts)
    remains = forgotten(source, Slot(source, settings, storage), kept.all)
    if following is not None or not remains:
        storage.remove(CAPTURE)
    return remains


# --- the feed -------------------------------------------------------------------------------------


DECODE_TRIES_MAX: Final = 3
"""Attempts at a transaction that the source does not decode in time."""
_TIMED_OUT: Final = "timed-out"
"""The place in the storage of the number of attempts."""


@dataclass
class _Peek:
    """One reading of the log, page by page."""

    gathering: Gathering
    position: Position
    until: int
    poll_ms: int
    expected: str
    """The cursor with which its next page will be requested."""
    messages: int = 0


class Feed:
    """Reads the slot of one connector.

    Attributes:
        captured: the captured tables.
    """

    def __init__(
        self,
        source: PostgresSource,
        slot: Slot,
        settings: Mapping[str, PolledTable],
        storage: Storage,
    ) -> None:
        self._source = source
        self._slot = slot
        self._storage = storage
        self._peek: _Peek | None = None
        self._report: dict[str, str | int] = {}
        self.captured = Captured(slot.name, Tables(source, slot, settings), settings, storage)

    def forget(self) -> None:
        """Forget the current reading: the connection is a new one."""
        self._peek = None

    def page(self, cursor: Any, after: str, rows_max: int, poll_ms: int) -> SourcePage:
        """Return the changes that were committed after a cursor."""
        if self._peek is None or self._peek.expected != after or self._peek.poll_ms != poll_ms:
            self._peek = None
            cursor.connection.rollback()
            page = self._begun(cursor, json.loads(after or "{}"), rows_max, poll_ms)
            if page is not None:
                return page
        try:
            return self._next(cursor, rows_max)
        except (pg.UndefinedObject, pg.ObjectNotInPrerequisiteState) as exc:
            # The publication or the slot was dropped during the read.
            cursor.connection.rollback()
            us = json.loads(after)["us"]
            return self._lost(" ".join(str(exc).split()), us)
        except pg.ObjectInUse as exc:
            raise AdapterFailed(f"the slot is in use: {str(exc).splitlines()[0]}") from exc
        except pg.QueryCanceled as exc:
            if self._peek is None or self._peek.messages:
                raise
            cursor.connection.rollback()
            return self._timed_out(json.loads(after), exc)

    def _timed_out(self, at: dict[str, Any], exc: Exception) -> SourcePage:
        """Skip what the source cannot decode in time: all tables are read again.

        Raises:
            AdapterTimedOut: it may be slow for another reason, so it is retried first.
        """
        self._peek = None
        place = [at["lsn"], at["rows"]]
        before = self._storage.read(_TIMED_OUT) or {"place": place, "tries": 0}
        tries = before["tries"] + 1 if before["place"] == place else 1
        if tries >= DECODE_TRIES_MAX:
            reason = f"{tries} times the source did not decode a transaction in {READ_S_MAX} s"
            return self._lost(reason, at["us"])
        self._storage.write({"place": place, "tries": tries}, _TIMED_OUT)
        raise AdapterTimedOut(
            f"the source did not decode what was committed in {READ_S_MAX} s; after "
            f"{DECODE_TRIES_MAX} times all tables are read again"
        ) from exc

    def _begun(
        self, cursor: Any, at: dict[str, Any], rows_max: int, poll_ms: int
    ) -> SourcePage | None:
        """Begin to read behind a position; return a page if something must be done first."""
        look = self._slot.look(cursor)
        self.captured.load()
        if "lsn" not in at:
            return self._prepared(cursor, look, at, poll_ms)
        lost = self._gap(look, at["lsn"])
        if lost:
            return self._lost(lost, at["us"])
        self.captured.follow(cursor, at["us"])
        self._report = self._reported(look.kept_bytes)
        if look.confirmed < at["lsn"]:
            self._slot.advance(cursor, at["lsn"])
        position = Position(at["lsn"], at["rows"], max(at["us"], self.captured.kept.floor_us))
        until = at["until"] if at.get("poll") == poll_ms else look.flushed
        # A separate database cursor: it stays in use after this page's is closed.
        logged = LoggedTables(self.captured, cursor.connection.cursor())
        parts = Parts(position, rows_max, poll_ms * 1000, logged.table_of, logged.emptied)
        peek = _Peek(Gathering(iter(())), position, until, poll_ms, "")
        peek.gathering = Gathering(parts.of(self._counted(peek, cursor.connection)))
        self._peek = peek
        return None

    def _counted(self, peek: _Peek, connection: Any) -> Iterator[bytes]:
        if peek.position.lsn >= peek.until:
            return
        for data in self._slot.peek(connection, peek.until):
            peek.messages += 1
            yield data

    def _next(self, cursor: Any, rows_max: int) -> SourcePage:
        peek = self._peek
        assert peek is not None  # noqa: S101 - it was just begun
        gathered = peek.gathering.page(rows_max)
        if gathered.last is not None:
            peek.position = gathered.last.end
        if gathered.is_end:
            return self._last(cursor, peek, gathered.parts)
        return self._page(cursor, peek, gathered.parts, has_more=True)

    def _last(self, cursor: Any, peek: _Peek, parts: list[Part]) -> SourcePage:
        """Return a reading's last page: its end was reached, or there is more."""
        has_more = peek.messages >= PEEK_MESSAGES_MAX
        if not has_more:
            # Other activity in the database moves the slot, too.
            lsn, us = max(peek.position.lsn, peek.until), peek.position.us
            # What was read must be durable first: its times must not change if it is read again.
            has_more = bool(parts and self.captured.altered())
            us = us if has_more else self.captured.read_altered_again(cursor, us)
            peek.position = Position(lsn, 0, us)
        page = self._page(cursor, peek, parts, has_more=has_more)
        self._peek = None
        return page

    def _page(self, cursor: Any, peek: _Peek, parts: list[Part], *, has_more: bool) -> SourcePage:
        changes = with_omitted(cursor, self._source.dialect, parts)
        after = peek.position._asdict() | {"until": peek.until, "poll": peek.poll_ms}
        peek.expected = json.dumps(after)
        return SourcePage(
            changes,
            peek.expected,
            has_more,
            tuple(each for part in parts for each in part.unreadable),
            is_dated=True,
            report=self._report,
        )

    # --- beginnings ----------------------------------------------------------------------------

    def _gap(self, look: Look, lsn: int) -> str:
        name = self._slot.name
        if not look.is_there:
            return f"the slot {name} was gone"
        if look.wal_status == "lost":
            return f"the source had dropped what the slot {name} kept (max_slot_wal_keep_size)"
        if not look.is_ours or look.confirmed > lsn:
            return f"another client had moved the slot {name}"
        if look.flushed < lsn:
            return (
                "the source's log ends before what was read: it was restored from a backup, or a "
                "server took over that lacks some of it"
            )
        if not look.is_published:
            return f"the publication {self._slot.publication} was gone"
        return ""

    def _lost(self, reason: str, us: int) -> SourcePage:
        """Report that changes are missing; the recovery waits until that is durable."""
        report: dict[str, str | int] = {"slot": self._slot.name, "readAgain": reason}
        self._peek = None
        return SourcePage((), json.dumps({"lost": reason, "us": us}), has_more=True, report=report)

    def _prepared(self, cursor: Any, look: Look, at: dict[str, Any], poll_ms: int) -> SourcePage:
        """Create the publication and the slot, and have all tables read as of then."""
        captured = self.captured
        if look.is_there and captured.kept.slot != self._slot.name:
            raise AdapterRefused(
                f"there is a replication slot {self._slot.name} already: name another, slot, if "
                f"somebody reads by it; else: SELECT pg_drop_replication_slot('{self._slot.name}')"
            )
        captured.tables.look(cursor)
        captured.begin(cursor, at.get("lost", ""), is_made=look.is_published)
        if look.is_there:
            self._slot.drop(cursor)
        us = max(min(look.now_us, poll_ms * 1000), at.get("us", 0) + 1)
        lsn = self._slot.make(cursor)
        cursor.connection.commit()
        captured.mark_all(cursor, us)
        after = json.dumps({"lsn": lsn, "rows": 0, "us": us})
        return SourcePage((), after, has_more=True, report=self._reported(0))

    def _reported(self, kept_bytes: int) -> dict[str, str | int]:
        report: dict[str, str | int] = {"slot": self._slot.name, KEPT_BYTES: kept_bytes}
        again = self.captured.kept.again
        return report | ({"readAgain": again} if again else {})


# --- transactions ---------------------------------------------------------------------------------


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


class LoggedTables:
    """The tables' state in one reading of the log."""

    def __init__(self, captured: Captured, cursor: Any) -> None:
        self._captured = captured
        self._cursor = cursor
        looks = captured.tables.looks
        self._names = {look.table_id: name for name, look in looks.items()}

    def table_of(self, relation: Relation, us: int) -> CapturedTable | None:
        """Return how a table's rows are decoded from now on; None if it is not captured.

        A new column, or another type, schedules the table to be read again.
        """
        name = self._names.get(relation.table_id)
        if name is None:
            return None
        captured = self._captured
        key = captured.tables.looks[name].primary_key
        try:
            table = captured_table(self._cursor, relation, captured.settings[name], key)
        except AdapterRefused:
            # A configured column is missing, in the table or in the log: read once it exists.
            del self._names[relation.table_id]
            captured.kept.tables.pop(name, None)
            captured.save()
            return None
        mark = captured.kept.tables[name]
        if captured.is_altered(mark, table.types, table.plan.key):
            xid = captured.tables.xid(self._cursor)
            key, types = table.plan.key, table.types
            captured.kept.mark(name, us, xid, mark.table_id, types, key, mark.parts)
            captured.save()
        return table

    def emptied(self, name: str, us: int) -> None:
        """Schedule a truncated table to be read again."""
        self._captured.read_again(self._cursor, name, us)


_TYPES_OF: Final = f"""
    SELECT coalesce({resolved("u.type_id", "u.modifier")}, 'text')
    FROM unnest(%s::oid[], %s::int[]) WITH ORDINALITY u(type_id, modifier, place)
    ORDER BY u.place"""  # noqa: S608 - our own SQL
"""Of types that were dropped since, the printed form is all that is known."""


def captured_table(
    cursor: Any, relation: Relation, settings: PolledTable, key: Sequence[str]
) -> CapturedTable:
    """Return how a table's logged rows are decoded.

    Args:
        cursor: the connection that reads the log: the printed form of values depends on it.
        relation: the table as the log describes it.
        settings: which of its columns are wanted.
        key: the current primary key's columns.

    Raises:
        AdapterRefused: a configured column is missing.
    """
    type_ids = [column.type_id for column in relation.columns]
    modifiers = [column.modifier for column in relation.columns]
    cursor.execute(_TYPES_OF, (type_ids, modifiers))
    source = PostgresValues()
    columns = tuple(
        SourceColumn(column.name, source.column_type(name), source_type=name)
        for column, (name,) in zip(relation.columns, cursor.fetchall(), strict=True)
    )
    table = SourceTable(settings.name, columns, _key(relation, key))
    plan = plan_of(settings, table, source)
    place_of = {column.name: place for place, column in enumerate(columns)}
    places = tuple(place_of[name] for name in plan.columns)
    return CapturedTable(plan, places, plan.converts, plan.key_places)


def _key(relation: Relation, key: Sequence[str]) -> tuple[str, ...]:
    """Return the primary key by the column names at the time when the rows were written."""
    identity = [column.name for column in relation.columns if column.in_identity]
    if relation.identity == "d" and set(identity) != set(key):
        return tuple(identity)
    return tuple(key)
