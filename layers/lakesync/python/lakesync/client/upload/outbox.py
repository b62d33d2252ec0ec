"""The outbox: edits that the gateway does not have, or may not have, in order of their stamps.

What may become of one: `lakesync.client.upload.entries`.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from lakesync.client.upload.entries import IN_DOUBT, Entry, OutboxEntry, Status
from lakesync.errors import TableNotDeclared
from lakesync.wire.records import decode_records, encode_records

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection, Generator, Iterable

    from lakesync.core.clock import Stamp
    from lakesync.core.delta import Delta
    from lakesync.errors import LakeSyncError

ADD: Final = (
    "INSERT INTO _lakesync_outbox (hlc, txn, status, table_id, row_id, run) "
    "VALUES (?, ?, 'pending', ?, ?, ?)"
)
PUT: Final = (
    "INSERT INTO _lakesync_outbox (hlc, txn, status, run, table_id, row_id, code, message, field) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_NEW: Final = "status IN ('pending', 'sent', 'unseen', 'late')"
_WAITING: Final = (
    "status IN ('offered', 'lost')",  # accepted before: ahead of all others
    f"{_NEW} AND code IS NULL",
)
_STOPPED: Final = f"{_NEW} AND code IS NOT NULL"
_FIRST_ASIDE: Final = (
    "SELECT min(hlc) FROM _lakesync_outbox WHERE (status = 'quarantined' AND hlc > ?) "  # noqa: S608
    f"OR ({_STOPPED} AND hlc > ?)"
)
_ENTRY: Final = "SELECT hlc, txn, status, run FROM _lakesync_outbox WHERE "


class Outbox:
    """The outbox of one file. Used within the caller's transaction."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._by_id: dict[str, Stamp] = {}

    def entries(self, *, quarantined: bool) -> list[OutboxEntry]:
        """Return the entries that wait for the gateway, or for the app, oldest first."""
        rows = self._connection.execute(
            "SELECT status, run, code, message, field FROM _lakesync_outbox "
            "WHERE (status = 'quarantined') = ? ORDER BY hlc",
            (quarantined,),
        ).fetchall()
        return [OutboxEntry.stored(*row) for row in rows]

    def waiting(self) -> Generator[Entry, None, None]:
        """Iterate over pending entries: first those that were accepted before, then oldest first.

        Entries are read as the iterator advances. Close it when done.
        """
        for which in _WAITING:
            cursor = self._connection.execute(f"{_ENTRY}{which} ORDER BY hlc")
            with contextlib.closing(cursor):
                yield from map(Entry._make, cursor)

    def stopped(self, tried: Collection[Stamp]) -> Generator[Entry, None, None]:
        """Iterate likewise over entries that were stopped on their way, without some of them."""
        cursor = self._connection.execute(f"{_ENTRY}{_STOPPED} ORDER BY hlc")
        with contextlib.closing(cursor):
            yield from (entry for entry in map(Entry._make, cursor) if entry.hlc not in tried)

    def has_stopped(self, tried: Collection[Stamp]) -> bool:
        """Return whether any but some entries were stopped on their way."""
        with contextlib.closing(self.stopped(tried)) as entries:
            return next(entries, None) is not None

    def is_empty(self) -> bool:
        """Return whether nothing waits for the gateway but what was stopped on its way."""
        with contextlib.closing(self.waiting()) as entries:
            return next(entries, None) is None

    def everything(self) -> list[Entry]:
        """Return all entries, whatever becomes of them, oldest first."""
        cursor = self._connection.execute(f"{_ENTRY}1 ORDER BY hlc")
        return list(map(Entry._make, cursor))

    def find(self, delta_id: str) -> Entry | None:
        """Find an entry by its delta's id.

        Ids are not stored, since that would slow down each edit. One pass remembers all of them,
        for an app that iterates over its entries.
        """
        entry = self.at(self._by_id.get(delta_id, 0))
        if entry is None or entry.delta.delta_id != delta_id:
            rows = self._connection.execute("SELECT hlc, run FROM _lakesync_outbox")
            self._by_id = {decode_records(run)[0].delta_id: hlc for hlc, run in rows}
            entry = self.at(self._by_id.get(delta_id, 0))
        return entry

    def known(self, deltas: Iterable[Delta]) -> list[Delta]:
        """Return those of this client's deltas that are still in the outbox, by stamp and id."""
        at = ((delta, self.at(delta.hlc)) for delta in deltas)
        return [delta for delta, entry in at if entry and entry.delta.delta_id == delta.delta_id]

    def at(self, hlc: Stamp) -> Entry | None:
        """Return the entry of a stamp."""
        row = self._connection.execute(f"{_ENTRY}hlc = ?", (hlc,)).fetchone()
        return Entry(*row) if row else None

    def mark_sent(self, entries: Iterable[Entry]) -> None:
        """Note that entries are about to leave."""
        self._move(entries, Status.SENT, "status IN ('pending', 'unseen', 'late')")

    def mark_pending(self, entries: Iterable[Entry]) -> None:
        """Give entries that a push left behind the statuses that they had before it."""
        for entry in entries:
            before = Status.UNSEEN if entry.status == Status.SENT else Status(entry.status)
            self._move([entry], before, "status = 'sent'")

    def mark_late(self, entries: Iterable[Entry]) -> None:
        """Note that entries are too late now: they are at the gateway, or never will be."""
        self._move(entries, Status.LATE, "status = 'sent'")

    def settle_doubts(self, until: Stamp) -> None:
        """Note that no sent entry up to a stamp was at the gateway when a pull to the end began.

        It would have returned as an echo, which removes it. An entry with a future stamp may still
        be accepted when its time comes, if its push is in flight.
        """
        self._connection.execute(
            "UPDATE _lakesync_outbox "
            "SET status = CASE status WHEN 'sent' THEN 'unseen' ELSE 'pending' END "
            "WHERE status IN ('sent', 'late') AND hlc <= ?",
            (until,),
        )

    def quarantine(self, refused: Iterable[tuple[Entry, LakeSyncError]]) -> None:
        """Set entries aside, each with the reason for its refusal."""
        self._connection.executemany(
            "UPDATE _lakesync_outbox SET status = 'quarantined', code = ?, message = ?, field = ? "
            "WHERE hlc = ?",
            [(error.code, error.message, error.field, entry.hlc) for entry, error in refused],
        )

    def mark_stopped(self, entries: Iterable[Entry], error: LakeSyncError) -> None:
        """Note that somebody on the way to the gateway stops entries, which may have arrived."""
        self._connection.executemany(
            "UPDATE _lakesync_outbox SET code = ?, message = ?, field = NULL "
            "WHERE hlc = ? AND status = 'sent'",
            [(error.code, error.message, entry.hlc) for entry in entries],
        )

    def unmark_stopped(self, entries: Iterable[Entry]) -> None:
        """Note that the gateway has answered, whatever it said of them."""
        self._connection.executemany(
            "UPDATE _lakesync_outbox SET code = NULL, message = NULL "
            "WHERE hlc = ? AND code IS NOT NULL AND status <> 'quarantined'",
            [(entry.hlc,) for entry in entries],
        )

    def release(self, entry: Entry) -> None:
        """Put a quarantined entry back in its place."""
        self._move([entry], Status.PENDING, "1", "code = NULL, message = NULL, field = NULL")

    def release_undeclared(self) -> None:
        """Let edits of tables that were not declared be pushed again."""
        self._connection.execute(
            "UPDATE _lakesync_outbox SET status = ?, code = NULL, message = NULL, field = NULL "
            "WHERE status = ? AND code = ?",
            (Status.PENDING, Status.QUARANTINED, TableNotDeclared.code),
        )

    def ungroup(self, entries: Iterable[Entry]) -> None:
        """Let the edits of too large a transaction go one by one."""
        self._connection.executemany(
            "UPDATE _lakesync_outbox SET txn = NULL WHERE hlc = ?",
            [(entry.hlc,) for entry in entries],
        )

    def remove(self, hlcs: Iterable[Stamp]) -> None:
        """Take entries out; what becomes of their rows is the caller's to say."""
        self._connection.executemany(
            "DELETE FROM _lakesync_outbox WHERE hlc = ?", [(hlc,) for hlc in hlcs]
        )

    def _move(
        self, entries: Iterable[Entry | Delta], to: Status, where: str, also: str = "txn = txn"
    ) -> None:
        self._connection.executemany(
            f"UPDATE _lakesync_outbox SET status = '{to}', {also} WHERE hlc = ? AND {where}",  # noqa: S608 - names
            [(entry.hlc,) for entry in entries],
        )

    def hold_back(self, deltas: Iterable[Delta]) -> None:
        """Keep deltas that were accepted until everything was read; see `Resyncer`."""
        self._move(deltas, Status.HELD_BACK, "1", "txn = NULL")

    def add(self, delta: Delta, table_id: int, status: Status = Status.PENDING) -> None:
        """Add a delta that stands alone, unless there is one of its stamp."""
        self._connection.execute(
            "INSERT OR IGNORE INTO _lakesync_outbox (hlc, txn, status, table_id, row_id, run) "
            "VALUES (?, NULL, ?, ?, ?, ?)",
            (delta.hlc, status, table_id, delta.row_id, encode_records((delta,))),
        )

    def make_new(self, entries: Iterable[Entry]) -> None:
        """Let lost entries be stamped again like any other, since they are too late."""
        self._move(entries, Status.PENDING, "status = 'lost'")

    def take_from(
        self, start: Stamp, events: Collection[int] = ()
    ) -> list[tuple[Entry, tuple[object, ...]]]:
        """Remove every entry at or after a stamp, for `put_back` under other stamps.

        Entries that were accepted once stay, because they must keep their stamps. With ``events``,
        the append tables whose order is the reason, two kinds stay besides:

        - entries of these tables that may already be at the gateway, which leave their transaction
          if necessary: under another stamp the event would be stored twice;
        - edits of other tables that were set aside: newer edits of their rows may have been
          accepted meanwhile, and must stay the newer ones. An edit in one transaction with an event
          that does not stay goes with it.
        """
        rows = self._connection.execute(
            "SELECT hlc, txn, status, run, table_id, row_id, code, message, field "
            "FROM _lakesync_outbox WHERE hlc >= ? "
            "AND status NOT IN ('held_back', 'offered', 'lost') ORDER BY hlc",
            (start,),
        ).fetchall()
        moves = {row[1] for row in rows if row[4] in events and row[2] not in IN_DOUBT} - {None}

        def stays(txn: int | None, status: str, table_id: int, code: str | None) -> bool:
            if table_id in events:
                return status in IN_DOUBT
            return bool(events) and code is not None and txn not in moves

        taken = [
            (Entry(*row[:4]), row[4:]) for row in rows if not stays(row[1], row[2], row[4], row[6])
        ]
        self.remove(entry.hlc for entry, _ in taken)
        return taken

    def put_back(self, entry: Entry, rest: tuple[object, ...], delta: Delta) -> None:
        """Put an entry back with its delta stamped again."""
        status = Status.QUARANTINED if entry.status == Status.QUARANTINED else Status.PENDING
        run = encode_records((delta,))
        self._connection.execute(PUT, (delta.hlc, entry.txn, status, run, *rest))

    def count_quarantined(self) -> int:
        """Count the entries that wait for the app; reads all that wait."""
        sql = "SELECT count(*) FROM _lakesync_outbox WHERE status = 'quarantined'"
        count: int = self._connection.execute(sql).fetchone()[0]
        return count

    def first_aside(self, quarantined: Stamp, stopped: Stamp) -> Stamp | None:
        """Return the stamp of the first entry that is set aside, each kind behind a stamp."""
        (first,) = self._connection.execute(_FIRST_ASIDE, (quarantined, stopped)).fetchone()
        return first  # type: ignore[no-any-return]
