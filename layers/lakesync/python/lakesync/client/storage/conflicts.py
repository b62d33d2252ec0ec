"""Conflicts: pairs of writes that did not know each other, kept until the app resolves them.

Rules of this module
    1. A conflict is written in the transaction of the page that shows it, and leaves in the one
       that resolves it.
    2. It keeps what this client may read: when rules hide the row, or omit the column, everything
       that others wrote leaves it, and this client's own value stays.
    3. Values are stored as they were sent, and columns by their places: so a conflict follows the
       column's declared type and its spelling.

Law K27: ``docs/spec/client.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lakesync.client.storage.cell_values import kind_of, read_value
from lakesync.core.names import folded

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection, Iterable

    from lakesync.client.storage.app_catalogue import Catalogue
    from lakesync.client.storage.stored_rows import LocalKey
    from lakesync.core.clock import Stamp
    from lakesync.core.delta import CanonicalJson
    from lakesync.core.visibility import Omitted

CONFLICTS_MAX: Final = 10_000
"""Conflicts that one file keeps; of more the oldest are dropped, and counted."""

_COLUMNS: Final = (
    "id, table_id, row_id, place, own, own_hlc, other, other_hlc, other_client, base, won, "
    "deleted, hidden"
)
_SELECT: Final = (
    "SELECT conflict.id, tables.name, row_id, columns.name, columns.declared, own, other, "
    "other_client, deleted, base, own_hlc, other_hlc, won, hidden "
    "FROM _lakesync_conflicts AS conflict "
    "JOIN _lakesync_tables AS tables ON tables.id = conflict.table_id "
    "JOIN _lakesync_columns AS columns "
    "ON columns.table_id = conflict.table_id AND columns.place = conflict.place"
)
_KEEP: Final = (
    f"INSERT INTO _lakesync_conflicts ({_COLUMNS}) "  # noqa: S608 - ours
    "VALUES ((SELECT coalesce(max(last), 0) + 1 FROM _lakesync_conflict_counts), "
    "?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0) "
    # One own write has one conflict, with the latest write of the others.
    "ON CONFLICT (table_id, row_id, place, own_hlc) DO UPDATE SET other = excluded.other, "
    "other_hlc = excluded.other_hlc, other_client = excluded.other_client, won = excluded.won, "
    "deleted = excluded.deleted, hidden = 0 RETURNING id"
)
_DROP: Final = (
    "DELETE FROM _lakesync_conflicts WHERE id <= "
    "(SELECT id FROM _lakesync_conflicts ORDER BY id DESC LIMIT 1 OFFSET ?)"
)
_COUNT: Final = (
    "INSERT INTO _lakesync_conflict_counts VALUES (1, ?1, ?2) "
    "ON CONFLICT (id) DO UPDATE SET dropped = dropped + ?1, last = max(last, ?2)"
)
_HIDE_ANY: Final = (
    "UPDATE _lakesync_conflicts SET other = NULL, other_hlc = 0, other_client = '', base = NULL, "
    "hidden = 1 WHERE"
)
_HIDE: Final = f"{_HIDE_ANY} table_id = ? AND"
_HIDE_STALE: Final = (
    f"{_HIDE_ANY} (table_id, row_id) IN (SELECT table_id, row_id FROM _lakesync_stale)"  # noqa: S608 - ours
)


@dataclass(frozen=True, slots=True)
class LostWrite:
    """Two writes of one value that did not know each other, of which one lost.

    See `Client.on_conflict`, `Client.conflicts` and `Client.resolve`. Values are as `Client.get`
    returns them.
    """

    table: str
    row_id: str
    column: str
    own: Any
    """What this client wrote; None if it deleted the row."""
    other: Any
    """What another client wrote; None if it deleted the row."""
    other_client: str
    """Who wrote that, or deleted the row; empty where it is not known."""
    deleted: bool = False
    """The write that won is a deletion of the row."""
    base: Any = None
    """The value before both, as this client last read it; None if it had read none."""
    won: bool = False
    """This client's write won: it replaced a value that this client had never read."""
    own_stamp: Stamp = 0
    other_stamp: Stamp = 0
    hidden: bool = False
    """Rules have hidden the row, or omitted the column, since: ``other``, its author and ``base``
    are gone from the device.
    """
    id: int = 0
    """By which `Client.resolve` knows it."""


