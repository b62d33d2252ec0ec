"""Merge: how a row's deltas become one row, in any order, any grouping, any repetition.

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
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from lakesync.core.delta import Op

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lakesync.core.clock import Stamp
    from lakesync.core.delta import Delta
    from lakesync.core.values import CanonicalJson

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
