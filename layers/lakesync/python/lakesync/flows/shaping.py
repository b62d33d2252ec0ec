"""What a flow makes of what is read: the rows that its filter lets pass, mapped.

A row that the filter does not let pass any more is deleted where it goes; one that was never there
leaves no trace. Laws Y1, Y2, Y8: ``docs/spec/flows.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from lakesync.core.column_map import map_delta
from lakesync.core.delta import Op, known_delta
from lakesync.core.merge import view
from lakesync.core.visibility import rule_columns
from lakesync.wire.row_state import decode_row_state

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lakesync.adapters.database import DatabaseAdapter
    from lakesync.core.delta import Delta
    from lakesync.core.destinations import Destination
    from lakesync.ports import Rows

ROWS_LOOKED_UP_MAX: Final = 250
"""Rows of the gateway that are read at a time: nearly always a MB at the most."""


class There(Protocol):
    """Tells which rows are there, where a flow goes."""

    def __call__(self, table: str, row_ids: Sequence[str]) -> set[str]:
        """Give those of some rows that are there."""
        ...


class Shaping:
    """Decides about deltas of whole rows and maps them; one for each poll.

    Args:
        to: which tables, which rows, as what.
        there: tells which rows are there already.
    """

    def __init__(self, to: Destination, there: There) -> None:
        self._to = to
        self._there = there
        self._viewer = to.viewer()
        self._columns: dict[str, frozenset[str] | None] = {}

    def __call__(self, deltas: Sequence[Delta]) -> list[Delta]:
        """Give what goes on of some deltas, in their order. Safe to repeat."""
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
        return shaped

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
        """Give those rows of deltas that are there: a deletion of any other is none."""
        by_table: dict[str, dict[str, None]] = {}
        for one in hidden:
            by_table.setdefault(one.table, {})[one.row_id] = None
        return {
            (table, row_id)
            for table, row_ids in by_table.items()
            for row_id in self._there(table, list(row_ids))
        }


def there_in_gateway(rows: Rows, gateway: str) -> There:
    """Give what tells which rows a gateway has."""

    def there(table: str, row_ids: Sequence[str]) -> set[str]:
        present: set[str] = set()
        for start in range(0, len(row_ids), ROWS_LOOKED_UP_MAX):
            some = [(table, row_id) for row_id in row_ids[start : start + ROWS_LOOKED_UP_MAX]]
            present |= {
                row_id
                for (_, row_id), stored in rows.rows(gateway, some).items()
                if view(decode_row_state(stored.state)) is not None
            }
        return present

    return there


def there_in_database(database: DatabaseAdapter) -> There:
    """Give what tells which rows a database has."""

    def there(table: str, row_ids: Sequence[str]) -> set[str]:
        if not row_ids:
            return set()
        states = database.rows_of(table, row_ids).unwrap()
        return {row_id for row_id, state in states.items() if view(state) is not None}

    return there
