"""What a row must be, computed in the most obvious way: keep every write, decide at the end.

It shares no code with `lakesync.core.merge`, keeps no normal form and needs no order. Whatever
merges rows (the core, a destination, Spark) is compared with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakesync.core.delta import Op

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lakesync.core.delta import Delta


def expected_row(deltas: Iterable[Delta], *, delete_wins: bool = False) -> dict[str, bytes] | None:
    """Return the visible columns of one row after all its deltas, or None if there is no row.

    Where deletes win, there is one only if an insert is newer than every delete.
    """
    deltas = list(deltas)
    deleted = max((delta.hlc for delta in deltas if delta.op is Op.DELETE), default=0)
    alive = max((delta.hlc for delta in deltas if delta.op is Op.INSERT), default=0)
    writes: dict[str, list[tuple[int, bytes, bytes]]] = {}
    for delta in deltas:
        for name, value in delta.columns:
            writes.setdefault(name, []).append((delta.hlc, delta.client_id.encode(), value))
    visible = {}
    for name, candidates in writes.items():
        stamp, _client, value = max(candidates)
        if stamp > deleted:
            visible[name] = value
    return visible if alive > deleted or (visible and not delete_wins) else None
