"""The outbox: edits that the gateway does not have, or may not have, in order of their stamps.

::

    pending ──push──► sent ──receipt──► acknowledged (gone)
                       │  └──receipt──► quarantined ──retry──► pending
                       │                     └──discard──► gone, its effect taken back
                  no answer; everything is pulled, it is not there
                       └──► unseen ──push──► sent, and so on
                               └──refused as late──► late ──pulled, not there──► pending

An entry is ``sent`` while its push has not been answered; it is pushed again, which is harmless:
the gateway answers a repeat as a duplicate. It is never stamped again while the unanswered push may
have stored it as an event, or still may.

It is taken out in batches, which are pushed: in stamp order, bounded, transactions uncut. Edits
that were accepted by a buffer that has been restored since are pushed before all others.

Rules of the clock that stamps edits; it survives restarts, and follows the server's time
    1. The clock's ``last`` is in the database at all times, without a write of its own: every
       edit's stamp is in the outbox, and ``floor`` is the greatest stamp that is known to be at the
       gateway. ``last`` is the greater of the two.
    2. Remote stamps are followed without a drift check, up to the latest that an honest gateway can
       have accepted; a page is never refused because of its stamps.
    3. The device's clock may be wrong; stamps use its time plus an offset, learnt from receipts.

Law K4: ``docs/spec/client.md``; the third rule is K10 there.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import groupby, islice, takewhile
from typing import TYPE_CHECKING, Final, NamedTuple

from lakesync.core.clock import DRIFT_MS_MAX, HybridLogicalClock, stamp
from lakesync.errors import BY_CODE, InternalError, TableNotDeclared
from lakesync.wire.incoming import PUSH_DELTAS_MAX
from lakesync.wire.records import decode_records, encode_records

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection, Generator, Iterable, Iterator

    from lakesync.core.clock import Stamp
    from lakesync.core.delta import Delta
    from lakesync.errors import LakeSyncError
    from lakesync.ports import WallClock

# --- entries --------------------------------------------------------------------------------------


class Status(StrEnum):
    """Where an edit stands on its way; stored by these names."""

    PENDING = "pending"
    SENT = "sent"
    """Pushed, and no answer yet: the gateway may hold it or not."""
    UNSEEN = "unseen"
    """Pushed without an answer, and not in any page since. Its push may be in flight."""
    LATE = "late"
    """As `UNSEEN`, and refused as late, perhaps because it had just arrived; it cannot arrive any
    more.
    """
    QUARANTINED = "quarantined"
    """Refused for what it is; it waits for the app."""
    HELD_BACK = "held_back"
    """Accepted by a buffer that was restored since, or whose row is being read again; whether it
    was lost is not yet known.
    """
    OFFERED = "offered"
    """As that, and not among what was read; but trimmed log, and rows hidden by rules, could not be
    read. Its stamp stays unchanged: if it is too late, the gateway had it.
    """
    LOST = "lost"
    """As that, and recent enough that it would have been read. If it is too late, it is stamped
    again.
    """


IN_DOUBT: Final = frozenset({Status.SENT, Status.UNSEEN, Status.LATE})
"""Where an edit stands that may be at the gateway, or may yet arrive there."""


@dataclass(frozen=True, slots=True)
class OutboxEntry:
    """An edit that waits."""

    delta: Delta
    status: Status
    error: LakeSyncError | None = None
    """Why it was refused, where it was."""

    @staticmethod
    def stored(
        status: str, run: bytes, code: str | None, message: str | None, field: str | None
    ) -> OutboxEntry:
        (delta,) = decode_records(run)
        if code is None:
            return OutboxEntry(delta, Status(status))
        error = BY_CODE.get(code, InternalError)(message or "", field=field)
        return OutboxEntry(delta, Status(status), error)

    @property
    def code(self) -> str:
        """The code of the refusal; empty if there was none."""
        return self.error.code if self.error else ""

    @property
    def reason(self) -> str:
        """The sentence of the refusal; empty if there was none."""
        return self.error.message if self.error else ""


class Entry(NamedTuple):
    hlc: Stamp
    txn: int | None
    """The local transaction that the edit belongs to; None if it stands alone."""
    status: str
    run: bytes

    @property
    def delta(self) -> Delta:
        return decode_records(self.run)[0]


# --- the outbox -----------------------------------------------------------------------------------


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
        rows = self._connection.execute(
            "SELECT status, run, code, message, field FROM _lakesync_outbox "
            "WHERE (status = 'quarantined') = ? ORDER BY hlc",
            (quarantined,),
        ).fetchall()
        return [OutboxEntry.stored(*row) for row in rows]

    def waiting(self) -> Generator[Entry, None, None]:
        """Iterate, first over what was accepted before, then oldest first; close it when done."""
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
        cursor = self._connection.execute(f"{_ENTRY}1 ORDER BY hlc")
        return list(map(Entry._make, cursor))

    def find(self, delta_id: str) -> Entry | None:
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
        row = self._connection.execute(f"{_ENTRY}hlc = ?", (hlc,)).fetchone()
        return Entry(*row) if row else None

    def mark_sent(self, entries: Iterable[Entry]) -> None:
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


# --- which edits are pushed together --------------------------------------------------------------


BATCH_DELTAS_MAX: Final = 500
"""Single edits of one push: a few commits' worth, so that a lost answer repeats little."""
BATCH_BYTES_MAX: Final = 1_000_000
"""Deltas of one push, encoded, unless one edit or transaction alone is larger: seconds on a slow
line, and far below the gateway's limit.
"""
ATOMIC_DELTAS_MAX: Final = 80
"""Deltas of several small transactions that are pushed together; a commit has at most 100 items, of
which each shard needs two. A single transaction may be larger: the gateway decides about it.
"""
ATOMIC_BYTES_MAX: Final = 250_000
"""The same in bytes; a commit's log entry in one shard takes 380,000."""

