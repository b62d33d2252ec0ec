"""Rows that another declaration of a flow brought, with other columns: put anew as they come again.

A flow that is declared anew, or told to bring everything again, finds rows that it brought by
another map. Merged, what that map let through would stay. So until a table is read whole once, each
row that is brought is compared with what is there.

Rules of this module
    1. Whether a table is clean is noted in the flow's storage, which is cleared with its
       cursors: right away where nothing was brought yet, else once all of it was read.
    2. In a database nobody else writes these rows: a row is deleted, then put anew right above it.
       In a gateway others do: what the flow wrote and does not bring any more becomes null there.
    3. A source that may leave columns out (its log of changes) says nothing by what it lacks: of
       such a row those columns go that the map of now cannot have made.

Law Y6: ``docs/spec/flows.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from lakesync.core.delta import Op, known_delta
from lakesync.core.merge import EMPTY, apply, view
from lakesync.core.values import NULL

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lakesync.connectors.storage import Storage
    from lakesync.core.column_map import ColumnMap
    from lakesync.core.delta import Delta
    from lakesync.core.destinations import Destination
    from lakesync.core.merge import RowState
    from lakesync.core.values import CanonicalJson

_FOLDER: Final = "mapped"
TIMES_MAX: Final = 64
"""How often a row may be put anew that did not change at its source: each time a stamp above."""


class There(Protocol):
    """The rows of where a flow goes."""

    def states(self, table: str, row_ids: Sequence[str]) -> Mapping[str, RowState]:
        """Return the states of some rows of a table; those that are not there are left out."""
        ...

    def has_rows(self, table: str) -> bool:
        """Return whether a table has, or had, any rows."""
        ...


def states_of(there: There, deltas: Sequence[Delta]) -> dict[tuple[str, str], RowState]:
    """Return the states of the rows of deltas, by table and row id; one read for each table."""
    by_table: dict[str, dict[str, None]] = {}
    for one in deltas:
        by_table.setdefault(one.table, {})[one.row_id] = None
    return {
        (table, row_id): state
        for table, row_ids in by_table.items()
        for row_id, state in there.states(table, list(row_ids)).items()
    }


class Remapping:
    """Corrects what is brought of tables that are not clean; one for each poll.

    Args:
        to: where the flow goes, and as what.
        there: the rows that are there.
        storage: the flow's.
        is_shared: whether others may write these rows as well.
        is_partial: whether the source may leave columns out.
    """

    def __init__(
        self,
        to: Destination,
        there: There,
        storage: Storage,
        *,
        is_shared: bool,
        is_partial: bool,
    ) -> None:
        self._to = to
        self._there = there
        self._storage = storage
        self._is_shared = is_shared
        self._is_partial = is_partial
        self._clean: dict[str, bool] = {}

    def corrected(self, deltas: Sequence[Delta]) -> list[Delta]:
        """Return deltas with what cleans their rows, in their order. Safe to repeat."""
        doubted = [one for one in deltas if not self._is_clean(one.table)]
        if not doubted:
            return list(deltas)
        states = {(one.table, one.row_id): EMPTY for one in doubted}
        states |= states_of(self._there, doubted)
        corrected: list[Delta] = []
        for one in deltas:
            row = (one.table, one.row_id)
            given = [one]
            if row in states:
                given = self._put(one, states[row])
                for each in given:
                    states[row] = apply(states[row], each)
            corrected += given
        return corrected

    def read_whole(self, table: str) -> None:
        """Note that all of a table was brought as it is declared. Safe to repeat."""
        if self._clean.get(table) is False:
            self._note(table)

    def _is_clean(self, table: str) -> bool:
        if table not in self._clean:
            self._clean[table] = bool(self._storage.read(_FOLDER, table))
            if not self._clean[table] and not self._there.has_rows(table):
                self._note(table)
        return self._clean[table]

    def _note(self, table: str) -> None:
        self._storage.write(True, _FOLDER, table)
        self._clean[table] = True

    def _put(self, delta: Delta, there: RowState) -> list[Delta]:
        """Return a row's delta, or what cleans the row.

        The new row comes first, then what takes the old one away: who dies between leaves both.
        """
        if delta.op is not Op.INSERT:
            return [delta]
        stale, is_lost = self._stale(delta, there), self._is_lost(delta, there)
        if not stale and not is_lost:
            return [delta]
        if self._is_shared:
            stamps = [delta.hlc, *(there.columns[name][0] for name in stale)]
            stamps += [there.deleted] if is_lost else []
        else:
            stamps = [there.alive, there.deleted, *(one[0] for one in there.columns.values())]
        above = max(delta.hlc - 1, *stamps)
        if above > delta.hlc + TIMES_MAX:
            return [delta]  # what is there is newer: that comes as well
        if not self._is_shared:
            return [_at(delta, Op.INSERT, above + 1), _at(delta, Op.DELETE, above, {})]
        brought = dict(delta.columns)
        columns = {name: brought.get(name, NULL) for name in sorted(stale)}
        columns = brought | columns if is_lost else columns
        return [delta, _at(delta, Op.INSERT if is_lost else Op.UPDATE, above + 1, columns)]

    def _is_lost(self, delta: Delta, there: RowState) -> bool:
        """Return whether a row is covered by a deletion that was the flow's.

        Its filter was another then, or the row was put anew before.
        """
        if delta.hlc > there.deleted or (self._is_partial and view(there) is None):
            return False
        return view(there) is None or any(name not in there.columns for name, _ in delta.columns)

    def _stale(self, delta: Delta, there: RowState) -> set[str]:
        """Return those columns that are there and would stay otherwise than they are brought."""
        brought, column_map = dict(delta.columns), self._to.map_of(delta.table)
        stale = set()
        for name, (hlc, client_id, value) in there.columns.items():
            if client_id != delta.client_id:
                continue
            if name not in brought:
                is_left = self._is_partial and _makes(column_map, name)
                if not is_left and not (self._is_shared and value == NULL):
                    stale.add(name)
            elif brought[name] != value and delta.hlc <= hlc <= delta.hlc + TIMES_MAX:
                stale.add(name)
        return stale


def _makes(column_map: ColumnMap, name: str) -> bool:
    """Return whether a column of a name may come of a map."""
    is_named = name in column_map.constant or name in column_map.rename.values()
    return is_named or column_map.target(name) == name


def _at(
    delta: Delta, op: Op, hlc: int, columns: Mapping[str, CanonicalJson] | None = None
) -> Delta:
    """Return another delta of the same row; with the same columns unless some are named."""
    named = delta.columns if columns is None else tuple(columns.items())
    return known_delta(op, delta.table, delta.row_id, delta.client_id, hlc, named)
