"""Which deltas are too old to merge once their table's tombstones have been dropped.

A tombstone is the only evidence that an old delta lost. After it is forgotten, its table's horizon
decides instead: a stamp that every writer knows before the table's first tombstone is forgotten. A
table of which no tombstone was ever forgotten has no horizon:

    a delta at or below the horizon that is older than everything its row holds is not merged

Why this is enough: a forgotten tombstone is at or below the horizon. Any later write to its row id
is above the horizon, or not below what the row holds by then. So every such write is above the
tombstone, and everything that the tombstone covered stays covered.
Laws R5-R6: ``docs/spec/retention.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakesync.core.merge import RowState

if TYPE_CHECKING:
    from lakesync.core.clock import Stamp
    from lakesync.core.delta import Delta


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
