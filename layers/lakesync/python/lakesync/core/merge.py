"""Merge: how a row's deltas become one row, in any order, and how repeated events are recognised.

Rules of this module
    1. Everything that decides which write wins is here. The client, the gateway, the SQL
       destinations and Spark agree with it, and tests run the same deltas through all of them.
    2. A register is ``(stamp, client_id, canonical value)``, and the greatest wins, compared as a
       tuple. Python compares text by code point, which is the order of its UTF-8 bytes, so this is
       "stamp, then client id by bytes, then the greater canonical bytes" with no further code.
    3. A row state is kept in *normal form*: registers at or below ``deleted`` are dropped, and an
       ``alive`` at or below it is 0. ``deleted`` only grows, so a dropped register could never have
       become visible again, and a state's bytes do not depend on the order of its deltas.

Theory: each register is a last-writer-wins element and the row a product of them, so `join` is the
least upper bound of a semilattice: associative, commutative, idempotent (Shapiro et al., "A
comprehensive study of Convergent and Commutative Replicated Data Types", INRIA 2011, § 3.2).
Laws M1-M7 and M10: ``docs/spec/merge.md``.

Forgotten tombstones
    A tombstone is the only evidence that an old delta lost. After it is forgotten, its table's
    horizon decides instead: a stamp that every writer knows before the table's first tombstone is
    forgotten. A table of which no tombstone was ever forgotten has no horizon:

        a delta at or below the horizon that is older than everything its row holds is not merged

    Why this is enough: a forgotten tombstone is at or below the horizon. Any later write to its row
    id is above the horizon, or not below what the row holds by then. So every such write is above
    the tombstone, and everything that the tombstone covered stays covered.
    Laws R5-R6: ``docs/spec/retention.md``.

A row state as deltas again
    They are the fewest that merge to it, whatever deltas it was made of. None is larger than a
    pushed delta may be, so any reader that enforces that limit accepts them. A row that was
    accepted in several deltas is sent in several. Laws M8-M9: ``docs/spec/merge.md``.

Append marks
    Events are not merged, and have no state each. A client pushes them in stamp order. Its mark in
    a shard is its last accepted stamp, with the latest deltas before it. That is enough to tell a
    repeat of an accepted delta from a delta that arrived late. Laws A1-A5: ``docs/spec/append.md``.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from lakesync.core.delta import COLUMNS_MAX, DELTA_BYTES_MAX, GATEWAY_CLIENT, Op, known_delta

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from lakesync.core.clock import Stamp
    from lakesync.core.delta import CanonicalJson, Columns, Delta

Register: TypeAlias = "tuple[Stamp, str, CanonicalJson]"
"""One column's winning write: its stamp, its client, its value."""


class RowState(NamedTuple):
    """All that is known of one row, in normal form."""

    alive: Stamp
    """The latest INSERT that no later DELETE covers; 0 if there is none."""
    deleted: Stamp
    """The latest DELETE; 0 if there never was one."""
    columns: Mapping[str, Register]
    """The visible columns: every register here is above ``deleted``."""


EMPTY: Final = RowState(0, 0, {})


def apply(state: RowState, delta: Delta) -> RowState:
    """Merge one delta into a row; returns ``state`` itself if the delta changes nothing.

    Equal to ``join(state, state_of(delta))``, and faster. Idempotent.
    """
    hlc = delta.hlc
    alive, deleted, registers = state
    if hlc <= deleted:
        return state
    if delta.op is Op.DELETE:
        return _normal(alive, hlc, registers)
    client_id = delta.client_id
    if not registers and delta.op is Op.INSERT and hlc > alive:
        new = {name: (hlc, client_id, value) for name, value in delta.columns}
        return RowState(hlc, deleted, new)
    changed = None
    for name, value in delta.columns:
        mine = (hlc, client_id, value)
        current = registers.get(name)
        if current is None or mine > current:
            if changed is None:
                changed = dict(registers)
            changed[name] = mine
    if delta.op is Op.INSERT and hlc > alive:
        return RowState(hlc, deleted, registers if changed is None else changed)
    return state if changed is None else RowState(alive, deleted, changed)