TRANSACTION_DELTAS_MAX: Final = PUSH_DELTAS_MAX
"""Deltas of one local transaction that is pushed as one; no push may carry more."""
TRANSACTION_BYTES_MAX: Final = 4_000_000
"""The same in bytes: the body of a push, which may hold 4,500,000, and no commit is larger."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What one push carries."""

    entries: tuple[Entry, ...]
    atomic: bool
    """The edits are one commit or none: some belong to one local transaction, or are pushed again
    after a restore.
    """
    units: int
    """Local transactions and single edits in the batch."""
    epoch: str | None = None
    """The gateway's epoch, as the file knows it; None until a gateway has told it."""
    was_stopped: bool = False
    """Its edits were stopped before, each for itself, by somebody on the way to the gateway."""

    @property
    def is_returning(self) -> bool:
        """Return whether it was accepted by a buffer that has been restored since."""
        return _accepted_before(list(self.entries))

    @property
    def is_hopeless(self) -> bool:
        """Return whether no gateway can accept the batch as one, so that a push would be wasted."""
        count, size = len(self.entries), _size(self.entries)
        return self.atomic and (count > TRANSACTION_DELTAS_MAX or size > TRANSACTION_BYTES_MAX)


def next_batch(outbox: Outbox, units_max: int) -> Batch | None:
    """Return at most so many local transactions and single edits; None if nothing waits."""
    with contextlib.closing(outbox.waiting()) as entries:
        units = _units(entries)
        first = next(units, None)
        if first is None:
            return None
        others = islice(units, units_max - 1)
        if _accepted_before(first):
            # As one commit: otherwise one commit could make an event of the next too late, which
            # would wrongly show that the gateway has it.
            batch = _atomic(first, takewhile(_accepted_before, others))
            return replace(batch, atomic=len(batch.entries) > 1)
        if len(first) > 1:
            return _atomic(first, others)
        singles = takewhile(lambda unit: len(unit) == 1, others)
        return _batch(first, singles, BATCH_DELTAS_MAX, BATCH_BYTES_MAX, atomic=False)


def stopped_batch(outbox: Outbox, units_max: int, tried: Collection[Stamp]) -> Batch | None:
    """Return a batch of edits that were stopped on their way, of none that was tried again."""
    with contextlib.closing(outbox.stopped(tried)) as entries:
        units = _units(entries)
        first = next(units, None)
        if first is None:
            return None
        others = [] if len(first) > 1 else takewhile(lambda unit: len(unit) == 1, units)
        batch = _batch(
            first, islice(others, units_max - 1), BATCH_DELTAS_MAX, BATCH_BYTES_MAX,
            atomic=len(first) > 1,
        )  # fmt: skip
        return replace(batch, was_stopped=True)