class Clash(NamedTuple):
    """A conflict as it is stored; `None` where there is no value."""

    table_id: int
    row_id: str
    column: str
    own: CanonicalJson | None
    own_hlc: Stamp
    other: CanonicalJson | None
    other_hlc: Stamp
    other_client: str
    base: CanonicalJson | None
    won: bool
    deleted: bool


class Conflicts:
    """The conflicts of one file. Used within the caller's transaction."""

    def __init__(self, connection: sqlite3.Connection, catalogue: Catalogue) -> None:
        self._connection = connection
        self._catalogue = catalogue

    def keep(self, clashes: Iterable[Clash]) -> tuple[LostWrite, ...]:
        """Write conflicts that became known; returns them as the app is reported of them."""
        ids = [self._keep(clash) for clash in clashes]
        if not ids:
            return ()
        reported = tuple(one for each in ids for one in self._select("WHERE conflict.id = ?", each))
        dropped = self._connection.execute(_DROP, (CONFLICTS_MAX,)).rowcount
        self._connection.execute(_COUNT, (dropped, 0))
        return reported

    def _keep(self, clash: Clash) -> int:
        place = list(self._catalogue.by_id(clash.table_id).columns).index(clash.column)
        row = (*clash[:2], place, *clash[3:])
        ((number,),) = self._connection.execute(_KEEP, row).fetchall()
        self._connection.execute(_COUNT, (0, number))
        return int(number)

    def clear(self) -> None:
        """Drop all, and the count of those dropped before: they are another gateway's."""
        self._connection.execute("DELETE FROM _lakesync_conflicts")
        self._connection.execute("UPDATE _lakesync_conflict_counts SET dropped = 0")

    def listed(self) -> list[LostWrite]:
        return self._select("ORDER BY conflict.id")

    def one(self, conflict_id: int) -> LostWrite | None:
        return next(iter(self._select("WHERE conflict.id = ?", conflict_id)), None)

    def _select(self, which: str, *parameters: object) -> list[LostWrite]:
        return [_read(*row) for row in self._connection.execute(f"{_SELECT} {which}", parameters)]

    def remove(self, conflict_id: int) -> None:
        self._connection.execute("DELETE FROM _lakesync_conflicts WHERE id = ?", (conflict_id,))

    def taken_back(self, key: LocalKey, own: Stamp) -> None:
        """Remove what is of an edit that was taken back: it is not there to win or to lose."""
        self._connection.execute(
            "DELETE FROM _lakesync_conflicts WHERE table_id = ? AND row_id = ? AND own_hlc = ?",
            (*key, own),
        )

    def stamped_again(self, edits: Iterable[tuple[LocalKey, tuple[Stamp, Stamp]]]) -> None:
        """Follow edits of rows from their old stamps to their new ones."""
        # A new stamp may be another edit's old one: so all of them move at once.
        self._connection.executemany(
            "UPDATE _lakesync_conflicts SET own_hlc = ? "
            "WHERE table_id = ? AND row_id = ? AND own_hlc = ?",
            [(-new, *key, old) for key, (old, new) in edits],
        )
        self._connection.execute(
            "UPDATE OR REPLACE _lakesync_conflicts SET own_hlc = -own_hlc WHERE own_hlc < 0"
        )

    def hide_rows(self, table_id: int, row_ids: Collection[str]) -> None:
        self._connection.executemany(
            f"{_HIDE} row_id = ?", [(table_id, row_id) for row_id in row_ids]
        )

    def hide_stale(self) -> None:
        """Do the same for rows that a re-read did not bring."""
        self._connection.execute(_HIDE_STALE)

    def omit(self, table_id: int, omitted: Omitted) -> None:
        places = [
            place
            for place, name in enumerate(self._catalogue.by_id(table_id).columns)
            if folded(name) in omitted
        ]
        self._connection.executemany(f"{_HIDE} place = ?", [(table_id, place) for place in places])


def _read(
    number: int, table: str, row_id: str, column: str, declared: str | None, own: bytes | None,
    other: bytes | None, other_client: str, deleted: int, base: bytes | None, own_hlc: int,
    other_hlc: int, won: int, hidden: int,
) -> LostWrite:  # fmt: skip
    kind = kind_of(declared or "")

    def value(raw: bytes | None) -> Any:
        return None if raw is None else read_value(kind, raw)

    return LostWrite(
        table, row_id, column, value(own), value(other), other_client, bool(deleted), value(base),
        bool(won), own_hlc, other_hlc, bool(hidden), number,
    )  # fmt: skip
