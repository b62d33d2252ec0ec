"""Rows that the gateway refused, or that could not be read, with the reason."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from lakesync.connectors.storage import Storage, digest
from lakesync.core.values import parse
from lakesync.errors import AdapterRefused

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.connectors.state import PollState
    from lakesync.core.delta import Delta
    from lakesync.errors import LakeSyncError

CONNECTOR_DEAD_LETTERS_MAX: Final = 1_000
"""Dead letters that one connector may have; with more, the fault is not in single rows."""
_FOLDER: Final = "letters"


def counts_first(state: PollState, save: Callable[[PollState], object]) -> Callable[[], None]:
    """Return a function that records that there are dead letters, before the first is written.

    If the process dies after that, the next one looks for them. So they need not be listed for each
    page.
    """

    def begins() -> None:
        if not state.dead_letters:
            state.dead_letters = 1
            save(state)

    return begins


class DeadLetters:
    """The dead letters of one connector: one object for each row, written before its cursor.

    Args:
        storage: the connector's.
        begins: called before each one is written; see `counts_first`.
    """

    def __init__(self, storage: Storage, begins: Callable[[], object] = int) -> None:
        self._storage = storage
        self._begins = begins
        self.changed = False

    @cached_property
    def _names(self) -> set[str]:
        return set(self._storage.names(_FOLDER))

    @property
    def names(self) -> frozenset[str]:
        """What those are called that there are: digests of their tables and ids."""
        return frozenset(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def add(self, table: str, row_id: str, error: LakeSyncError, delta: Delta | None) -> None:
        """Store a row with its reason, in place of its former dead letter.

        Raises:
            AdapterRefused: there are `CONNECTOR_DEAD_LETTERS_MAX` already.
        """
        name = digest(table, row_id)
        if name not in self._names and len(self._names) >= CONNECTOR_DEAD_LETTERS_MAX:
            raise AdapterRefused(
                f"{CONNECTOR_DEAD_LETTERS_MAX} rows were refused already, the last because "
                f"{error.message}: mend what refuses them, then reset the connector"
            )
        letter: dict[str, Any] = {
            "table": table,
            "rowId": row_id,
            "code": error.code,
            "reason": error.message,
        }
        if delta is not None:
            columns = {name: parse(raw) for name, raw in delta.columns}
            letter |= {"op": delta.op.name, "hlc": str(delta.hlc), "columns": columns}
        self._begins()
        self._storage.write(letter, _FOLDER, name)
        self._names.add(name)
        self.changed = True

    def take_back(self, table: str, row_id: str) -> None:
        """Remove the dead letter of a row, because it was accepted since."""
        name = digest(table, row_id)
        if name in self._names:
            self._storage.remove(_FOLDER, name)
            self._names.discard(name)
            self.changed = True

    def first(self, count: int) -> list[dict[str, Any]]:
        """Return some of them."""
        read = (self._storage.read(_FOLDER, name) for name in sorted(self._names)[:count])
        return [letter for letter in read if letter is not None]
