"""The existing TypeScript HTTP client in miniature: its rules, its faults, none of ours.

What it does, whatever we would rather it did:
    - it asks for a checkpoint at cursor 0, pulls, then pushes at most 100 deltas of its queue;
    - what was not answered by 200 waits a while, longer each time, and is dropped after ten tries;
    - a page that holds deltas moves its cursor, and so does every receipt, in either direction;
    - an empty page moves nothing, and it never asks whether there is more;
    - a page is applied in one transaction: an INSERT of a row that it holds fails all of it, an
      UPDATE of one that it does not hold does nothing, and it keeps no stamps of what it holds;
    - of a row with an edit in its queue that does not wait to be tried again, the newer delta wins
      as a whole; if that is the remote one, the edit leaves the queue;
    - it cannot bind an object or a list to a statement: such a value fails the page;
    - so does any delta of a table that its app was made without, a DELETE too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from lakesync.core.delta import Op, checked_delta, make_delta, parse
from lakesync.core.messages import PAGE_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.core.clock import Stamp
    from lakesync.core.delta import Delta

Rows = dict[tuple[str, str], dict[str, Any]]
PUSHED_MAX = 100
PULLED_MAX = 1_000
TRIES_MAX = 10
WAIT_MS_MAX = 30_000


class Line(Protocol):
    """How it reaches its gateway; each method gives None if no answer came back, or a refusal."""

    def now_ms(self) -> int:
        """Return the time."""
        ...

    def checkpoint(self) -> tuple[list[Delta], Stamp] | None:
        """Return a checkpoint's deltas and where the log goes on."""
        ...

    def pull(self, since: Stamp, limit: int, bytes_max: int) -> tuple[list[Delta], Stamp] | None:
        """Return a page's deltas and its ``serverHlc``."""
        ...

    def push(self, deltas: list[Delta]) -> Stamp | None:
        """Return a receipt's ``serverHlc``."""
        ...


class PageFailed(Exception):
    """SQLite's refusal: a second row with the same key, a value that it cannot bind, no table."""