def _units(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    """Yield each local transaction, and each edit that stands alone."""
    for _, members in groupby(entries, key=lambda entry: entry.txn or -entry.hlc):
        yield list(members)


def _accepted_before(unit: list[Entry]) -> bool:
    return unit[0].status in {Status.OFFERED, Status.LOST}


def _atomic(first: list[Entry], others: Iterable[list[Entry]]) -> Batch:
    return _batch(first, others, ATOMIC_DELTAS_MAX, ATOMIC_BYTES_MAX, atomic=True)


def _batch(
    first: list[Entry],
    others: Iterable[list[Entry]],
    deltas_max: int,
    bytes_max: int,
    *,
    atomic: bool,
) -> Batch:
    """Return the first unit with as many others as there is room for."""
    entries, size, count = list(first), _size(first), 1
    for unit in others:
        size += _size(unit)
        if len(entries) + len(unit) > deltas_max or size > bytes_max:
            break
        entries += unit
        count += 1
    return Batch(tuple(entries), atomic, count)


def _size(unit: Iterable[Entry]) -> int:
    return sum(len(entry.run) for entry in unit)


# --- the clock that stamps them -------------------------------------------------------------------


def system_clock() -> int:
    """Return the time of the machine, in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class DeviceClock:
    """Issues the stamps of one client. Used only while holding the database's lock."""

    def __init__(self, connection: sqlite3.Connection, wall_clock: WallClock) -> None:
        self._connection = connection
        self._wall_clock = wall_clock
        self._clock = HybridLogicalClock()
        self._floor: Stamp = 0
        self.offset_ms = 0
        """What to add to the device's clock to get the server's."""

    def reload(self) -> None:
        self._floor, self.offset_ms = self._connection.execute(
            "SELECT floor, offset_ms FROM _lakesync_sync"
        ).fetchone()
        self.step_back()

    def device_ms(self) -> int:
        return self._wall_clock()

    def server_ms(self) -> int:
        return self._wall_clock() + self.offset_ms

    def now(self) -> Stamp:
        """Issue a stamp above everything that was issued or followed."""
        return self._clock.now(self._wall_clock() + self.offset_ms)  # an edit waits: no `server_ms`

    def follow(self, remote: Stamp, cursor: Stamp) -> None:
        """Advance past the greatest stamp of a page, whose cursor shows the gateway's time.

        No honest gateway accepts a delta further ahead than the drift bound. Following a later
        stamp would give this client's edits stamps that the gateway must refuse.
        """
        self.accepted(min(remote, cursor + stamp(DRIFT_MS_MAX)))

    def discarded(self, own: Stamp, cursor: Stamp) -> None:
        """Note that a stamp of this client leaves the outbox, and may nevertheless have arrived.

        The stamp is not issued again, if the gateway can have accepted it by the time that the
        cursor shows; one further ahead would drag all later stamps with it.
        """
        if own <= cursor + stamp(DRIFT_MS_MAX):
            self.accepted(own)

    def accepted(self, known: Stamp) -> None:
        """Note that a stamp is at the gateway, within the transaction that learns of it."""
        if known > self._floor:
            self._floor = known
            self._clock.last = max(self._clock.last, known)
            self._connection.execute("UPDATE _lakesync_sync SET floor = ?", (known,))

    def correct(self, server_ms: int, sent_ms: int, received_ms: int) -> None:
        """Learn the server's time from a receipt; 0 if it does not tell.

        The server read its clock between sending and receiving, so the true offset lies in
        ``[server - received, server - sent]``. The offset moves by the least that brings it there:
        a correct clock stays unchanged, however slow the network.
        """
        if not server_ms or received_ms < sent_ms:  # unknown, or the device's clock was set back
            return
        offset_ms = min(max(self.offset_ms, server_ms - received_ms), server_ms - sent_ms)
        if offset_ms != self.offset_ms:
            self.offset_ms = offset_ms
            self._connection.execute("UPDATE _lakesync_sync SET offset_ms = ?", (offset_ms,))

    def step_back(self) -> None:
        """Reset to the floor and the outbox: nobody else has seen stamps that were refused."""
        last = self._connection.execute("SELECT max(hlc) FROM _lakesync_outbox").fetchone()[0]
        self._clock = HybridLogicalClock(max(self._floor, last or 0))
