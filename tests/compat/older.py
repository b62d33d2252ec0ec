"""The existing TypeScript HTTP client in miniature: its rules, its faults, none of ours.

What it does, whatever we would rather it did:
    - it pulls, then pushes at most 100 deltas of its queue;
    - a page that holds deltas moves its cursor, and so does every receipt, in either direction;
    - an empty page moves nothing, and it never asks whether there is more;
    - a page is applied in one transaction: an INSERT of a row that it holds fails all of it, an
      UPDATE of one that it does not hold does nothing, and it keeps no stamps of what it holds;
    - of a row with an edit in its queue, the newer delta wins as a whole; if that is the remote
      one, the edit leaves the queue.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from lakesync.core.delta import Op, checked_delta, make_delta
from lakesync.core.values import parse

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.core.clock import Stamp
    from lakesync.core.delta import Delta

Rows = dict[tuple[str, str], dict[str, Any]]
PUSHED_MAX = 100
PULLED_MAX = 1_000


class Line(Protocol):
    """How it reaches its gateway; each method gives None if no answer came back."""

    def pull(self, since: Stamp, limit: int) -> tuple[list[Delta], Stamp] | None:
        """Give a page's deltas and its ``serverHlc``."""
        ...

    def push(self, deltas: list[Delta]) -> Stamp | None:
        """Give a receipt's ``serverHlc``."""
        ...


class RowIsThere(Exception):
    """SQLite's refusal of a second row with the same key."""


@dataclass
class OlderClient:
    """One device. Its cursor lives as long as its process, its rows may live longer."""

    client_id: str
    line: Line
    now: Callable[[], Stamp]
    rows: Rows = field(default_factory=dict)
    queue: list[Delta] = field(default_factory=list)
    cursor: Stamp = 0
    dropped: set[tuple[str, str]] = field(default_factory=set)
    """Rows whose edits it dropped by its own rule, and which it now holds otherwise than others."""
    failures: int = 0
    """Pages that it could not apply."""

    # --- edits

    def insert(self, table: str, row_id: str, **columns: Any) -> None:
        """Insert a row that is not there."""
        assert (table, row_id) not in self.rows
        self.rows[table, row_id] = dict(columns)
        self._enqueue(Op.INSERT, table, row_id, columns)

    def update(self, table: str, row_id: str, **columns: Any) -> None:
        """Change some columns of a row that is there."""
        self.rows[table, row_id] |= columns
        self._enqueue(Op.UPDATE, table, row_id, columns)

    def delete(self, table: str, row_id: str) -> None:
        """Delete a row that is there."""
        del self.rows[table, row_id]
        self._enqueue(Op.DELETE, table, row_id, {})

    def _enqueue(self, op: Op, table: str, row_id: str, columns: dict[str, Any]) -> None:
        made = make_delta(op, table, row_id, columns, client_id=self.client_id, hlc=self.now())
        self.queue.append(made)

    # --- sync

    def sync(self) -> None:
        """Do one round."""
        self.pull()
        self.push()

    def push(self) -> None:
        """Push what is queued."""
        sent = self.queue[:PUSHED_MAX]
        if not sent:
            return
        stamp = self.line.push(sent)
        if stamp is not None:
            self.queue = [delta for delta in self.queue if delta not in sent]
            self.cursor = stamp

    def pull(self) -> None:
        """Pull one page and apply it."""
        page = self.line.pull(self.cursor, PULLED_MAX)
        if page is None or not page[0]:
            return
        deltas, stamp = page
        before = {key: dict(row) for key, row in self.rows.items()}, list(self.queue)
        pending = {(delta.table, delta.row_id): delta for delta in self.queue}
        try:
            for delta in deltas:
                self._meet(delta, pending.get((delta.table, delta.row_id)))
        except RowIsThere:
            self.rows, self.queue = before
            self.failures += 1
        else:
            self.cursor = stamp

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
                self.dropped.add((local.table, local.row_id))

    def _apply(self, delta: Delta) -> None:
        key = (delta.table, delta.row_id)
        if delta.op is Op.DELETE:
            self.rows.pop(key, None)
            return
        values = {name: parse(value) for name, value in delta.columns}
        if delta.op is Op.INSERT:
            if key in self.rows:
                raise RowIsThere(key)
            self.rows[key] = values
        elif key in self.rows:
            self.rows[key] |= values


def _resolved(local: Delta, remote: Delta) -> Delta:
    """Give what the client's resolver makes of two deltas of one row."""
    ours = (local.hlc, local.client_id) > (remote.hlc, remote.client_id)
    winner, other = (local, remote) if ours else (remote, local)
    if Op.DELETE in (local.op, remote.op):
        return winner
    op = Op.INSERT if local.op is remote.op is Op.INSERT else Op.UPDATE
    columns = tuple({**dict(other.columns), **dict(winner.columns)}.items())
    merged = checked_delta(op, winner.table, winner.row_id, winner.client_id, winner.hlc, columns)
    return merged._replace(delta_id=winner.delta_id)
