"""A row state as deltas again: the fewest that merge to it, whatever deltas it was made of.

None is larger than a pushed delta may be, so any reader that enforces that limit accepts them. A
row that was accepted in several deltas is sent in several. Laws M8-M9: ``docs/spec/merge.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakesync.core.delta import COLUMNS_MAX, DELTA_BYTES_MAX, GATEWAY_CLIENT, Op, known_delta

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lakesync.core.clock import Stamp
    from lakesync.core.delta import Columns, Delta
    from lakesync.core.merge import RowState
    from lakesync.core.values import CanonicalJson


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
