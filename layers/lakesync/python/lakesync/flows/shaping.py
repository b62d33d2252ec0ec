"""Applies a flow's filter and map to the deltas of a source.

A row that no longer passes the filter is deleted at the destination; one that was never there
leaves no trace. Laws Y1, Y2, Y8: ``docs/spec/flows.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lakesync.core.column_map import map_delta
from lakesync.core.delta import Op, known_delta
from lakesync.core.merge import view
from lakesync.core.visibility import rule_columns
from lakesync.flows.remapping import states_of
from lakesync.wire.row_state import decode_row_state

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lakesync.adapters.database import DatabaseAdapter
    from lakesync.core.delta import Delta
    from lakesync.core.destinations import Destination
    from lakesync.core.merge import RowState
    from lakesync.flows.remapping import Remapping, There
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
    """The rows of a gateway: `lakesync.flows.remapping.There`."""

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
    """The rows of a database: `lakesync.flows.remapping.There`."""

    def __init__(self, database: DatabaseAdapter) -> None:
        self._database = database

    def states(self, table: str, row_ids: Sequence[str]) -> Mapping[str, RowState]:
        """Return the states of some rows."""
        return self._database.rows_of(table, row_ids).unwrap() if row_ids else {}

    def has_rows(self, table: str) -> bool:
        """Return whether a table has any rows, deleted ones too."""
        return bool(self._database.rows_after(table, "", 1).unwrap().rows)
