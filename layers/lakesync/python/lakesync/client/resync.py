"""Reading everything again: the buffer was restored, other rules decide, or the gateway is another.

All rows stay readable meanwhile. Rows to be read again are *stale* until a page brings them. Rows
still stale after the last page are removed: the gateway lacks them, or rules now hide them. Edits
in the outbox are merged on top, and none is lost. After a crash at any point the re-sync continues.

What a page does to a stale row:

- A different buffer: the row is replaced by the page's.
- The same buffer, a page of whole rows: both are merged, as registers only grow. But data older
  than the table's tombstone horizon is removed, since the gateway may have forgotten a deletion.
- The same buffer, a page of the log: the row was hidden when the rows were read, so it contains
  only what the log reports. Only this client's writes that the log is yet to bring stay: no other
  client would have them if the buffer were restored before then.

A buffer that is restored to an earlier moment lacks later accepted writes, which have left the
outbox; but the rows here still show them. So this client's own writes in them are put back into the
outbox, under their old stamps, before a page replaces the rows::

    held_back ──everything is read, it is there──────────► gone
        ├──it may be trimmed, or hidden by rules──► offered ──receipt, or too late──► gone
        └──everything is read, it is not there────► lost ──receipt──► gone
                                                     └──too late──► pending, to be stamped again

For an insert or a delete without columns a row knows only the stamp, and not the writer: every
client that has the row pushes it. Laws K12 and K13: ``docs/spec/client.md``; reasons:
``docs/adr/0004-restored-buffer.md``.

Columns that rules omit from a table from now on leave the device at once, with the page that names
the table: a page that lacks a column says nothing about it, and merging would keep the old values.
Law K33.

A file that is given to another gateway, on purpose, forgets which gateway it belongs to, and takes
the next one that answers; its rows become stale as for any re-sync. Law K36.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, cast, get_args

from lakesync.client.storage.action_queue import ActionStatus
from lakesync.client.storage.device_tables import forget_all
from lakesync.client.storage.outbox import Status
from lakesync.client.storage.own_writes import Journal, PendingEcho, ruled_tables
from lakesync.core.attachments import references_in
from lakesync.core.clock import DRIFT_MS_MAX, stamp
from lakesync.core.delta import parse
from lakesync.core.merge import EMPTY, RowState, deltas_of, fold, newer_than
from lakesync.core.visibility import state_without
from lakesync.errors import AnotherGateway, ValidationFailed
from lakesync.wire.records import decode_records, encode_records

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from lakesync.client.storage.file import ClientFile
    from lakesync.client.storage.stored_rows import LocalKey, StoredRow
    from lakesync.core.attachments import Attachment
    from lakesync.core.clock import Stamp
    from lakesync.core.messages import Resync
    from lakesync.core.visibility import Omitted

# --- omitted columns ------------------------------------------------------------------------------


def leave_out(file: ClientFile, table_id: int, omitted: Omitted) -> None:
    """Remove the contents of columns, except own waiting or lost edits. Reads the whole table."""
    if not omitted:
        return
    rest: dict[LocalKey, RowState] = {}
    for row_id, row in file.rows.of_table(table_id):
        left = state_without(row.known, omitted)
        if left is not row.known:
            rest[table_id, row_id] = left
    file.rows.refold(rest)
    file.conflicts.omit(table_id, omitted)
    Journal(file).leave_out(table_id, omitted)


# --- reading again --------------------------------------------------------------------------------


class _Mode(IntEnum):
    """What becomes of a stale row that a page brings; the numbers are stored."""

    NONE = 0
    REPLACE = 1
    MERGE = 2
    RESTORE = 3
    """As `REPLACE`; and the buffer was restored, and may have lost this client's writes."""


