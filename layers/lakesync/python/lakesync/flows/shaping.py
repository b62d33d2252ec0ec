"""Applies a flow's filter and map to the deltas of a source.

A row that no longer passes the filter is deleted at the destination; one that was never there
leaves no trace.

Cleans rows that a flow delivered by another map, when it delivers them again. A flow that is
declared again, or delivers everything again, finds rows that it delivered by a former map. A merge
would keep columns that only the former map delivered. So until a table was read whole once, each
row is compared with the one at the destination.

Rules of remapping
    1. A note in the flow's storage says that a table is clean. It is written at once if nothing was
       delivered yet, else once the whole table was read, and is removed together with the flow's
       cursors.
    2. In a database nobody else writes these rows: a row is deleted, and written again with a stamp
       just above. In a gateway others may write them: columns that the flow wrote and no longer
       delivers become null.
    3. From a source that may omit columns (a log of changes), a missing column means nothing: only
       columns that the current map cannot produce are removed.

Laws Y1, Y2, Y6, Y8: ``docs/spec/flows.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from lakesync.core.column_map import map_delta
from lakesync.core.delta import Op, known_delta
from lakesync.core.merge import EMPTY, apply, view
from lakesync.core.values import NULL
from lakesync.core.visibility import rule_columns
from lakesync.wire.row_state import decode_row_state

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lakesync.adapters.database import DatabaseAdapter
    from lakesync.connectors.port import Storage
    from lakesync.core.column_map import ColumnMap
    from lakesync.core.delta import Delta
    from lakesync.core.destinations import Destination
    from lakesync.core.merge import RowState
    from lakesync.core.values import CanonicalJson
    from lakesync.ports import Rows

ROWS_LOOKED_UP_MAX: Final = 250
"""Rows of the gateway that are read at a time: nearly always a MB at the most."""


class Shaping:
    """Decides about deltas of whole rows and maps them; one for each poll.

    Args:
        to: the tables, the filter and the map.
        there: the rows at the destination.
        remapping: cleans rows that a former declaration delivered.
    """

    def __init__(self, to: Destination, there: There, remapping: Remapping) -> None:
        self._to = to
        self._there = there
        self._remapping = remapping
        self._viewer = to.viewer()
        self._columns: dict[str, frozenset[str] | None] = {}

    def __call__(self, deltas: Sequence[Delta]) -> list[Delta]:
        """Return the deltas for the destination, in their order. Safe to repeat."""
        wanted = [one for one in deltas if not self._to.tables or one.table in self._to.tables]
        passes = [self._passes(one) for one in wanted]
        present = self._present([one for one, shown in zip(wanted, passes, strict=True)
                                 if not shown])  # fmt: skip
        shaped: list[Delta] = []
        for one, shown in zip(wanted, passes, strict=True):
            row = (one.table, one.row_id)
            if shown:
                present.add(row)
                shaped.append(map_delta(self._to.map_of(one.table), one))
            elif row in present:
                present.discard(row)
                shaped.append(
                    known_delta(Op.DELETE, one.table, one.row_id, one.client_id, one.hlc, ())
                )
        return self._remapping.corrected(shaped)

    def _passes(self, delta: Delta) -> bool:
        if delta.op is Op.DELETE:
            return False
        table = delta.table
        if table not in self._columns:
            is_filtered = self._to.is_filtered(table)
            self._columns[table] = self._to.rows.columns(table) if is_filtered else None
        columns = self._columns[table]
        return columns is None or self._viewer.sees(table, rule_columns(delta.columns, columns))

    def _present(self, hidden: Sequence[Delta]) -> set[tuple[str, str]]:
        """Return the rows of deltas that exist at the destination; others need no deletion."""
        states = states_of(self._there, hidden)
        return {row for row, state in states.items() if view(state) is not None}


class InGateway:
    """The rows of a gateway: `lakesync.flows.shaping.There`."""

    def __init__(self, rows: Rows, gateway: str) -> None:
        self._rows = rows
        self._gateway = gateway

    def states(self, table: str, row_ids: Sequence[str]) -> dict[str, RowState]:
        """Return the states of some rows."""
        states: dict[str, RowState] = {}
        for start in range(0, len(row_ids), ROWS_LOOKED_UP_MAX):
            some = [(table, row_id) for row_id in row_ids[start : start + ROWS_LOOKED_UP_MAX]]
            for (_, row_id), stored in self._rows.rows(self._gateway, some).items():
                states[row_id] = decode_row_state(stored.state)
        return states

    def has_rows(self, table: str) -> bool:
        """Return whether a table has any rows, deleted ones too."""
        first = self._rows.scan_rows(self._gateway, table, "", 1)
        return bool(first.rows or first.place)


class InDatabase:
    """The rows of a database: `lakesync.flows.shaping.There`."""

    def __init__(self, database: DatabaseAdapter) -> None:
        self._database = database

    def states(self, table: str, row_ids: Sequence[str]) -> Mapping[str, RowState]:
        """Return the states of some rows."""
        return self._database.rows_of(table, row_ids).unwrap() if row_ids else {}

    def has_rows(self, table: str) -> bool:
        """Return whether a table has any rows, deleted ones too."""
        return bool(self._database.rows_after(table, "", 1).unwrap().rows)


# --- remapping ------------------------------------------------------------------------------------


_FOLDER: Final = "mapped"
TIMES_MAX: Final = 64
"""How often a row that did not change at its source may be rewritten: each time its stamp is one
higher."""


class There(Protocol):
    """The rows at a flow's destination."""

    def states(self, table: str, row_ids: Sequence[str]) -> Mapping[str, RowState]:
        """Return the states of those rows of a table that exist."""
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
    """Corrects the deltas of tables that are not clean; one object for each poll.

    Args:
        to: the destination, with the tables and the map.
        there: the rows at the destination.
        storage: the flow's.
        is_shared: whether others may write these rows as well.
        is_partial: whether the source may omit columns.
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
        """Return deltas, with those that clean their rows, in their order. Safe to repeat."""
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
        """Note that a whole table was delivered by the current declaration. Safe to repeat."""
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
        """Return a row's delta, or the deltas that clean the row.

        The new row comes first, then the deletion of the old one: after a crash in between, both
        exist.
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
            return [delta]  # the stored row is newer: its change will be delivered too
        if not self._is_shared:
            return [_at(delta, Op.INSERT, above + 1), _at(delta, Op.DELETE, above, {})]
        brought = dict(delta.columns)
        columns = {name: brought.get(name, NULL) for name in sorted(stale)}
        columns = brought | columns if is_lost else columns
        return [delta, _at(delta, Op.INSERT if is_lost else Op.UPDATE, above + 1, columns)]

    def _is_lost(self, delta: Delta, there: RowState) -> bool:
        """Return whether a deletion by the flow covers a row.

        The flow's filter was another then, or the row was rewritten earlier.
        """
        if delta.hlc > there.deleted or (self._is_partial and view(there) is None):
            return False
        return view(there) is None or any(name not in there.columns for name, _ in delta.columns)

    def _stale(self, delta: Delta, there: RowState) -> set[str]:
        """Return the columns of a row that a merge would keep, but the flow does not deliver."""
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
    """Return whether a map can produce a column of this name."""
    is_named = name in column_map.constant or name in column_map.rename.values()
    return is_named or column_map.target(name) == name


def _at(
    delta: Delta, op: Op, hlc: int, columns: Mapping[str, CanonicalJson] | None = None
) -> Delta:
    """Return another delta of the same row, with the same columns unless others are passed."""
    named = delta.columns if columns is None else tuple(columns.items())
    return known_delta(op, delta.table, delta.row_id, delta.client_id, hlc, named)
