"""The changes of all captured tables, in the order of their commits, by a replication slot.

The slot is peeked, which does not move it. Once the cursor behind the changes is durable, the slot
is advanced, before the next peek. After a crash between any two of these steps, the same changes
are read again.

Rules of this module
    1. Irreversible operations at the source (a slot is dropped, created, advanced) are done for a
       cursor that was passed in, which is durable, and never for one that is about to be returned.
    2. A slot that is gone, or that another client moved, is a gap: the feed reports it with a
       separate cursor, and all tables are read again.

Law N12: ``docs/spec/connectors.md``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from psycopg import errors as pg

from lakesync.connectors.port import KEPT_BYTES, SourcePage
from lakesync.connectors.sql.capture.captured import Captured
from lakesync.connectors.sql.capture.gathering import Gathering
from lakesync.connectors.sql.capture.omitted import with_omitted
from lakesync.connectors.sql.capture.slot import PEEK_MESSAGES_MAX
from lakesync.connectors.sql.capture.tables import Tables
from lakesync.connectors.sql.capture.transactions import Parts, Position
from lakesync.connectors.sql.catalogue import READ_S_MAX
from lakesync.errors import AdapterFailed, AdapterRefused, AdapterTimedOut

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from lakesync.connectors.sql.capture.parts import Part
    from lakesync.connectors.sql.capture.slot import Look, Slot
    from lakesync.connectors.sql.catalogue import PostgresSource
    from lakesync.connectors.sql.configuration import PolledTable
    from lakesync.connectors.storage import Storage

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
        logged = self.captured.logged(cursor.connection.cursor())
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