def join(left: RowState, right: RowState) -> RowState:
    """Merge two states of one row: each register keeps its greatest write."""
    columns = dict(left.columns)
    for name, register in right.columns.items():
        current = columns.get(name)
        if current is None or register > current:
            columns[name] = register
    return _normal(max(left.alive, right.alive), max(left.deleted, right.deleted), columns)


def state_of(delta: Delta) -> RowState:
    """Return one delta as a state of its row."""
    if delta.op is Op.DELETE:
        return RowState(0, delta.hlc, {})
    alive = delta.hlc if delta.op is Op.INSERT else 0
    registers = {name: (delta.hlc, delta.client_id, value) for name, value in delta.columns}
    return RowState(alive, 0, registers)


def fold(deltas: Iterable[Delta], start: RowState = EMPTY) -> RowState:
    """Merge many deltas of one row, in any order."""
    state = start
    for delta in deltas:
        state = apply(state, delta)
    return state


def as_read(state: RowState, *, delete_wins: bool) -> RowState:
    """Return a row as its table reads it; ``state`` itself if the two are equal.

    In a delete-wins table a row exists only while it is alive, and no update makes it so; otherwise
    it reads as its tombstone. Never merge into the result: what it leaves out may become visible
    again after an INSERT newer than the DELETE.
    """
    if delete_wins and not state.alive and state.columns:
        return RowState(0, state.deleted, {})
    return state


def view(state: RowState) -> dict[str, CanonicalJson] | None:
    """Return the row as readers see it, or None if there is no row."""
    if not state.alive and not state.columns:
        return None
    return {name: register[2] for name, register in state.columns.items()}


def _normal(alive: Stamp, deleted: Stamp, columns: Mapping[str, Register]) -> RowState:
    if deleted:
        columns = {name: register for name, register in columns.items() if register[0] > deleted}
    return RowState(alive if alive > deleted else 0, deleted, columns)


# --- forgotten tombstones -------------------------------------------------------------------------


def is_tombstone(state: RowState) -> bool:
    """Return whether nothing of a row is left but its deletion."""
    return bool(state.deleted) and not state.alive and not state.columns


def newer_than(state: RowState, horizon: Stamp) -> RowState:
    """Return the part of a row above the horizon of tombstones; ``state`` itself, if all is."""
    alive, deleted, columns = state
    kept = {name: register for name, register in columns.items() if register[0] > horizon}
    if len(kept) == len(columns) and not 0 < alive <= horizon:
        return state
    return RowState(alive if alive > horizon else 0, deleted, kept)


def may_undo_a_deletion(delta: Delta, before: RowState, horizon: Stamp) -> bool:
    """Get whether a delta is too old to merge, because a forgotten tombstone may have covered it.

    Args:
        delta: the delta, which would change the row.
        before: its row; empty if there is none.
        horizon: the horizon of its table's tombstones.
    """
    if delta.hlc > horizon:
        return False
    stamps = [hlc for hlc, _, _ in before.columns.values()]
    stamps += [at for at in (before.alive, before.deleted) if at]
    return not stamps or delta.hlc < min(stamps)


# --- a row state as deltas again ------------------------------------------------------------------


def deltas_of(
    table: str, row_id: str, state: RowState, *, nobody: str = GATEWAY_CLIENT
) -> list[Delta]:
    """Return deltas that merge to a row state, in stamp order; none for a row that never existed.

    Each write that won is in a delta with its own stamp and client. The ids are valid for these
    deltas, and differ from those of the deltas that the row was made of.

    Args:
        table: the row's table.
        row_id: its id.
        state: the row.
        nobody: the client id to use where the state has none.
    """
    writes: dict[tuple[Stamp, str], list[tuple[str, CanonicalJson]]] = {}
    for name in sorted(state.columns):
        hlc, client_id, value = state.columns[name]
        writes.setdefault((hlc, client_id), []).append((name, value))
    inserter = min((client for hlc, client in writes if hlc == state.alive), default=None)
    if state.alive and inserter is None:
        inserter = nobody
        writes[state.alive, nobody] = []
    made: list[Delta] = []
    if state.deleted:
        made.append(known_delta(Op.DELETE, table, row_id, nobody, state.deleted, ()))
    for (hlc, client_id), columns in sorted(writes.items()):
        op = Op.INSERT if (hlc, client_id) == (state.alive, inserter) else Op.UPDATE
        made += written(op, table, row_id, client_id, hlc, columns)
    return made


