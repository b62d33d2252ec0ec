"""Which columns are left out of the rows that one client is sent: decided by claims alone.

The decision does not depend on rows, so the rows of a table that a client is sent have the same
columns while its scope stays the same. Names that differ only in case are the same name, as
everywhere in a gateway.
Law V12: ``docs/spec/visibility.md``. The reasons: ``docs/adr/0025-omitted-columns.md``.
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
    """The columns that are left out for one client. Immutable; may be kept.

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
        """Return whether anything is left out of any table."""
        return bool(self._omit)

    def of(self, table: str) -> Omitted:
        """Return the columns left out of a table; for `OTHERS`, those left out of every table."""
        omitted = self._of.get(table)
        if omitted is None:
            name = folded(table)
            chosen = [columns for tables, columns in self._omit if not tables or name in tables]
            omitted = self._of[table] = frozenset().union(*chosen)
        return omitted


def delta_without(delta: Delta, omitted: Omitted) -> Delta | None:
    """Return a delta as a client is sent it: unchanged if it has none of the columns.

    Otherwise the result is a delta with the same stamp and client, and its own id. None if nothing
    is left: an update without columns changes nothing.
    """
    kept = tuple([column for column in delta.columns if folded(column[0]) not in omitted])
    if len(kept) == len(delta.columns):
        return delta
    if not kept and delta.op is Op.UPDATE:
        return None
    return known_delta(*delta[:5], kept)


def state_without(state: RowState, omitted: Omitted) -> RowState:
    """Return a row as a client may know it: unchanged if it has none of the columns."""
    kept = {name: each for name, each in state.columns.items() if folded(name) not in omitted}
    return state if len(kept) == len(state.columns) else state._replace(columns=kept)