_REPLACING: Final = frozenset({_Mode.REPLACE, _Mode.RESTORE})
_MAKE_STALE: Final = (
    "INSERT OR IGNORE INTO _lakesync_stale (table_id, row_id) "
    "SELECT table_id, row_id FROM _lakesync_rows"
)
_ROWS: Final = "SELECT table_id, row_id, state, base, waiting FROM _lakesync_rows"
_RECEIVED_ROWS: Final = f"{_ROWS} WHERE (table_id, row_id) NOT IN (SELECT * FROM _lakesync_stale)"  # noqa: S608 - ours
_OF_STALE: Final = "WHERE (table_id, row_id) IN (SELECT table_id, row_id FROM _lakesync_stale)"
_HOLD_BACK: Final = (
    "INSERT OR IGNORE INTO _lakesync_outbox (hlc, txn, status, table_id, row_id, run) "
    "VALUES (?, NULL, 'held_back', ?, ?, ?)"
)
_OFFER: Final = "UPDATE _lakesync_outbox SET status = 'offered' WHERE status = 'held_back' AND "


@dataclass(frozen=True)
class Resyncer:
    file: ClientFile

    def _state(self) -> tuple[_Mode, dict[int, Stamp]]:
        """Return the mode; by table the stamp to which the gateway may have forgotten deletions."""
        mode, horizons = self.file.connection.execute(
            "SELECT resync_mode, tombstone_horizons FROM _lakesync_sync"
        ).fetchone()
        return _Mode(mode), {int(table_id): at for table_id, at in json.loads(horizons).items()}

    def _set_state(self, mode: _Mode, horizons: dict[int, Stamp]) -> None:
        self.file.connection.execute(
            "UPDATE _lakesync_sync SET resync_mode = ?, tombstone_horizons = ?",
            (mode, json.dumps(horizons)),
        )

    @property
    def delays_pushes(self) -> bool:
        """Whether pushes wait: a lost event keeps its stamp, too late after a newer one."""
        return self._state()[0] is _Mode.RESTORE

    def start(self, *, is_restored: bool) -> None:
        """Make every row stale and put the cursor at 0."""
        execute = self.file.connection.execute
        if is_restored:
            self.hold_back()
            Journal(self.file).give_back()
        execute(_MAKE_STALE)
        execute("DELETE FROM _lakesync_pending_echo")
        execute("UPDATE _lakesync_sync SET cursor = 0")
        mode = _Mode.RESTORE if is_restored or self.delays_pushes else _Mode.REPLACE
        self._set_state(mode, {})

    def start_elsewhere(self) -> None:
        """Make every row stale, and forget the gateway: the next one that answers is read."""
        execute = self.file.connection.execute
        execute("DELETE FROM _lakesync_stale")  # also of rows that are gone
        execute(_MAKE_STALE)
        execute("DELETE FROM _lakesync_pending_echo")
        execute("DELETE FROM _lakesync_row_tables")
        execute(
            "UPDATE _lakesync_sync SET cursor = 0, epoch = '', snapshot = '', scope = '', "
            "synced_ms = 0"
        )
        self._set_state(_Mode.REPLACE, {})

    def read_again(self, resync: Resync) -> None:
        """Make the rows of some tables stale; the cursor stays."""
        mode, horizons = self._state()
        tables = self.file.connection.execute("SELECT id, name FROM _lakesync_tables").fetchall()
        concerned = [(table_id, name) for table_id, name in tables if resync.concerns(name)]
        ruled = ruled_tables(self.file)
        for table_id, name in concerned:
            if mode not in _REPLACING and table_id not in ruled:  # rules may filter it from now on
                PendingEcho(self.file).note_unread(self.file.catalogue.by_id(table_id))
            leave_out(self.file, table_id, frozenset(resync.omitted_of(name)))
        if mode in _REPLACING:
            # An edit that was accepted since the re-sync began is not held back, but replaced with
            # its row.
            self.hold_back(only_received=True)
        self.file.connection.executemany(
            f"{_MAKE_STALE} WHERE table_id = ?", [(table_id,) for table_id, _ in concerned]
        )
        for table_id, name in tables:
            horizon = max(horizons.get(table_id, 0), resync.tombstone_horizons.get(name, 0))
            if horizon:
                horizons[table_id] = horizon
        self._set_state(mode or _Mode.MERGE, horizons)

    def new_bases(
        self,
        table_id: int,
        row_ids: Collection[str],
        stored: Mapping[str, StoredRow],
        log_start: Stamp | None,
    ) -> dict[str, RowState]:
        """Return the bases that a page's stale rows get before merging; they are no longer stale.

        A row may be stale and not stored: it had only its own edits, and these were refused.
        ``log_start``: the page is of the log, which has already brought everything up to this
        stamp; None if it is of whole rows.
        """
        mode, horizons = self._state()
        if not mode:
            return {}
        rows = self.file.rows.select("row_id FROM _lakesync_stale", table_id, row_ids)
        stale = {row_id for (row_id,) in rows}
        self.file.connection.executemany(
            "DELETE FROM _lakesync_stale WHERE table_id = ? AND row_id = ?",
            [(table_id, row_id) for row_id in stale],
        )
        if mode in _REPLACING:
            return dict.fromkeys(stale, EMPTY)
        known = {row_id: stored[row_id].known for row_id in stale & stored.keys()}
        if log_start is not None:
            own = {row_id: self._own(state, log_start) for row_id, state in known.items()}
            if table_id in ruled_tables(self.file):  # of what they hide, the log brings nothing
                PendingEcho(self.file).note_kept(table_id, own)
            return dict.fromkeys(stale, EMPTY) | own
        newer = ((row_id, newer_than(known[row_id], horizons.get(table_id, 0))) for row_id in known)
        return {row_id: state for row_id, state in newer if state is not known[row_id]}

    def has_stale(self, table_id: int) -> bool:
        stale = "SELECT 1 FROM _lakesync_stale WHERE table_id = ? LIMIT 1"
        return self.file.connection.execute(stale, (table_id,)).fetchone() is not None

    def _own(self, state: RowState, log_start: Stamp) -> RowState:
        """Return this client's writes to a row that the log has yet to bring."""
        own = {
            name: register
            for name, register in state.columns.items()
            if register[0] > log_start and register[1] == self.file.client_id
        }
        is_inserted = any(register[0] == state.alive for register in own.values())
        return RowState(state.alive if is_inserted else 0, 0, own)

    def on_snapshot_complete(self, since: Stamp) -> None:
        """Let what a snapshot may lack be pushed; the log after it begins at ``since``."""
        if self._state()[0] in _REPLACING:
            # No commit up to there has a delta from beyond the drift bound.
            self.file.connection.execute(f"{_OFFER} hlc <= ?", (since + stamp(DRIFT_MS_MAX),))

    def finish(self) -> None:
        """Drop all rows that no page brought; ends the re-sync, if there is one."""
        if not self._state()[0]:
            return
        execute = self.file.connection.execute
        execute(f"DELETE FROM _lakesync_pending_echo {_OF_STALE}")  # noqa: S608 - ours
        self.file.conflicts.hide_stale()
        stale = execute("SELECT table_id, row_id FROM _lakesync_stale").fetchall()
        self.file.rows.refold(dict.fromkeys(stale, EMPTY))
        execute("DELETE FROM _lakesync_stale")
        self._drop_what_is_there()
        for table_id in ruled_tables(self.file):
            execute(f"{_OFFER} table_id = ?", (table_id,))
        execute("UPDATE _lakesync_outbox SET status = 'lost' WHERE status = 'held_back'")
        self._set_state(_Mode.NONE, {})

    def hold_back(self, *, only_received: bool = False) -> None:
        """Hold own writes back until the re-sync ends, perhaps only those that it brought."""
        rows = _RECEIVED_ROWS if only_received else _ROWS
        connection = self.file.connection
        # The outbox has one entry for a stamp: what is certainly this client's own comes first.
        for anonymous in (False, True):
            connection.executemany(_HOLD_BACK, self._own_writes(rows, anonymous=anonymous))
        counted = connection.execute(
            "SELECT count(*), table_id, row_id FROM _lakesync_outbox GROUP BY table_id, row_id"
        ).fetchall()
        # The base has them too, until the row is dropped: then it is merged again.
        base = "UPDATE _lakesync_rows SET base = coalesce(base, state), waiting = ? "
        connection.executemany(f"{base}WHERE table_id = ? AND row_id = ?", counted)

    def _own_writes(self, rows: str, *, anonymous: bool) -> Iterator[tuple[int, int, str, bytes]]:
        me = self.file.client_id
        for table_id, row_id, *fields in self.file.connection.execute(rows):
            table = self.file.catalogue.by_id(table_id).name
            for delta in deltas_of(
                table, row_id, self.file.rows.stored(table_id, *fields).known, nobody=me
            ):
                if delta.client_id == me and anonymous is not bool(delta.columns):
                    yield delta.hlc, table_id, row_id, encode_records((delta,))

    def _drop_what_is_there(self) -> None:
        """Remove entries that, by the pages that were read, are at the gateway."""
        there: list[Stamp] = []
        touched: dict[LocalKey, None] = {}
        for hlc, table_id, row_id, run in self.file.connection.execute(
            "SELECT hlc, table_id, row_id, run FROM _lakesync_outbox WHERE status IN (?, ?)",
            (Status.HELD_BACK, Status.OFFERED),
        ).fetchall():
            known = self.file.rows.one((table_id, row_id)).known
            if fold(decode_records(run), known) is known:
                there.append(hlc)
                touched[table_id, row_id] = None
        self.file.outbox.remove(there)
        self.file.rows.refold(touched)


