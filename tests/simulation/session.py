"""What one client may expect of its own rows, checked while it works.

read your writes        an edit is in its row at once, and stays until something later covers it
monotonic reads         the cursor never falls, and no row ever lacks what a page brought
monotonic writes        each edit's stamp is above all of this client's stamps before
writes follow reads     and above everything that its rows held when it was made
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from lakesync.core.clock import stamp_ms
from tests.simulation.history import Violation
from tests.simulation.model import NOTHING, Edit, Key, Row, at_least, edit_of, row_of, seen
from tests.simulation.stored import stored_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lakesync.client import Client
    from lakesync.core.delta import Delta
    from tests.simulation.history import History


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
        later = stored_of(client).later_stamp(delta.hlc)
        if later is not None:
            raise Violation("monotonic writes", f"{delta} is not above {later} in the outbox")
        row = client.get(delta.table, delta.row_id).unwrap()
        state = stored_of(client).row((delta.table, delta.row_id)).state
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
        waiting = {
            delta.delta_id
            for delta, status in stored_of(client).outbox()
            if status not in {"held_back", "offered"}
        }
        for delta_id, delta in history.before.items():
            is_settled = delta_id not in waiting and delta_id not in history.accepted
            if is_settled and delta.client_id == self._client_id:
                self.gone[edit_of(delta)] += 1
        for delta_id in waiting:
            history.accepted.pop(delta_id, None)

    def lost(self, edits: Iterable[Delta]) -> None:
        """Note the edits that go with a file: the gateway may never have seen them."""
        self.gone.update(edit_of(delta) for delta in edits)

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
        at = stored_of(client).position()
        cursor = at.cursor
        is_behind = cursor < settled and (
            not behind_ms or stamp_ms(settled) > stamp_ms(cursor) + behind_ms
        )
        if is_behind or at.snapshot:
            raise Violation("a sync reaches the present", f"{cursor} is behind {settled}")

    def check(self, client: Client, epoch: str) -> None:
        """Hold all rows of the file against what it must know, and what it can know.

        Args:
            client: whose.
            epoch: that of the buffer; a client that has not noticed it knows of another buffer.
        """
        stored = stored_of(client)
        at = stored.position()
        if at.is_reading or at.epoch != epoch:
            return
        if at.cursor < self._cursor:
            fell = f"the cursor fell from {self._cursor} to {at.cursor}"
            raise Violation("monotonic reads", fell)
        self._cursor = at.cursor
        outbox: dict[Key, list[Delta]] = {}
        for delta, _ in stored.outbox():
            outbox.setdefault((delta.table, delta.row_id), []).append(delta)
        shown = states(client)
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


def states(client: Client) -> dict[Key, Row]:
    """Return all rows of a client, its edits that wait included."""
    return {key: row.state for key, row in stored_of(client).rows().items()}
