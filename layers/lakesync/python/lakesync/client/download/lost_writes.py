"""Own writes that lost a merge to a write of another client which did not know them.

The other client's write reached the gateway before this client's did, or arrived while this
client's was still waiting: neither writer knew of the other's write, and the later stamp won. A
value that another client overwrites after it could have read it is no conflict, and is not
reported.

The two cases are distinguished by the order of deltas in a page, which is that of their commits: an
own write that the page shows before the winner was there first. Law K27: ``docs/spec/client.md``.

All of this is in memory: if the app ends before a page shows the loss of an accepted write, the
loss is not reported.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from lakesync.core.delta import Op

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from lakesync.client.storage.app_table import AppTable
    from lakesync.client.storage.rows import StoredRow
    from lakesync.core.clock import Stamp
    from lakesync.core.delta import Delta
    from lakesync.core.merge import Register, RowState

ROWS_NOTED_MAX: Final = 10_000
"""Rows with writes that were accepted since the last pull; of more the oldest are not compared."""
RowName: TypeAlias = tuple[str, str]
"""Table and row id."""


@dataclass(frozen=True, slots=True)
class LostWrite:
    """A value of this client that another client's write replaced; see `Client.on_conflict`."""

    table: str
    row_id: str
    column: str
    own: Any
    """The value that lost."""
    other: Any
    """The value that won; None if the row was deleted."""
    other_client: str
    """Who wrote that, or deleted the row."""
    deleted: bool = False
    """The row was deleted."""


class _Noted(NamedTuple):
    """The columns of a row that were accepted, by the stamps of the writes."""

    columns: dict[str, Stamp]
    accepted: Stamp
    """The commit by which all of them were."""


class LostWrites:
    """The lost writes of one file. Used within the caller's transaction."""

    def __init__(self, client_id: str) -> None:
        self._me = client_id
        self._noted: OrderedDict[RowName, _Noted] = OrderedDict()
        self._lost: list[LostWrite] = []

    def accepted(self, deltas: Iterable[Delta], by: Stamp) -> None:
        """Note own writes that a receipt accepts, in commits up to ``by``."""
        for delta in deltas:
            key = (delta.table, delta.row_id)
            columns = self._noted.pop(key, _Noted({}, 0)).columns
            columns |= {name: delta.hlc for name, _ in delta.columns}
            self._noted[key] = _Noted(columns, by)
        while len(self._noted) > ROWS_NOTED_MAX:
            self._noted.popitem(last=False)

    def read_until(self, cursor: Stamp) -> None:
        """Forget edits that were accepted up to a commit: the log was read that far."""
        for key in [key for key, noted in self._noted.items() if noted.accepted <= cursor]:
            del self._noted[key]

    def compare(
        self,
        row: RowName,
        stored: StoredRow,
        states: tuple[RowState, RowState],
        deltas: Sequence[Delta],
        table: AppTable,
    ) -> None:
        """Note what a row lost through a page's deltas, given its states before and after.

        Where deletes win, it loses all of it by its delete, however new.
        """
        noted = self._noted.get(row)
        if stored.base is None and noted is None:
            return
        before, after = states
        known = before if stored.base is None else stored.known
        at = {(delta.hlc, delta.client_id): place for place, delta in enumerate(deltas)}
        is_gone = table.delete_wins and not after.alive
        deleters = {delta.hlc: delta for delta in deltas if delta.op is Op.DELETE}
        for name, register in self._own(before, known, noted.columns if noted else {}):
            stamp, _, value = register
            winner = after.columns.get(name, register)
            is_deleted = is_gone or after.deleted >= stamp
            deleter = deleters.get(after.deleted) if is_deleted else None
            won = (winner[0], winner[1]) if deleter is None else (deleter.hlc, deleter.client_id)
            was_first = at.get((stamp, self._me), len(deltas)) < at.get(won, -1)
            if won[1] == self._me or was_first or (deleter is None and winner[2] == value):
                continue
            own, other = (table.value(name, of) for of in (value, winner[2]))
            is_deleted = deleter is not None
            lost = LostWrite(*row, name, own, None if is_deleted else other, won[1], is_deleted)
            self._lost.append(lost)

    def _own(
        self, before: RowState, known: RowState, accepted: Mapping[str, Stamp]
    ) -> Iterator[tuple[str, Register]]:
        """Yield the columns of a row that show this client's writes which no page has shown."""
        for name, register in before.columns.items():
            if register[1] == self._me and register[0] > before.deleted:
                waits = known.columns.get(name) != register
                if waits or accepted.get(name) == register[0]:
                    yield name, register

    def take(self) -> tuple[LostWrite, ...]:
        """Return the notes since the last call."""
        lost, self._lost = tuple(self._lost), []
        return lost
