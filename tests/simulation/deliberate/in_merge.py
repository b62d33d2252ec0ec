"""Faults in how a row's deltas become one row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lakesync.client.storage import edits
from lakesync.core import merge
from lakesync.core.delta import Op
from lakesync.core.merge import RowState
from lakesync.log import push_parts
from tests.simulation.deliberate.registry import Replaced, deliberate

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.core.delta import Delta

real = merge.apply


def everywhere(apply: Callable[[RowState, Delta], RowState]) -> list[Replaced]:
    """Replace the merge in client and gateway alike."""
    owners: list[Any] = [merge, push_parts, edits]
    return [(owner, "apply", apply) for owner in owners]


@deliberate("a row is one register: the later delta wins whole")
def merge_by_row_stamp() -> list[Replaced]:
    def apply(state: RowState, delta: Delta) -> RowState:
        latest = max([one[0] for one in state.columns.values()], default=0)
        return state if delta.hlc <= max(latest, state.alive) else real(state, delta)

    return everywhere(apply)


@deliberate("of two writes with one stamp, the one that came last wins")
def ties_by_arrival() -> list[Replaced]:
    def apply(state: RowState, delta: Delta) -> RowState:
        columns = {
            name: one
            for name, one in state.columns.items()
            if not (one[0] == delta.hlc and (name, one[2]) not in delta.columns
                    and name in dict(delta.columns))
        }  # fmt: skip
        if len(columns) == len(state.columns):
            return real(state, delta)
        return real(RowState(state.alive, state.deleted, columns), delta)

    return everywhere(apply)


@deliberate("a delete hides only what is older than the row's last insert")
def deletes_forget_updates() -> list[Replaced]:
    def apply(state: RowState, delta: Delta) -> RowState:
        if delta.op is Op.DELETE and delta.hlc > state.deleted:
            return RowState(0, delta.hlc, {})  # a later update that came first is lost
        return real(state, delta)

    return everywhere(apply)


@deliberate("an update brings back all of a deleted row")
def updates_resurrect() -> list[Replaced]:
    def apply(state: RowState, delta: Delta) -> RowState:
        if delta.op is Op.DELETE:
            return RowState(0, max(state.deleted, delta.hlc), state.columns)
        return real(state, delta)

    return everywhere(apply)


@deliberate("a duplicate is committed and logged again")
def duplicates_are_logged() -> list[Replaced]:
    def apply(state: RowState, delta: Delta) -> RowState:
        after = real(state, delta)
        return RowState(*after) if after is state else after

    return [(push_parts, "apply", apply)]
