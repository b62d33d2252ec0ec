"""Which columns are left out of the rows that one client is sent: one decision, by claims alone.

Rows have no say in it, so what a client is sent of a table has the same columns for as long as its
scope stays. Names are compared as the gateway takes them: those that differ in case alone are one.
Law V12: ``docs/spec/visibility.md``. Why: ``docs/adr/0025-omitted-columns.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakesync.core.delta import Op, known_delta
from lakesync.core.names import folded
from lakesync.core.token_claims import passes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lakesync.core.delta import Delta
    from lakesync.core.merge import RowState
    from lakesync.core.rules import Omission
    from lakesync.core.token_claims import Claims

Omitted = frozenset[str]
"""Columns that are left out, by their folded names."""


class Omissions:
    """What is left out for one client. Immutable; may be kept.

    Args:
        omit: the omissions of the rules in force.
        claims: the client's.
    """

    def __init__(self, omit: Iterable[Omission], claims: Claims) -> None:
        self._omit = [
            (frozenset(map(folded, each.tables)), frozenset(map(folded, each.columns)))
            for each in omit
            if not (each.unless and all(passes(item, claims) for item in each.unless))
        ]
        self._of: dict[str, Omitted] = {}

    def __bool__(self) -> bool:
        """Tell whether anything is left out of any table."""
        return bool(self._omit)

    def of(self, table: str) -> Omitted:
        """Give what is left out of a table; of `OTHERS`, what is left out of every one."""
        omitted = self._of.get(table)
        if omitted is None:
            name = folded(table)
            chosen = [columns for tables, columns in self._omit if not tables or name in tables]
            omitted = self._of[table] = frozenset().union(*chosen)
        return omitted


def delta_without(delta: Delta, omitted: Omitted) -> Delta | None:
    """Give what a client is sent of a delta: itself if it has none of the columns.

    What is left of another is a delta with its stamp and client, and an id of its own. None if
    nothing is left: an update without columns changes nothing.
    """
    kept = tuple([column for column in delta.columns if folded(column[0]) not in omitted])
    if len(kept) == len(delta.columns):
        return delta
    if not kept and delta.op is Op.UPDATE:
        return None
    return known_delta(*delta[:5], kept)


def state_without(state: RowState, omitted: Omitted) -> RowState:
    """Give what a client may know of a row: itself if it has none of the columns."""
    kept = {name: each for name, each in state.columns.items() if folded(name) not in omitted}
    return state if len(kept) == len(state.columns) else state._replace(columns=kept)
