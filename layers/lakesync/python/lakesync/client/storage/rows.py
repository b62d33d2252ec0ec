"""Rows as the client keeps them: the merged state, its base without what waits, the app's row.

Rules of this module
    1. ``state`` is ``base`` merged with the row's deltas in the outbox, whatever their status.
       ``base`` is everything else that is known of the row. So the effect of a quarantined or
       re-stamped edit can be undone: ``base`` and the remaining deltas are merged again.
    2. ``base`` is null while nothing of the row waits: it would equal ``state``.
    3. A row state and its row in the app's table are written in the same transaction, except for an
       insert of a new row; see `lakesync.client.storage.unfolded`.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from lakesync.client.storage.app_objects import suspended
from lakesync.client.storage.stored_state import States
from lakesync.core.clock import stamp
from lakesync.core.forgetting import is_tombstone
from lakesync.core.merge import EMPTY, RowState, as_read, fold, view
from lakesync.wire.records import decode_records

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from lakesync.client.storage.app_table import AppTable
    from lakesync.client.storage.catalogue import Catalogue
    from lakesync.client.storage.cells import Cell
    from lakesync.core.clock import Stamp
    from lakesync.core.delta import Delta
    from lakesync.core.values import CanonicalJson

LocalKey: TypeAlias = tuple[int, str]
"""``(table_id, row_id)``."""

UPSERT_ROW: Final = (
    "INSERT INTO _lakesync_rows (table_id, row_id, state, base, waiting, tombstone) "
    "VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (table_id, row_id) DO UPDATE SET "
    "state = excluded.state, base = excluded.base, waiting = excluded.waiting, "
    "tombstone = excluded.tombstone"
)
SELECT_ROW: Final = (
    "SELECT state, base, waiting FROM _lakesync_rows WHERE table_id = ? AND row_id = ?"
)
INSERT_EDITED: Final = (
    "INSERT INTO _lakesync_rows (table_id, row_id, state, base, waiting) VALUES (?, ?, ?, x'', 1) "
    "ON CONFLICT (table_id, row_id) DO NOTHING"
)
"""A row of which one edit is all that is known."""
TOMBSTONE_KEPT_DAYS: Final = 35
"""How long a client keeps a tombstone that it has pulled: as far back as a backup of DynamoDB
reaches, since a restored buffer recovers lost data from its clients.
"""
_SELECT_MAX: Final = 512
"""Rows of one SELECT."""


class StoredRow(NamedTuple):
    """A stored row."""

    state: RowState
    base: RowState | None
    waiting: int
    """Deltas of the row in the outbox, quarantined ones too."""

    @property
    def known(self) -> RowState:
        """The row's state without its deltas in the outbox."""
        return self.state if self.base is None else self.base


NOT_STORED: Final = StoredRow(EMPTY, None, 0)

RowToStore: TypeAlias = "tuple[AppTable, str, RowState, RowState | None, int]"
"""A row as it shall be stored: its table, id, state, base and count of waiting deltas."""


