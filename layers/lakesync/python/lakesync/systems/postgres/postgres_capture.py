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

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from psycopg import errors as pg

from lakesync.connectors.port import KEPT_BYTES, SourceColumn, SourcePage, SourceTable
from lakesync.errors import (
    AdapterFailed,
    AdapterRefused,
    AdapterTimedOut,
    LakeSyncError,
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
from lakesync.systems.sql.captured_tables import CAPTURE, Captured, CapturedTable, kept_in
from lakesync.systems.sql.log_changes import GapError, Gathering, LogFeed, NetChanges, Reading
from lakesync.systems.sql.sql_source import CapturedSource
from lakesync.systems.sql.table_plan import READ_S_MAX, plan_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from lakesync.adapters.sql.standard import Dialect
    from lakesync.connectors.port import Storage
    from lakesync.result import Result
    from lakesync.systems.postgres.postgres_settings import PostgresSettings
    from lakesync.systems.postgres.replication_slot import Look
    from lakesync.systems.sql.log_changes import Part
    from lakesync.systems.sql.sql_settings import PolledTable

# --- the connector --------------------------------------------------------------------------------


class CaptureConnector(CapturedSource):
    """`lakesync.connectors.Connector` of a PostgreSQL database, by its log of changes."""

    def __init__(
        self, source: PostgresSource, settings: PostgresSettings, storage: Storage
    ) -> None:
        self._slot = Slot(source, settings, storage)
        self._tables_there = Tables(source, self._slot, settings.polled())
        feed = Feed(source.dialect, self._slot, self._tables_there, storage)
        super().__init__(source, settings, storage, feed, wait, keeps=True)

    def check(self) -> Result[str, LakeSyncError]:
        """Check that changes can be captured; nothing is created."""

        def work(cursor: Any) -> str:
            self._slot.check(cursor)
            self._check_tables(cursor)
            is_made = self._slot.look(cursor).is_published
            self._tables_there.check(cursor, is_made=is_made)
            return (
                f"PostgreSQL at {self._settings.host} answers, and changes of "
                f"{', '.join(self._tables)} can be captured by the slot {self._slot.name}."
            )

        return self._run(work)


def made(settings: PostgresSettings, storage: Storage, hosts: tuple[str, ...]) -> CaptureConnector:
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


@dataclass(kw_only=True)
class _Peek(Reading):
    """One reading of the slot."""

    position: Position
    at: dict[str, Any]
    """The cursor behind which it began."""
    messages: int = 0


class Feed(LogFeed[_Peek]):
    """Reads the slot of one connector."""

    def __init__(self, dialect: Dialect, slot: Slot, tables: Tables, storage: Storage) -> None:
        super().__init__(dialect, Captured(slot.name, tables, storage), {"slot": slot.name})
        self._slot = slot
        self._storage = storage

    def _begun(
        self, cursor: Any, at: dict[str, Any], rows_max: int, poll_ms: int
    ) -> _Peek | SourcePage:
        cursor.connection.rollback()
        look = self._slot.look(cursor)
        self.captured.load()
        if "lsn" not in at:
            return self._prepared(cursor, look, at, poll_ms)
        if gap := self._gap(look, at["lsn"]):
            raise GapError(gap)
        self.captured.follow(cursor, at["us"])
        self._report = self._reported(**{KEPT_BYTES: look.kept_bytes})
        if look.confirmed < at["lsn"]:
            self._slot.advance(cursor, at["lsn"])
        position = Position(at["lsn"], at["rows"], max(at["us"], self.captured.kept.floor_us))
        until = at["until"] if at.get("poll") == poll_ms else look.flushed
        peek = _Peek(position=position, until=until, poll_ms=poll_ms, at=at)
        # A separate database cursor: it stays in use after this page's is closed.
        logged = LoggedTables(self.captured, cursor.connection.cursor())
        parts = Parts(position, rows_max, poll_ms * 1000, logged.table_of, logged.emptied)
        peek.gathering = Gathering(parts.of(self._counted(peek, cursor.connection)))
        return peek

    def _counted(self, peek: _Peek, connection: Any) -> Iterator[bytes]:
        if peek.position.lsn >= peek.until:
            return
        for data in self._slot.peek(connection, peek.until):
            peek.messages += 1
            yield data

    def _next(self, cursor: Any, reading: _Peek, rows_max: int) -> SourcePage:
        try:
            return super()._next(cursor, reading, rows_max)
        except (pg.UndefinedObject, pg.ObjectNotInPrerequisiteState) as exc:
            # The publication or the slot was dropped during the read.
            cursor.connection.rollback()
            raise GapError(" ".join(str(exc).split())) from exc
        except pg.ObjectInUse as exc:
            raise AdapterFailed(f"the slot is in use: {str(exc).splitlines()[0]}") from exc
        except pg.QueryCanceled as exc:
            if reading.messages:
                raise
            cursor.connection.rollback()
            raise self._timed_out(reading.at) from exc

    def _timed_out(self, at: dict[str, Any]) -> Exception:
        """Return the error for what the source cannot decode in time.

        In the end it is skipped, as a gap; first it is retried: the source may be slow for another
        reason.
        """
        place = [at["lsn"], at["rows"]]
        before = self._storage.read(_TIMED_OUT) or {"place": place, "tries": 0}
        tries = before["tries"] + 1 if before["place"] == place else 1
        if tries >= DECODE_TRIES_MAX:
            return GapError(
                f"{tries} times the source did not decode a transaction in {READ_S_MAX} s"
            )
        self._storage.write({"place": place, "tries": tries}, _TIMED_OUT)
        return AdapterTimedOut(
            f"the source did not decode what was committed in {READ_S_MAX} s; after "
            f"{DECODE_TRIES_MAX} times all tables are read again"
        )

    def _last(self, cursor: Any, reading: _Peek, parts: list[Part]) -> SourcePage:
        if reading.messages >= PEEK_MESSAGES_MAX:  # there is more
            page = self._page(cursor, reading, parts, has_more=True)
            self.forget()
            return page
        # Other activity in the database moves the slot, too.
        lsn = max(reading.position.lsn, reading.until)
        reading.position = Position(lsn, 0, reading.position.us)
        return super()._last(cursor, reading, parts)

    def _cursor_of(self, reading: _Peek) -> dict[str, Any]:
        return reading.position._asdict() | {"until": reading.until, "poll": reading.poll_ms}

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
        return self._step({"lsn": lsn, "rows": 0, "us": us}, self._reported(**{KEPT_BYTES: 0}))


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
        self._table_of = table_of
        self._tables: dict[int, CapturedTable | None] = {}
        self._changes = NetChanges(start, rows_max, until_us, emptied)

    def of(self, messages: Iterable[bytes]) -> Iterator[Part]:
        """Yield the parts, in the order of commits.

        Raises:
            ValueError: a message is malformed.
        """
        is_done, seen, changes, commit_us = False, 0, self._changes, 0
        for data in messages:
            message = decode(data)
            if isinstance(message, Relation):
                self._tables[message.table_id] = self._table_of(message, changes.us)
            elif isinstance(message, Begin):
                is_done, seen = message.commit_lsn < changes.position.lsn, 0
                commit_us = message.commit_us
                changes.time(commit_us)
            elif isinstance(message, Commit):
                if not is_done:
                    yield changes.part(Position(message.end_lsn))
            elif isinstance(message, Insert | Update | Delete | Truncate) and not is_done:
                seen += 1
                if seen <= changes.position.rows:
                    continue
                self._take(message)
                changes.rows += 1
                changes.size += len(data)
                if changes.is_full:
                    yield changes.part(Position(changes.position.lsn, seen))
                    changes.time(commit_us)

    def _take(self, message: Insert | Update | Delete | Truncate) -> None:
        if isinstance(message, Truncate):
            for table_id in message.table_ids:
                emptied = self._tables.get(table_id)
                if emptied is not None:
                    self._changes.empty(emptied.name)
            return
        table = self._tables.get(message.table_id)
        if table is None:
            return
        if isinstance(message, Insert):
            self._changes.insert(table, message.new)
        elif isinstance(message, Delete):
            self._changes.delete(table, message.old)
        else:
            whole = message.old_is_whole
            self._changes.update(table, message.new, message.old, old_is_whole=whole)


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
            table = captured_table(self._cursor, relation, captured.tables.settings[name], key)
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
