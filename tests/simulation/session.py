"""What one client may expect of its own rows, checked while it works.

read your writes        an edit is in its row at once, and stays until something later covers it
monotonic reads         the cursor never falls, and no row ever lacks what a page brought
monotonic writes        each edit's stamp is above all of this client's stamps before
writes follow reads     and above everything that its rows held when it was made
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING, TypeAlias

from lakesync.core.clock import stamp_ms
from lakesync.wire.records import decode_records
from tests.simulation.history import Violation
from tests.simulation.model import NOTHING, Key, Row, at_least, row_of, seen, stored_row
from tests.support.client_rows import client_rows

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from lakesync.client import Client
    from lakesync.core.delta import Delta
    from tests.simulation.history import History

Edit: TypeAlias = tuple[str, str, str, str, tuple[tuple[str, bytes], ...]]
"""``(client, table, row, op, columns)``: an edit, whatever its stamp."""


def edit_of(delta: Delta) -> Edit:
    """Return a delta without its stamp."""
    return delta.client_id, delta.table, delta.row_id, delta.op.name, delta.columns


class Session:
    """One client's expectations."""

    def __init__(self, history: History, client_id: str) -> None:
        self._history = history
        self._client_id = client_id
        self._cursor = 0
        self.made: Counter[Edit] = Counter()
        """Every edit that the app was told is on the disk."""
        self.gone: Counter[Edit] = Counter()
        """Edits that nobody owes anything: on a lost file, or taken back by the app."""
        self._discarded: set[str] = set()
        self.taken_back: set[Key] = set()
        """Rows of edits that the app took back."""

    # --- edits ------------------------------------------------------------------------------------

    def edited(self, client: Client, delta: Delta, *, checked: bool = True) -> None:
        self.made[edit_of(delta)] += 1
        if delta.delta_id in self._history.deltas:
            # Of a file before this one, under the same client id: stamp for stamp the same edit.
            self.gone[edit_of(delta)] += 1
        if not checked:
            return
        later = client._file.database._reader.execute(
            "SELECT hlc FROM _lakesync_outbox WHERE hlc > ? LIMIT 1", (delta.hlc,)
        ).fetchone()
        if later is not None:
            raise Violation("monotonic writes", f"{delta} is not above {later} in the outbox")
        row = client.get(delta.table, delta.row_id).unwrap()
        state = _state(client, (delta.table, delta.row_id))
        if delta.op.name == "DELETE":
            if row is not None:
                raise Violation("read your writes", f"{delta} left {row}")
        elif (row is None and seen(delta.table, state).exists) or not at_least(
            state, row_of([delta])
        ):
            raise Violation("read your writes", f"{delta} is not in {state}")
        elif any(state.columns[name][2] != value for name, value in delta.columns):
            raise Violation("writes follow reads", f"{delta} lost to what was there: {state}")

    # --- life -------------------------------------------------------------------------------------

    def reinstalled(self, client_id: str) -> None:
        """Begin again on an empty file."""
        self._client_id = client_id
        self._cursor = 0

    def rebinds(self, client: Client) -> None:
        """Note that the app gives the file to another gateway, which has cursors of its own.

        What waits has to get there, whatever became of it at the old one; what the file knows to
        be there stays there.
        """
        self._cursor = 0
        history = self._history
        runs = client._file.database._reader.execute(
            "SELECT run FROM _lakesync_outbox WHERE status NOT IN ('held_back', 'offered')"
        )
        waiting = {delta.delta_id for (run,) in runs for delta in decode_records(run)}
        for delta_id, delta in history.before.items():
            is_settled = delta_id not in waiting and delta_id not in history.accepted
            if is_settled and delta.client_id == self._client_id:
                self.gone[edit_of(delta)] += 1
        for delta_id in waiting:
            history.accepted.pop(delta_id, None)

    def lost(self, path: Path) -> None:
        """Note what goes with a file: edits that the gateway may never have seen."""
        with closing(sqlite3.connect(path)) as connection:
            try:
                rows = connection.execute("SELECT run FROM _lakesync_outbox").fetchall()
            except sqlite3.OperationalError:
                return  # it died before there were any tables
        for (run,) in rows:
            for delta in decode_records(run):
                self.gone[edit_of(delta)] += 1

    def discards(self, delta: Delta) -> None:
        """Note an edit that the app is about to take back: it may die before it knows."""
        self.taken_back.add((delta.table, delta.row_id))
        if delta.delta_id not in self._discarded:
            self._discarded.add(delta.delta_id)
            self.gone[edit_of(delta)] += 1

    # --- rows -------------------------------------------------------------------------------------

    def caught_up(self, client: Client, settled: int, behind_ms: int) -> None:
        """Hold a sync that went well against the log as it was when it began.

        Args:
            client: the client.
            settled: the last commit that was visible as a whole when the sync began.
            behind_ms: how far newer commits were ahead of the last page, as it said.
        """
        cursor, snapshot = client._file.database._reader.execute(
            "SELECT cursor, snapshot FROM _lakesync_sync"
        ).fetchone()
        is_behind = cursor < settled and (
            not behind_ms or stamp_ms(settled) > stamp_ms(cursor) + behind_ms
        )
        if is_behind or snapshot:
            raise Violation("a sync reaches the present", f"{cursor} is behind {settled}")

    def check(self, client: Client, epoch: str) -> None:
        """Hold all rows of the file against what it must know, and what it can know.

        Args:
            client: whose.
            epoch: that of the buffer; a client that has not noticed it knows of another buffer.
        """
        connection = client._file.database._reader
        cursor, resync_mode, stored_epoch, snapshot = connection.execute(
            "SELECT cursor, resync_mode, epoch, snapshot FROM _lakesync_sync"
        ).fetchone()
        if resync_mode or snapshot or stored_epoch != epoch:
            return
        if cursor < self._cursor:
            raise Violation("monotonic reads", f"the cursor fell from {self._cursor} to {cursor}")
        self._cursor = cursor
        outbox: dict[Key, list[Delta]] = {}
        for (run,) in connection.execute("SELECT run FROM _lakesync_outbox"):
            for delta in decode_records(run):
                outbox.setdefault((delta.table, delta.row_id), []).append(delta)
        shown = _states(client)
        for key in {**shown, **self._history.of_row, **outbox}:
            self._check_row(key, shown.get(key, NOTHING), outbox.get(key, []))

    def _check_row(self, key: Key, shown: Row, waiting: list[Delta]) -> None:
        history, until = self._history, self._cursor
        known = [*history.deltas_until(until, key), *waiting]
        ruled = history.rulings.were_there
        if history.appends(key[0]):
            behind = history.in_lake_only[self._client_id]
            known = [d for d in known if not 0 < history.commit_of.get(d.delta_id, 0) <= behind]
        # Under rules a row may have gone from sight; see `tests.simulation.sights`.
        if not ruled and not at_least(shown, history.remembered(key[0], row_of(known))):
            raise Violation("no row lacks a page", f"{key}: {shown}, not {row_of(known)}")
        own = history.accepted_of.get((self._client_id, *key), ())
        ahead = history.deltas_until(max(until, history.seen_ahead[self._client_id]), key)
        most = row_of([*known, *own, *ahead])
        if not at_least(most, shown):
            raise Violation("no row is made up", f"{key}: {shown}, at most {most}")

    def settled(self, accepted: Iterable[Delta]) -> None:
        """Hold all edits against what became of them: none may be lost."""
        left = self.made - self.gone
        left.subtract(Counter(edit_of(delta) for delta in accepted))
        lost = +left
        if lost:
            raise Violation("no edit is lost", f"{sum(lost.values())}, such as {next(iter(lost))}")


def _states(client: Client) -> dict[Key, Row]:
    return {(row.table, row.row_id): stored_row(*row.state) for row in client_rows(client)}


def _state(client: Client, key: Key) -> Row:
    rows = client_rows(client, *key)
    return stored_row(*rows[0].state) if rows else NOTHING


def states(client: Client) -> dict[Key, Row]:
    return _states(client)