class Rows:
    """The rows of one file. Used within the caller's transaction."""

    def __init__(self, connection: sqlite3.Connection, catalogue: Catalogue) -> None:
        self.connection = connection
        self._catalogue = catalogue
        self.states = States(connection)

    def one(self, key: LocalKey) -> StoredRow:
        """Return a row; `NOT_STORED` if there is none."""
        row = self.connection.execute(SELECT_ROW, key).fetchone()
        return self.stored(key[0], *row) if row else NOT_STORED

    def stored(self, table_id: int, state: bytes, base: bytes | None, waiting: int) -> StoredRow:
        """Return a row of its columns."""
        places = self._catalogue.by_id(table_id).places
        merged = self.states.decode(places, state)
        return StoredRow(
            merged, None if base is None else self.states.decode(places, base), waiting
        )

    def load(self, table_id: int, row_ids: Collection[str]) -> dict[str, StoredRow]:
        """Return those of some rows that are stored."""
        rows = self.select("row_id, state, base, waiting FROM _lakesync_rows", table_id, row_ids)
        return {row_id: self.stored(table_id, *rest) for row_id, *rest in rows}

    def select(self, what: str, table_id: int, row_ids: Collection[str]) -> Iterator[Any]:
        """Select of a table with ``table_id`` and ``row_id``, hundreds of rows by one statement.

        The ids are selected in parts of 1, 2, 4 … `_SELECT_MAX`, the last one padded with a
        repeated id. So SQLite sees ten different statements in all, and keeps them prepared.
        """
        ids = list(row_ids)
        for start in range(0, len(ids), _SELECT_MAX):
            part = ids[start : start + _SELECT_MAX]
            size = 1 << (len(part) - 1).bit_length()
            part += part[-1:] * (size - len(part))
            marks = ",".join("?" * size)
            sql = f"SELECT {what} WHERE table_id = ? AND row_id IN ({marks})"
            yield from self.connection.execute(sql, (table_id, *part)).fetchall()

    def grouped(self, deltas: Iterable[Delta]) -> dict[int, dict[str, list[Delta]]]:
        """Sort deltas by table and row."""
        tables: dict[int, dict[str, list[Delta]]] = defaultdict(lambda: defaultdict(list))
        for delta in deltas:
            tables[self._catalogue.known(delta.table).id][delta.row_id].append(delta)
        return tables

    def save(self, rows: Iterable[RowToStore]) -> None:
        """Write rows, including the app's tables; a row of which nothing is left is removed."""
        upserts: list[tuple[int, str, bytes, bytes | None, int, int | None]] = []
        forgotten: list[LocalKey] = []
        shown: list[tuple[AppTable, str, RowState]] = []
        for table, row_id, state, base, waiting in rows:
            if base is None and state == EMPTY:
                forgotten.append((table.id, row_id))
            else:
                mark = 0 if is_tombstone(state) else None
                encoded = self.states.encode(table.places, state)
                below = None if base is None else self.states.encode(table.places, base)
                upserts.append((table.id, row_id, encoded, below, waiting, mark))
            shown.append((table, row_id, state))
        many = self.connection.executemany
        many(UPSERT_ROW, upserts)
        many("DELETE FROM _lakesync_rows WHERE table_id = ? AND row_id = ?", forgotten)
        self.show_states(shown)

    def show_states(self, rows: Iterable[tuple[AppTable, str, RowState]]) -> None:
        """Write the app's rows as their states are; those that do not exist are deleted."""
        shown: dict[int, list[tuple[str, Mapping[str, CanonicalJson]]]] = defaultdict(list)
        hidden: dict[int, list[tuple[str]]] = defaultdict(list)
        for table, row_id, state in rows:
            values = view(table.as_read(state))
            if values is None:
                hidden[table.id].append((row_id,))
            else:
                shown[table.id].append((row_id, values))
        for table_id, seen in shown.items():
            table = self._catalogue.by_id(table_id)
            self.show(table, table.rows(seen))
        for table_id, row_ids in hidden.items():
            table = self._catalogue.by_id(table_id)
            self._catalogue.note_change(table)
            with suspended(self.connection, table):
                self.connection.executemany(table.delete, row_ids)

    def of_table(self, table_id: int) -> Iterator[tuple[str, StoredRow]]:
        """Return all rows of a table, one by one; write none of them meanwhile."""
        sql = "SELECT row_id, state, base, waiting FROM _lakesync_rows WHERE table_id = ?"
        every = self.connection.execute(sql, (table_id,))
        return ((row_id, self.stored(table_id, *rest)) for row_id, *rest in every)

    def read_anew(self, table: AppTable) -> None:
        """Write the rows of the app's table that its changed schema reads otherwise.

        Cost: all rows of the table are read; it happens once, when the schema first arrives.
        """
        rows = [
            (table, row_id, *row)
            for row_id, row in self.of_table(table.id)
            if as_read(row.state, delete_wins=True) is not row.state
        ]
        self.save(rows)

    def show(self, table: AppTable, cells: Iterable[Sequence[Cell]]) -> None:
        """Write rows of the app's table, whose cells were composed just now."""
        self._catalogue.note_change(table)
        with suspended(self.connection, table):
            self.connection.executemany(table.upsert, cells)

    def acknowledge(
        self, table_id: int, accepted: Mapping[str, Sequence[Delta]], stored: dict[str, StoredRow]
    ) -> None:
        """Move deltas that left the outbox for the gateway into the bases of their rows.

        What the app sees does not change: the state had them all along.
        """
        updates: list[tuple[bytes | None, int, int, str]] = []
        places = self._catalogue.by_id(table_id).places
        for row_id, deltas in accepted.items():
            row = stored.get(row_id, NOT_STORED)
            waiting = max(row.waiting - len(deltas), 0)
            known = fold(deltas, row.known) if waiting else None
            base = None if known is None else self.states.encode(places, known)
            updates.append((base, waiting, table_id, row_id))
        self.connection.executemany(
            "UPDATE _lakesync_rows SET base = ?, waiting = ? WHERE table_id = ? AND row_id = ?",
            updates,
        )

    def refold(self, bases: Mapping[LocalKey, RowState | None], *, taken: int = 0) -> None:
        """Merge rows again: their bases, new or (None) as stored, and their deltas in the outbox.

        ``taken`` deltas of each have just left the outbox: if no other waits, it is not read.
        """
        rows = {key: self.one(key) for key in bases}
        waiting = self._waiting(
            {key for key, row in rows.items() if row.waiting > taken or row is NOT_STORED}
        )
        merged: list[RowToStore] = []
        for key, new in bases.items():
            base = rows[key].known if new is None else new
            deltas = waiting.get(key, ())
            table, waits = self._catalogue.by_id(key[0]), base if deltas else None
            merged.append((table, key[1], fold(deltas, base), waits, len(deltas)))
        self.save(merged)

    def _waiting(self, keys: Collection[LocalKey]) -> dict[LocalKey, list[Delta]]:
        """Return the outbox entries of some rows, by one scan: an index would cost each edit."""
        waiting: dict[LocalKey, list[Delta]] = defaultdict(list)
        if keys:
            outbox = self.connection.execute("SELECT table_id, row_id, run FROM _lakesync_outbox")
            for table_id, row_id, run in outbox:
                if (table_id, row_id) in keys:
                    waiting[table_id, row_id] += decode_records(run)
        return waiting

    def drop_tombstones(self, cursor: Stamp) -> None:
        """Drop tombstones that a pull to the end brought long ago, up to this cursor.

        No older delta of such a row can arrive, since it would change nothing. A tombstone is kept
        only so that a restored buffer can recover the deletion.
        """
        until = cursor - stamp(TOMBSTONE_KEPT_DAYS * 86_400_000)
        self.connection.execute(
            "UPDATE _lakesync_rows SET tombstone = ? WHERE base IS NULL AND tombstone = 0",
            (cursor,),
        )
        self.connection.execute(
            "DELETE FROM _lakesync_rows WHERE base IS NULL AND tombstone BETWEEN 1 AND ?", (until,)
        )
