"""A row state as deltas again: fewest that merge to it, whatever deltas it was made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakesync.core.delta import GATEWAY_CLIENT, Op, checked_delta

if TYPE_CHECKING:
    from lakesync.core.clock import Stamp
    from lakesync.core.delta import Delta
    from lakesync.core.merge import RowState
    from lakesync.core.values import CanonicalJson


def deltas_of(
    table: str, row_id: str, state: RowState, *, nobody: str = GATEWAY_CLIENT
) -> list[Delta]:
    """Give deltas that merge to a row state, in stamp order; none for a row that never was.

    Each write that won is in a delta with its own stamp and client. The deltas' ids are true of
    them, and not those of the deltas that the row was made of.

    Args:
        table: the row's table.
        row_id: its id.
        state: the row.
        nobody: the client that is named where the state names none.
    """
    writes: dict[tuple[Stamp, str], list[tuple[str, CanonicalJson]]] = {}
    for name in sorted(state.columns):
        hlc, client_id, value = state.columns[name]
        writes.setdefault((hlc, client_id), []).append((name, value))
    inserter = min((client for hlc, client in writes if hlc == state.alive), default=None)
    if state.alive and inserter is None:
        inserter = nobody
        writes[state.alive, nobody] = []
    found = [
        checked_delta(
            Op.INSERT if (hlc, client) == (state.alive, inserter) else Op.UPDATE,
            table, row_id, client, hlc, tuple(columns),
        )
        for (hlc, client), columns in sorted(writes.items())
    ]  # fmt: skip
    if state.deleted:
        found.insert(0, checked_delta(Op.DELETE, table, row_id, nobody, state.deleted, ()))
    return found


def as_one(table: str, row_id: str, state: RowState) -> list[Delta]:
    """Give a row as one insert, for clients that keep no stamps and go by the order of deltas."""
    writes = [(hlc, client_id) for hlc, client_id, _ in state.columns.values()]
    hlc, client_id = max([*writes, (state.alive, GATEWAY_CLIENT)])
    columns = tuple((name, held[2]) for name, held in state.columns.items())
    return [checked_delta(Op.INSERT, table, row_id, client_id, hlc, columns)]