def written(
    op: Op,
    table: str,
    row_id: str,
    client_id: str,
    hlc: Stamp,
    columns: Iterable[tuple[str, CanonicalJson]],
) -> Iterator[Delta]:
    """Yield one client's writes at one stamp: a delta, and updates for what does not fit."""
    for carried in _cut(columns):
        yield known_delta(op, table, row_id, client_id, hlc, carried)
        op = Op.UPDATE


def _cut(columns: Iterable[tuple[str, CanonicalJson]]) -> Iterator[Columns]:
    """Split columns into groups that fit one delta each; at least one group, which may be empty."""
    carried: list[tuple[str, CanonicalJson]] = []
    size = 0
    for name, value in columns:
        size += len(value)
        if carried and (size > DELTA_BYTES_MAX or len(carried) >= COLUMNS_MAX):
            yield tuple(carried)
            carried, size = [], len(value)
        carried.append((name, value))
    yield tuple(carried)


# --- append marks ---------------------------------------------------------------------------------


REMEMBERED_MIN: Final = 64
"""The least number of deltas that a mark remembers, once there were as many. The whole last push of
its client is always remembered, however large it is."""
REMEMBERED_MAX: Final = 20_000
"""Deltas that a mark may remember: twice the largest push. Only deltas that all have the same stamp
can reach this number; the next of them is refused."""
_ID_DIGITS: Final = 12

Seen: TypeAlias = tuple[int, int]
"""A delta as a mark remembers it: its stamp, and 48 bits of its id."""


class AppendMark(NamedTuple):
    """The state of one client in one shard."""

    last: Stamp = 0
    recent: tuple[Seen, ...] = ()
    """The latest accepted deltas, in stamp order; all that have the stamp ``last`` are among them.
    """
    moves: int = 0
    """`lakesync.core.layout.Layout.moves` when the mark was written."""


class Admission(Enum):
    """What an append delta is, according to its client's mark."""

    NEW = "new"
    DUPLICATE = "duplicate"
    LATE = "late"


class Gate:
    """Decides on one client's deltas of one commit. It must be asked about them in stamp order."""

    def __init__(self, mark: AppendMark) -> None:
        self._last = mark.last
        self._known = set(mark.recent)
        self._fresh: set[str] = set()
        self._room = REMEMBERED_MAX - sum(1 for stamp, _ in mark.recent if stamp == mark.last)

    def knows(self, delta: Delta) -> bool:
        """Return whether a delta is a repeat."""
        # Within one push whole ids are compared; a mark has room for a part of each id.
        return delta.delta_id in self._fresh or seen(delta) in self._known

    def admit(self, delta: Delta) -> Admission:
        """Return whether a delta is new, a repeat, or older than its client's earlier pushes."""
        if self.knows(delta):
            return Admission.DUPLICATE
        if delta.hlc < self._last or (delta.hlc == self._last and len(self._fresh) >= self._room):
            return Admission.LATE
        self._fresh.add(delta.delta_id)
        return Admission.NEW


def seen(delta: Delta) -> Seen:
    """Return a delta as a mark remembers it."""
    return delta.hlc, int(delta.delta_id[:_ID_DIGITS], 16)


def advanced(mark: AppendMark, accepted: Sequence[Delta], since: Stamp) -> AppendMark:
    """Return the mark after new deltas, in stamp order, were accepted in one commit.

    Args:
        mark: the mark before.
        accepted: at least one delta.
        since: the oldest stamp of the push. Everything from there on is remembered, so that the
            whole push may be repeated after only some of its commits were acknowledged.
    """
    remembered = (*mark.recent, *map(seen, accepted))
    first = max(len(remembered) - REMEMBERED_MIN, 0)
    while first and remembered[first - 1][0] >= since:
        first -= 1
    return AppendMark(accepted[-1].hlc, remembered[first:], mark.moves)


def joined(marks: Iterable[AppendMark], moves: int) -> AppendMark:
    """Return the mark that combines the marks of several shards, after tables moved."""
    every = list(marks)
    remembered = tuple(sorted({delta for mark in every for delta in mark.recent}))
    return AppendMark(max((mark.last for mark in every), default=0), remembered, moves)
