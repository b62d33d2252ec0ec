"""`Editor`: what an app does with its rows, through a client or through one transaction of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

from lakesync.client.storage.catalogue import checked_name, checked_text
from lakesync.client.storage.failures import query_result
from lakesync.core.delta import Op, check_row_id
from lakesync.core.merge import view
from lakesync.core.values import parse
from lakesync.wire.row_state import decode_row_state

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lakesync.client.storage.queries import Answer
    from lakesync.core.delta import Delta
    from lakesync.errors import LakeSyncError
    from lakesync.result import Result

_NOTHING: Final[Mapping[str, object]] = {}
_STATE: Final = (
    "SELECT state FROM _lakesync_rows JOIN _lakesync_tables ON id = table_id "
    "WHERE name = ? AND row_id = ?"
)


class Editor(ABC):
    """What a client and its transaction both offer: edits, and reading."""

    def insert(
        self, table: str, row_id: str, columns: Mapping[str, object] = _NOTHING
    ) -> Result[Delta, LakeSyncError]:
        """Make a row exist, with these columns; one that exists keeps its other columns.

        Returns:
            The delta; or ``VALIDATION_ERROR``, ``DELTA_TOO_LARGE``, and nothing was written.
        """
        return self._edit(Op.INSERT, table, row_id, columns)

    def update(
        self, table: str, row_id: str, columns: Mapping[str, object]
    ) -> Result[Delta, LakeSyncError]:
        """Write columns of a row, whether or not this client has seen it.

        The row may exist where this client has not pulled from yet, so its absence here proves
        nothing: the columns are written, and if the row exists nowhere, they make it exist.

        Returns:
            As `insert`. An update without columns is a ``VALIDATION_ERROR``.
        """
        return self._edit(Op.UPDATE, table, row_id, columns)

    def delete(self, table: str, row_id: str) -> Result[Delta, LakeSyncError]:
        """Delete a row, whether or not this client has seen it; as `update`."""
        return self._edit(Op.DELETE, table, row_id, _NOTHING)

    def get(self, table: str, row_id: str) -> Result[dict[str, Any] | None, LakeSyncError]:
        """Give a row's columns as they were written (true is true, a list a list), or None."""

        def state() -> dict[str, Any] | None:
            key = checked_name(table, "table"), check_row_id(checked_text(row_id, "rowId"))
            _, rows = self._read(_STATE, key)
            columns = view(decode_row_state(rows[0][0])) if rows else None  # type: ignore[arg-type]
            return columns and {name: parse(raw) for name, raw in columns.items()}

        return self._attempt(state)

    def query(
        self, sql: str, parameters: Sequence[object] | Mapping[str, object] = ()
    ) -> Result[list[dict[str, Any]], LakeSyncError]:
        """Run one statement that only reads; each row is a dictionary.

        Every table has its row ids in ``_row_id``. A second column of one name is ``name:1``, as
        in SQLite's own subqueries. Booleans are stored as 1 and 0, and read as True and False in
        an answer's column that is named as one that has held nothing else. Objects and lists read
        as JSON text.

        Returns:
            The rows; or ``VALIDATION_ERROR`` if the statement would do anything but read, or
            SQLite refuses it.
        """

        def rows() -> list[dict[str, Any]]:
            names, answer = self._read(sql, parameters)
            distinct = _distinct(names)
            # As dict(zip(...)) for each row, a quarter faster.
            given: list[dict[str, Any]] = list(map(dict, map(zip, repeat(distinct), answer)))
            booleans = self._boolean_names()
            for name, shown in zip(names, distinct, strict=True):
                for row in given if name.lower() in booleans else ():
                    value = row[shown]
                    if value.__class__ is int and 0 <= value <= 1:
                        row[shown] = value == 1
            return given

        return query_result(rows)

    @abstractmethod
    def _edit(
        self, op: Op, table: str, row_id: str, columns: Mapping[str, object]
    ) -> Result[Delta, LakeSyncError]: ...

    @abstractmethod
    def _read(self, sql: str, parameters: object) -> Answer: ...

    @abstractmethod
    def _boolean_names(self) -> frozenset[str]: ...

    @abstractmethod
    def _attempt(self, operation: Callable[[], Any]) -> Result[Any, LakeSyncError]: ...


def _distinct(names: list[str]) -> list[str]:
    """Give each column a name of its own: the second ``a`` is ``a:1``."""
    if len(set(names)) == len(names):
        return names
    distinct: list[str] = []
    for name in names:
        number, candidate = 0, name
        while candidate in distinct or (number and candidate in names):
            number += 1
            candidate = f"{name}:{number}"
        distinct.append(candidate)
    return distinct
