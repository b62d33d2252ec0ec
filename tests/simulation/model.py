"""What rows must be, in the most obvious way; nothing of `lakesync.core.merge` is used here."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lakesync.core.delta import Delta

Key: TypeAlias = tuple[str, str]
"""``(table, row_id)``."""

Edit: TypeAlias = tuple[str, str, str, str, tuple[tuple[str, bytes], ...]]
"""``(client, table, row, op, columns)``: an edit, whatever its stamp."""

Write: TypeAlias = tuple[int, bytes, bytes]
"""A write of one column: stamp, client id, value. The greatest wins."""


class Row(NamedTuple):
    """All that the writes to one row amount to."""

    alive: int
    """The latest insert, unless a delete came later."""
    deleted: int
    columns: dict[str, Write]
    """The winning writes that are later than the delete."""

    @property
    def exists(self) -> bool:
        return bool(self.alive or self.columns)

    @property
    def values(self) -> dict[str, bytes] | None:
        """The row as readers see it; None if there is none."""
        return {name: write[2] for name, write in self.columns.items()} if self.exists else None


NOTHING = Row(0, 0, {})
FINAL = "_final"
"""What the names of tables end in that are declared so that deletes win."""


def deletes_win(table: str) -> bool:
    """Return whether no update brings a deleted row of a table back."""
    return table.endswith(FINAL)


def seen(table: str, row: Row) -> Row:
    """Get what readers make of a row: where deletes win, nothing, unless it was inserted since."""
    return row._replace(columns={}) if deletes_win(table) and not row.alive else row


def edit_of(delta: Delta) -> Edit:
    """Return a delta without its stamp."""
    return delta.client_id, delta.table, delta.row_id, delta.op.name, delta.columns


def row_of(deltas: Iterable[Delta]) -> Row:
    """Look at every write there ever was, and pick."""
    deltas = list(deltas)
    deleted = max([delta.hlc for delta in deltas if delta.op.name == "DELETE"], default=0)
    inserts = [delta.hlc for delta in deltas if delta.op.name == "INSERT" and delta.hlc > deleted]
    columns: dict[str, Write] = {}
    for delta in deltas:
        if delta.hlc <= deleted:
            continue
        client = delta.client_id.encode()
        for name, value in delta.columns:
            write = (delta.hlc, client, value)
            if name not in columns or write > columns[name]:
                columns[name] = write
    return Row(max(inserts, default=0), deleted, columns)


def stored_row(alive: int, deleted: int, columns: Mapping[str, tuple[int, str, bytes]]) -> Row:
    """Return a row state of the product in the words of this module, to compare."""
    return Row(
        alive, deleted, {name: (hlc, client.encode(), value)
                         for name, (hlc, client, value) in columns.items()},
    )  # fmt: skip


def at_least(row: Row, least: Row) -> bool:
    """Return whether nothing of ``least`` is missing from ``row``: it was overwritten at most."""
    if row.deleted < least.deleted or (row.alive < least.alive and row.deleted < least.alive):
        return False
    for name, write in least.columns.items():
        last = row.columns.get(name)
        if last is None:
            if write[0] > row.deleted:
                return False
        elif last < write:
            return False
    return True
