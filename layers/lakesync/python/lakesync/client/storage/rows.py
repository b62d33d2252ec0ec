"""Rows as the client keeps them: the merged state, its base without what waits, the app's row.

Rules of this module
    1. ``state`` is ``base`` merged with the row's deltas in the outbox, whatever their status.
       ``base`` is everything that is known of the row apart from those. So what a quarantined or
       re-stamped edit did can be taken back: ``base`` and the remaining deltas are merged again.
    2. ``base`` is null while nothing of the row waits: it would equal ``state``.
    3. A row state and its row in the app's table are written in the same transaction.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from lakesync.core.clock import stamp
from lakesync.core.forgetting import is_tombstone
from lakesync.core.merge import EMPTY, RowState, fold
from lakesync.wire.records import decode_records
from lakesync.wire.row_state import decode_row_state, encode_row_state

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from lakesync.client.storage.app_table import AppTable
    from lakesync.client.storage.catalogue import Catalogue
    from lakesync.client.storage.cells import Cell
    from lakesync.core.clock import Stamp
    from lakesync.core.delta import Delta

LocalKey: TypeAlias = tuple[int, str]
"""``(table_id, row_id)``."""

SELECT_ROW: Final = (
    "SELECT state, base, waiting FROM _lakesync_rows WHERE table_id = ? AND row_id = ?"
)
UPSERT_ROW: Final = (
    "INSERT INTO _lakesync_rows (table_id, row_id, state, base, waiting, tombstone) "
    "VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (table_id, row_id) DO UPDATE SET "
    "state = excluded.state, base = excluded.base, waiting = excluded.waiting, "
    "tombstone = excluded.tombstone"
)
_DELETE_ROW: Final = "DELETE FROM _lakesync_rows WHERE table_id = ? AND row_id = ?"
TOMBSTONE_KEPT_DAYS: Final = 35
"""How long a client keeps a tombstone that it has pulled: as far back as a backup of DynamoDB
reaches, since a restored buffer gets back from its clients what it lost."""
_SELECT_MAX: Final = 512
"""Rows of one SELECT."""


class StoredRow(NamedTuple):
    """A row as it is stored."""

    state: bytes | None
    base: bytes | None
    waiting: int
    """Deltas of the row in the outbox, quarantined ones too."""


NOT_STORED: Final = StoredRow(None, None, 0)

RowToStore: TypeAlias = "tuple[AppTable, str, RowState, bytes | None, int]"
"""A row as it shall be stored: its table, id, state, base and count of waiting deltas."""


class Rows:
    """The rows of one file. Used within the caller's transaction."""

    def __init__(self, connection: sqlite3.Connection, catalogue: Catalogue) -> None:
        self._connection = connection
        self._catalogue = catalogue

    def load(self, table_id: int, row_ids: Sequence[str]) -> dict[str, StoredRow]:
        """Give the rows that are stored, by row id, with one statement for hundreds of them."""
        sql = "SELECT row_id, state, base, waiting FROM _lakesync_rows"
        return {row_id: StoredRow(*rest) for row_id, *rest in self._select(sql, table_id, row_ids)}

    def load_again(
        self, table_id: int, row_ids: Sequence[str], stored: dict[str, StoredRow]
    ) -> None:
        """Bring some of the loaded rows up to date."""
        for row_id in row_ids:
            stored.pop(row_id, None)
        stored.update(self.load(table_id, row_ids))

    def stale(self, table_id: int, row_ids: Sequence[str]) -> list[str]:
        """Give those of some rows that a re-sync has not read yet."""
        sql = "SELECT row_id FROM _lakesync_stale"
        return [row_id for (row_id,) in self._select(sql, table_id, row_ids)]

    def _select(self, sql: str, table_id: int, row_ids: Sequence[str]) -> Iterator[Any]:
        for part, marks in in_parts(row_ids):
            where = f"{sql} WHERE table_id = ? AND row_id IN ({marks})"
            yield from self._connection.execute(where, (table_id, *part)).fetchall()

    def stale_among(self, deltas: Iterable[Delta]) -> list[Delta]:
        """Give those of some deltas whose rows a re-sync has not read yet."""
        return [
            delta
            for table_id, rows in self.grouped(deltas).items()
            for row_id in self.stale(table_id, list(rows))
            for delta in rows[row_id]
        ]

    def grouped(self, deltas: Iterable[Delta]) -> dict[int, dict[str, list[Delta]]]:
        """Sort deltas by table and row."""
        tables: dict[int, dict[str, list[Delta]]] = defaultdict(lambda: defaultdict(list))
        for delta in deltas:
            tables[self._catalogue.known(delta.table).id][delta.row_id].append(delta)
        return tables

    def save(self, rows: Iterable[RowToStore]) -> None:
        """Write rows, the app's tables included; a row of which nothing is left is forgotten."""
        upserts: list[tuple[int, str, bytes, bytes | None, int, int | None]] = []
        forgotten: list[LocalKey] = []
        shown: dict[int, list[list[Cell]]] = defaultdict(list)
        hidden: dict[int, list[tuple[str]]] = defaultdict(list)
        for table, row_id, state, base, waiting in rows:
            if base is None and state == EMPTY:
                forgotten.append((table.id, row_id))
            else:
                mark = 0 if is_tombstone(state) else None
                upserts.append((table.id, row_id, encode_row_state(state), base, waiting, mark))
            cells = table.cells(row_id, state)
            if cells is None:
                hidden[table.id].append((row_id,))
            else:
                shown[table.id].append(cells)
        many = self._connection.executemany
        many(UPSERT_ROW, upserts)
        many(_DELETE_ROW, forgotten)
        for table_id, parameters in shown.items():
            table = self._catalogue.by_id(table_id)
            self._catalogue.keep_kinds(table)
            many(table.upsert, parameters)
        for table_id, row_ids in hidden.items():
            many(self._catalogue.by_id(table_id).delete, row_ids)

    def acknowledge(self, deltas: Iterable[Delta]) -> None:
        """Move deltas that left the outbox for the gateway into the bases of their rows.

        What the app sees does not change: the state had them all along.
        """
        updates: list[tuple[bytes | None, int, int, str]] = []
        for table_id, rows in self.grouped(deltas).items():
            stored = self.load(table_id, list(rows))
            for row_id, accepted in rows.items():
                row = stored.get(row_id, NOT_STORED)
                waiting = row.waiting - len(accepted)
                base = None
                if waiting > 0:
                    base = encode_row_state(fold(accepted, base_state(row)))
                updates.append((base, max(waiting, 0), table_id, row_id))
        self._connection.executemany(
            "UPDATE _lakesync_rows SET base = ?, waiting = ? WHERE table_id = ? AND row_id = ?",
            updates,
        )

    def refold(
        self, keys: Collection[LocalKey], bases: dict[LocalKey, RowState], *, taken: int = 0
    ) -> None:
        """Merge rows again out of their bases, stored or given, and their deltas in the outbox.

        ``taken`` says how many deltas of each the caller took out of the outbox: where no other
        waits it is not walked through.
        """
        before = {key: self.load(key[0], (key[1],)).get(key[1], NOT_STORED) for key in keys}
        waiting = self._waiting({key for key in keys if not taken or before[key].waiting > taken})
        kept = []
        for key in keys:
            table_id, row_id = key
            stored = before[key]
            base = bases.get(key, base_state(stored))
            deltas = waiting.get(key, ())
            kept.append(
                (
                    self._catalogue.by_id(table_id),
                    row_id,
                    fold(deltas, base),
                    encode_row_state(base) if deltas else None,
                    len(deltas),
                )
            )
        self.save(kept)

    def replace_bases(
        self, table_id: int, bases: Mapping[str, RowState], stored: dict[str, StoredRow]
    ) -> set[str]:
        """Give stored rows other bases; ``stored`` is brought up to date.

        Returns:
            The ids of the rows with waiting edits, which were merged again.
        """
        table = self._catalogue.by_id(table_id)
        waiting = {row_id for row_id in bases if stored[row_id].base is not None}
        keys = {(table_id, row_id): bases[row_id] for row_id in waiting}
        self.refold(keys.keys(), keys)
        changed = [
            row_id
            for row_id, state in bases.items()
            if row_id not in waiting and encode_row_state(state) != stored[row_id].state
        ]
        self.save((table, row_id, bases[row_id], None, 0) for row_id in changed)
        self.load_again(table_id, [*waiting, *changed], stored)
        return waiting

    def _waiting(self, keys: set[LocalKey]) -> dict[LocalKey, list[Delta]]:
        """Give what the outbox holds of some rows, by one walk: an index would cost each edit."""
        waiting: dict[LocalKey, list[Delta]] = defaultdict(list)
        if not keys:
            return waiting
        cursor = self._connection.execute("SELECT table_id, row_id, run FROM _lakesync_outbox")
        for table_id, row_id, run in cursor:
            if (table_id, row_id) in keys:
                waiting[table_id, row_id] += decode_records(run)
        return waiting

    def drop_tombstones(self, cursor: Stamp) -> None:
        """Drop tombstones that a pull to the end brought long ago, up to this cursor.

        An older delta of such a row comes no more: the log tells of none, since it would change
        nothing. A tombstone is kept only so that a buffer that is restored gets the deletion back.
        """
        until = cursor - stamp(TOMBSTONE_KEPT_DAYS * 86_400_000)
        self._connection.execute(
            "UPDATE _lakesync_rows SET tombstone = ? WHERE base IS NULL AND tombstone = 0",
            (cursor,),
        )
        self._connection.execute(
            "DELETE FROM _lakesync_rows WHERE base IS NULL AND tombstone BETWEEN 1 AND ?", (until,)
        )


def base_state(stored: StoredRow) -> RowState:
    """Give what is known of a row apart from its deltas in the outbox."""
    return decode_row_state((stored.state if stored.base is None else stored.base) or None)


def in_parts(row_ids: Sequence[str]) -> Iterator[tuple[Sequence[str], str]]:
    """Cut ids into parts of 1, 2, 4 … `_SELECT_MAX`, the last one padded with a repeated id.

    So SQLite meets ten statements in all, and keeps them prepared.
    """
    for start in range(0, len(row_ids), _SELECT_MAX):
        part = list(row_ids[start : start + _SELECT_MAX])
        size = 1 << (len(part) - 1).bit_length()
        part += part[-1:] * (size - len(part))
        yield part, ",".join("?" * size)