# --- another gateway ------------------------------------------------------------------------------


KeepEdits: TypeAlias = Literal["edits", "nothing"]
_NOT_SENT: Final = (
    "the file was given to another gateway before the action was sent: retry it there, or discard "
    "it"
)
_MAYBE_DONE: Final = (
    "the file was given to another gateway before the outcome was known: look whether it was done "
    "there before you retry it here, or discard it"
)
_THERE_ONCE: Final = (Status.HELD_BACK, Status.OFFERED)
_OUTBOX: Final = "SELECT hlc, table_id, row_id, run FROM _lakesync_outbox"
_WAIT: Final = (
    "UPDATE _lakesync_outbox SET status = 'pending' WHERE status NOT IN ('pending', 'quarantined')"
)


def edits_to_move(file: ClientFile) -> int:
    """Return how many edits `rebind` would keep or give up."""
    (number,) = file.connection.execute(
        "SELECT count(*) FROM _lakesync_outbox WHERE status NOT IN (?, ?)", _THERE_ONCE
    ).fetchone()
    return int(number)


def checked_keep(keep: str) -> KeepEdits:
    if keep not in get_args(KeepEdits):
        raise ValidationFailed('keep must be "edits" or "nothing"', field="keep")
    return cast("KeepEdits", keep)


def rebind(file: ClientFile, keep: KeepEdits) -> int:
    """Give a file to another gateway; returns how many edits it kept or gave up."""
    number = edits_to_move(file)
    going = _THERE_ONCE if checked_keep(keep) == "edits" else tuple(Status)
    marks = ", ".join("?" * len(going))
    left = file.connection.execute(f"{_OUTBOX} WHERE status IN ({marks})", going).fetchall()
    file.outbox.remove(hlc for hlc, *_ in left)
    file.rows.refold({(table_id, row_id): None for _, table_id, row_id, _ in left})
    file.connection.execute(_WAIT)
    Resyncer(file).start_elsewhere()
    file.conflicts.clear()
    forget_all(file)
    Journal(file).clear()
    for action in file.actions.listed(dead=False):
        was_sent = action.status is ActionStatus.SENT
        file.actions.end(action, AnotherGateway(_MAYBE_DONE if was_sent else _NOT_SENT))
    file.attachments.start_elsewhere(_references(file), keep_waiting=keep == "edits")
    return number


def _references(file: ClientFile) -> frozenset[Attachment]:
    return frozenset(
        reference
        for _, _, _, run in file.connection.execute(_OUTBOX)
        for delta in decode_records(run)
        for _, value in delta.columns
        for reference in references_in(parse(value))
    )
