"""Which deltas are too old to merge once their table's tombstones have been dropped.

Only a tombstone shows that an old delta lost. Once it is gone, a delta is
judged by its table's horizon instead, a stamp that every writer knows before the first tombstone of
the table goes; a table of which none ever went has no horizon:

    a delta at or below the horizon that is older than everything its row holds is not merged

Why that is enough: a tombstone that goes lies at or below the horizon. Whatever a row under its id
is made of afterwards lies above the horizon, or not below what the row holds by then; so all of it
lies above the tombstone, and what the tombstone had covered stays covered.
Laws R5-R6: ``docs/spec/retention.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakesync.core.merge import RowState

if TYPE_CHECKING:
    from lakesync.core.clock import Stamp
    from lakesync.core.delta import Delta


def is_tombstone(state: RowState) -> bool:
    """Tell whether nothing is left of a row but that it was deleted."""
    return bool(state.deleted) and not state.alive and not state.columns


def newer_than(state: RowState, horizon: Stamp) -> RowState:
    """Give what of a row lies above the horizon of tombstones; ``state`` itself, if all of it."""
    alive, deleted, columns = state
    kept = {name: register for name, register in columns.items() if register[0] > horizon}
    if len(kept) == len(columns) and not 0 < alive <= horizon:
        return state
    return RowState(alive if alive > horizon else 0, deleted, kept)


def may_undo_a_deletion(delta: Delta, before: RowState, horizon: Stamp) -> bool:
    """Tell whether a delta is too old to be merged, as a tombstone may have gone that covered it.

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