@dataclass
class OlderClient:
    """One device. Its cursor lives as long as its process, its rows may live longer."""

    client_id: str
    line: Line
    now: Callable[[], Stamp]
    rows: Rows = field(default_factory=dict)
    queue: list[Delta] = field(default_factory=list)
    cursor: Stamp = 0
    tables: frozenset[str] | None = None
    """The tables that its app was made with; None for all."""
    dropped: set[tuple[str, str]] = field(default_factory=set)
    """Rows as an edit left them which it dropped by its own rule, until they are replaced."""
    deltas_applied: int = 0
    """Of its last page."""
    failures: int = 0
    """Pages that it could not apply."""
    tries: dict[str, tuple[int, int]] = field(default_factory=dict)
    """For each edit that was tried, how often, and when it is tried again."""
    given_up: list[Delta] = field(default_factory=list)
    """Edits of which the app was told that they were dropped."""
    acknowledged: list[Delta] = field(default_factory=list)
    """Edits that it forgot because of a 200."""

    # --- edits

    def insert(self, table: str, row_id: str, **columns: Any) -> None:
        assert (table, row_id) not in self.rows
        self.rows[table, row_id] = dict(columns)
        self._enqueue(Op.INSERT, table, row_id, columns)

    def update(self, table: str, row_id: str, **columns: Any) -> None:
        self.rows[table, row_id] |= columns
        self._enqueue(Op.UPDATE, table, row_id, columns)

    def delete(self, table: str, row_id: str) -> None:
        del self.rows[table, row_id]
        self._enqueue(Op.DELETE, table, row_id, {})

    def _enqueue(self, op: Op, table: str, row_id: str, columns: dict[str, Any]) -> None:
        made = make_delta(op, table, row_id, columns, client_id=self.client_id, hlc=self.now())
        self.queue.append(made)

    # --- sync

    def sync(self, limit: int = PULLED_MAX) -> None:
        if self.cursor == 0:
            self.begin()
        self.pull(limit)
        self.push()

    def push(self) -> None:
        due = self._due()[:PUSHED_MAX]
        gone = [delta for delta in due if self._tried(delta)[0] >= TRIES_MAX]
        self.given_up += gone
        sent = [delta for delta in due if delta not in gone]
        self.queue = [delta for delta in self.queue if delta not in gone]
        if not sent:
            return
        stamp = self.line.push(sent)
        if stamp is not None:
            self.queue = [delta for delta in self.queue if delta not in sent]
            self.acknowledged += sent
            self.cursor = stamp
            return
        for delta in sent:
            count = self._tried(delta)[0] + 1
            wait_ms = min(1_000 * 2**count, WAIT_MS_MAX)
            self.tries[delta.delta_id] = (count, self.line.now_ms() + wait_ms)

    def _due(self) -> list[Delta]:
        return [delta for delta in self.queue if self._tried(delta)[1] <= self.line.now_ms()]

    def _tried(self, delta: Delta) -> tuple[int, int]:
        return self.tries.get(delta.delta_id, (0, 0))

    def begin(self) -> None:
        """Fetch a checkpoint; the cursor moves, whether it could be applied or not."""
        checkpoint = self.line.checkpoint()
        if checkpoint is not None:
            self._apply_all(checkpoint[0])
            self.cursor = checkpoint[1]

    def pull(self, limit: int = PULLED_MAX, bytes_max: int = PAGE_BYTES_MAX) -> None:
        page = self.line.pull(self.cursor, limit, bytes_max)
        self.deltas_applied = len(page[0]) if page else 0
        if page is None or not page[0]:
            return
        deltas, stamp = page
        if self._apply_all(deltas):
            self.cursor = stamp

    def _apply_all(self, deltas: list[Delta]) -> bool:
        before = {key: dict(row) for key, row in self.rows.items()}, list(self.queue)
        pending = {(delta.table, delta.row_id): delta for delta in self._due()}
        try:
            for delta in deltas:
                self._meet(delta, pending.get((delta.table, delta.row_id)))
        except PageFailed:
            self.rows, self.queue = before
            self.failures += 1
            return False
        return True

    def restart(self) -> None:
        """Begin a new process: rows and queue are on disk, the cursor is not."""
        self.cursor = 0

    def _meet(self, remote: Delta, local: Delta | None) -> None:
        if local is None:
            self._apply(remote)
            return
        resolved = _resolved(local, remote)
        if (resolved.client_id, resolved.hlc) == (remote.client_id, remote.hlc):
            self._apply(resolved)
            if local in self.queue:
                self.queue.remove(local)
            if local.op is Op.DELETE or set(resolved.columns) - set(remote.columns):
                self.dropped.add((local.table, local.row_id))

    def _apply(self, delta: Delta) -> None:
        key = (delta.table, delta.row_id)
        if self.tables is not None and delta.table not in self.tables:
            raise PageFailed(key)
        if delta.op is Op.DELETE:
            self.rows.pop(key, None)
            self.dropped.discard(key)
            return
        values = {name: parse(value) for name, value in delta.columns}
        if any(isinstance(value, dict | list) for value in values.values()):
            raise PageFailed(values)
        if delta.op is Op.INSERT:
            if key in self.rows:
                raise PageFailed(key)
            self.rows[key] = values
        elif key in self.rows:
            self.rows[key] |= values


def _resolved(local: Delta, remote: Delta) -> Delta:
    ours = (local.hlc, local.client_id) > (remote.hlc, remote.client_id)
    winner, other = (local, remote) if ours else (remote, local)
    if Op.DELETE in (local.op, remote.op):
        return winner
    op = Op.INSERT if local.op is remote.op is Op.INSERT else Op.UPDATE
    columns = tuple({**dict(other.columns), **dict(winner.columns)}.items())
    merged = checked_delta(op, winner.table, winner.row_id, winner.client_id, winner.hlc, columns)
    return merged._replace(delta_id=winner.delta_id)
