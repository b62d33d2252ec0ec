"""One poll of a connector: page after page to deltas, pushed, then the cursor.

Rules of this module
    1. A cursor is saved after everything of its page is durable: accepted by the gateway, or a dead
       letter. Whoever is killed between is done again, with the same deltas.
    2. `PollState.poll_ms` is saved before the first page is read: what has no time of its own is
       stamped with it, also after a crash.
    3. One page is in memory, or a few where writes are dear, whatever the source holds.
    4. What is wrong with one row harms no other row; what is wrong with one table, no other table.

Laws N1-N6: ``docs/spec/connectors.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from lakesync.adapters.collector import collector_paused
from lakesync.connectors.deltas import client_id_of, deltas_of, pushes_of
from lakesync.connectors.state import check_cursor
from lakesync.core.messages import OutcomeKind, Push
from lakesync.errors import AdapterFailed, InternalError, LakeSyncError, Retry
from lakesync.result import Err

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lakesync.connectors.dead_letters import DeadLetters
    from lakesync.connectors.port import Connector, SourcePage
    from lakesync.connectors.state import PollState
    from lakesync.core.delta import Delta
    from lakesync.core.messages import PushReceipt
    from lakesync.ports import WallClock

PAGE_ROWS_MAX: Final = 1_000
"""Rows that a connector is asked for at a time."""
WAIT_S_MAX: Final = 3_600
"""How long a source or the gateway is left alone, whatever it asks for."""


@dataclass(frozen=True, slots=True)
class Polled:
    """What became of a poll."""

    status: str
    """``done``: there is no more. ``more``: time was over. ``wait``: somebody asks for patience."""
    wait_s: int = 0


class Saves(Protocol):
    """Makes the state durable."""

    def __call__(self, state: PollState, *, ends: bool = False) -> None:
        """Save it; if the poll ends here, others may poll from then on.

        Raises:
            Conflict: somebody else polls.
        """
        ...


class Poll:
    """Polls one connector.

    Args:
        name: the connector's, which says whose client it writes as.
        connector: what is read.
        tables: the source's tables in the order in which they are read, each with its name in the
            gateway; its feed first, if it has one.
        push: hands deltas over; raises `LakeSyncError`.
        letters: where rows go that are refused.
        save: makes the state durable.
        wall_clock: the time.
        shape: gives what of a page's deltas is pushed.
        pages: usual pages that are read, and pushed, at a time.
    """

    def __init__(
        self,
        name: str,
        connector: Connector,
        tables: Mapping[str, str],
        *,
        push: Callable[[Push], PushReceipt],
        letters: DeadLetters,
        save: Saves,
        wall_clock: WallClock,
        shape: Callable[[Sequence[Delta]], Sequence[Delta]] = list,
        pages: int = 1,
    ) -> None:
        self._client_id = client_id_of(name)
        self._connector = connector
        self._tables = tables
        self._push = push
        self._letters = letters
        self._save = save
        self._wall_clock = wall_clock
        self._shape = shape
        self._pages = pages

    def run(self, state: PollState, has_time: Callable[[], bool]) -> Polled:
        """Go on with the poll that is under way, or begin one, until its end or time is over.

        Args:
            state: how far it is; moved on, and saved with each page.
            has_time: asked before each page.

        Raises:
            Conflict: somebody else polls this connector; nothing more was saved.
        """
        if not state.poll_ms:
            # After a clock that stepped back: a later poll is dated later.
            state.poll_ms = max(self._wall_clock(), state.polled_ms + 1)
            state.finished = []
            self._save(state)
        try:
            for source in self._tables:
                if not self._table(state, source, has_time):
                    return Polled("more")
        except LakeSyncError as error:
            return self._stopped(state, error)
        if state.fault and state.fault.at_ms < state.poll_ms:
            state.fault = None
        state.polled_ms, state.poll_ms, state.finished = state.poll_ms, 0, []
        state.wait_until_ms = 0
        state.polls += 1
        self._save(state, ends=True)
        return Polled("done")

    def _stopped(self, state: PollState, error: LakeSyncError) -> Polled:
        """Leave the poll where it is: it goes on there, after a while or once it is mended."""
        if error.code == "CONFLICT":
            raise error
        now_ms = self._wall_clock()
        state.note(error, now_ms)
        wait_s = min(error.retry_after_s, WAIT_S_MAX)
        state.wait_until_ms = now_ms + wait_s * 1000
        self._save(state, ends=True)
        return Polled("wait", wait_s) if error.retry is Retry.LATER else Polled("done")

    def _table(self, state: PollState, source: str, has_time: Callable[[], bool]) -> bool:
        """Read a table to its end; False if time was over before."""
        while source not in state.finished:
            if not has_time():
                return False
            with collector_paused():
                moved_on = self._moved_on(state, source)
            if moved_on:
                self._save(state)
        return True

    def _moved_on(self, state: PollState, source: str) -> bool:
        """Take a table's next page; False if nothing would be lost with the state of now."""
        try:
            page = self._page(state, source)
        except LakeSyncError as error:
            if error.retry is Retry.LATER:
                raise
            state.note(error, self._wall_clock(), source)
            state.finished.append(source)
            return True
        self._take(state, source, page)
        state.cursors[source] = check_cursor(page.cursor)
        if not page.has_more:
            state.finished.append(source)
        return bool(page.has_more or page.changes or page.unreadable)

    def _page(self, state: PollState, source: str) -> SourcePage:
        cursor = state.cursors.get(source, "")
        try:
            page = self._connector.read(
                source, cursor, rows_max=PAGE_ROWS_MAX * self._pages, poll_ms=state.poll_ms
            )
        except Exception as exc:
            # A connector may be anybody's: what is wrong with it stops this table alone.
            raise InternalError(f"the connector failed: {type(exc).__name__}: {exc}") from exc
        if isinstance(page, Err):
            raise page.error
        if page.value.has_more and page.value.cursor == cursor:
            raise AdapterFailed(f"the source gave the same page of {source} again; it never ends")
        return page.value

    def _take(self, state: PollState, source: str, page: SourcePage) -> None:
        """Make all of a page durable: accepted, or a dead letter."""
        deltas, refused = deltas_of(page, source, self._tables, self._client_id, state.poll_ms)
        for row_id, error, table in refused:
            self._letters.add(table, row_id, error, None)
        for part in pushes_of(self._shape(deltas), self._pages):
            self._hand_over(part, letters=bool(state.dead_letters))
            state.rows += len(part)
        if self._letters.changed:
            state.dead_letters = len(self._letters)
        if page.report:
            state.source = dict(page.report)

    def _hand_over(self, deltas: Sequence[Delta], *, letters: bool) -> None:
        push = Push(self._client_id, tuple(enumerate(deltas)), trusted=True)
        receipt = self._push(push)
        refused = {
            outcome.index: outcome.error
            for outcome in receipt.outcomes
            if outcome.kind is OutcomeKind.REFUSED and outcome.error is not None
        }
        for error in refused.values():
            if error.retry is Retry.LATER:
                raise error
        for index, delta in enumerate(deltas):
            if index in refused:
                self._letters.add(delta.table, delta.row_id, refused[index], delta)
            elif letters:
                self._letters.take_back(delta.table, delta.row_id)
