"""Rows as the client keeps them: the merged state, its base without what waits, the app's row.

Rules of this module
    1. ``state`` is ``base`` merged with the row's deltas in the outbox, whatever their status.
       ``base`` is everything else that is known of the row. So the effect of a quarantined or
       re-stamped edit can be undone: ``base`` and the remaining deltas are merged again.
    2. ``base`` is null while nothing of the row waits: it would equal ``state``.
    3. A row state and its row in the app's table are written in the same transaction, except for an
       insert of a new row, which is *unfolded*: the outbox already holds everything that the row's
       state would say, in the same commit, and writing the state too would cost the edit as many
       pages again. So the states of hundreds of rows are written together, and before anything
       reads states.
    4. A row that has an entry in the outbox and no state is one insert, which is all that is known
       of it: its state is that insert, and its base is empty.
    5. Every transaction begins with `Unfolded.fold`, and finds a state for every row. Only a single
       edit begins without, and folds unless it is another such insert.
    6. Entries up to the stamp ``folded`` have states for their rows. It limits how much of the
       outbox is searched, and advances once in `UNFOLDED_EDITS_MAX` edits.
    7. What is remembered of unfolded edits was left by this connection. It is forgotten after a
       rollback, and when another process wrote: then the outbox is read instead.

Most rows of a first sync are one insert each, of rows that the file does not have. Those are not
read first, and are written by columns, by the thousand: the values of one column are parsed at
once, as one JSON text. The result is the same as that of `Rows.save` for the same deltas.
"""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias

from lakesync.client.storage.app_table import suspended
from lakesync.client.storage.cell_values import BIT, FORMS, cell
from lakesync.client.storage.stored_state import States
from lakesync.core.clock import stamp
from lakesync.core.merge import EMPTY, RowState, as_read, fold, is_tombstone, view
from lakesync.wire.records import decode_records

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from lakesync.client.storage.app_catalogue import Catalogue
    from lakesync.client.storage.app_table import AppTable
    from lakesync.client.storage.cell_values import Cell
    from lakesync.core.clock import Stamp
    from lakesync.core.delta import CanonicalJson, Delta

    class InsertTemplate(Protocol):
        """The common part of inserts of the same columns of a table."""

        def state(self, hlc: Stamp, values: Sequence[CanonicalJson]) -> bytes:
            """Return the stored state of a row of which only one such insert is known."""
            ...

    Waiting: TypeAlias = tuple[int, str, InsertTemplate, Stamp, Sequence[CanonicalJson]]

# --- rows -----------------------------------------------------------------------------------------


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
        places = self._catalogue.by_id(table_id).places
        merged = self.states.decode(places, state)
        return StoredRow(
            merged, None if base is None else self.states.decode(places, base), waiting
        )

    def load(self, table_id: int, row_ids: Collection[str]) -> dict[str, StoredRow]:
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
        """Write the rows again, all read once, that the table's changed schema reads otherwise."""
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
        """Move accepted deltas into the bases of their rows; what the app sees stays the same."""
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


# --- edits that are only in the outbox ------------------------------------------------------------


UNFOLDED_EDITS_MAX: Final = 256
"""Edits that may wait for the states of their rows to be written: some milliseconds of work."""
_UNFOLDED: Final = (
    "SELECT table_id, row_id, run FROM _lakesync_outbox AS entry "
    "WHERE hlc > (SELECT folded FROM _lakesync_sync) AND NOT EXISTS (SELECT 1 FROM _lakesync_rows "
    "AS row WHERE row.table_id = entry.table_id AND row.row_id = entry.row_id)"
)
_HOW_FAR: Final = (
    "SELECT folded, (SELECT count(*) FROM _lakesync_outbox WHERE hlc > folded) FROM _lakesync_sync"
)
_MOVE: Final = (
    "UPDATE _lakesync_sync SET folded = coalesce((SELECT max(hlc) FROM _lakesync_outbox), 0) "
    "RETURNING folded"
)


def unfolded(connection: sqlite3.Connection) -> Iterator[tuple[LocalKey, Delta]]:
    """Yield the inserts whose rows have no state, as a connection sees a file now."""
    for table_id, row_id, run in connection.execute(_UNFOLDED):
        (delta,) = decode_records(run)
        yield (table_id, row_id), delta


class Unfolded:
    """The unfolded edits of one file. Used within the caller's transaction."""

    def __init__(
        self, connection: sqlite3.Connection, catalogue: Catalogue, states: States
    ) -> None:
        self._connection = connection
        self._catalogue = catalogue
        self._states = states
        self._waiting: list[Waiting] = []
        self._states_read: list[tuple[int, str, bytes]] = []
        """Of what this connection did not write, or does not remember."""
        self._is_known = False
        self._folded: Stamp = 0
        self._edits = 0
        """Since ``folded`` was moved."""

    def reload(self) -> None:
        self._is_known = False

    def may_take(self, hlc: Stamp) -> bool:
        """Return whether an insert with a stamp may be left unfolded."""
        if not self._is_known:
            self.fold()
        return hlc > self._folded

    def take(
        self,
        table_id: int,
        row_id: str,
        template: InsertTemplate,
        hlc: Stamp,
        values: Sequence[CanonicalJson],
    ) -> None:
        """Leave an insert unfolded, which is in the outbox by now, as the only entry of its row."""
        self._waiting.append((table_id, row_id, template, hlc, values))
        self._edits += 1
        if self._edits >= UNFOLDED_EDITS_MAX:
            self.fold()

    def count(self) -> None:
        self._edits += 1
        if self._edits >= UNFOLDED_EDITS_MAX:
            self.fold()

    def fold(self) -> None:
        """Write a state for every row that has none."""
        if not self._is_known:
            self._read()
        if self._waiting or self._states_read:
            states = [
                (table_id, row_id, template.state(hlc, values))
                for table_id, row_id, template, hlc, values in self._waiting
            ]
            # In the order of the table: many go to one page.
            states = sorted(states + self._states_read)
            self._connection.executemany(INSERT_EDITED, states)
            self._waiting.clear()
            self._states_read.clear()
        if self._edits >= UNFOLDED_EDITS_MAX:
            ((self._folded,),) = self._connection.execute(_MOVE).fetchall()
            self._edits = 0

    def _read(self) -> None:
        table_of, encode = self._catalogue.by_id, self._states.encode
        self._waiting.clear()
        self._states_read = [
            (table_id, row_id, encode(table_of(table_id).places, fold((delta,))))
            for (table_id, row_id), delta in unfolded(self._connection)
        ]
        ((self._folded, self._edits),) = self._connection.execute(_HOW_FAR).fetchall()
        self._is_known = True


# --- new rows, by the thousand --------------------------------------------------------------------


_INT64: Final = range(-(1 << 63), 1 << 63)
_PLAIN: Final = {str, float, type(None)}
"""Kinds of values that are cells as they are."""
_INTEGERS: Final = {int, float, type(None)}
_INSERT_ROW: Final = (
    "INSERT INTO _lakesync_rows (table_id, row_id, state, waiting) VALUES (?, ?, ?, 0) "
    "ON CONFLICT (table_id, row_id) DO NOTHING"
)


class Inserts(NamedTuple):
    """Rows of one insert each, all of the same columns, by columns."""

    names: tuple[str, ...]
    """Of their columns, at least one."""
    row_ids: Sequence[str]
    stamps: Sequence[Stamp]
    client_ids: Sequence[str]
    values: Sequence[Sequence[CanonicalJson]]
    """Of each column those of all rows."""


def insert_new(
    rows: Rows,
    table: AppTable,
    inserts: Iterable[Inserts],
    several: Mapping[str, Sequence[Delta]],
) -> bool:
    """Write what may be new, if none of it is stored; else write nothing.

    Cost: 5 us for a row of one insert and five columns.

    Args:
        rows: the rows of the file.
        table: their table.
        inserts: rows of one insert.
        several: rows of several deltas by their ids, of which one is an insert and none a deletion.
    """
    states, places = rows.states, table.places
    stored: list[tuple[int, str, bytes]] = []
    for alike in inserts:
        names, row_ids, stamps, client_ids, values = alike
        encoded = states.encode_inserts(places, names, stamps, client_ids, values)
        stored += zip(repeat(table.id), row_ids, encoded, strict=False)
    seen: dict[tuple[str, ...], dict[str, list[CanonicalJson]]] = defaultdict(dict)
    for row_id, deltas in several.items():
        merged = fold(deltas)
        columns = merged.columns
        seen[tuple(columns)][row_id] = [value for _, _, value in columns.values()]
        stored.append((table.id, row_id, states.encode(places, merged)))
    if not _insert_all(rows.connection, stored):
        return False
    for alike in inserts:
        rows.show(table, cells_by_column(table, alike.names, alike.row_ids, alike.values))
    for names, by_row in seen.items():
        values = list(zip(*by_row.values(), strict=True))
        rows.show(table, cells_by_column(table, names, by_row, values))
    return True


def _insert_all(connection: sqlite3.Connection, stored: Sequence[tuple[object, ...]]) -> bool:
    """Insert rows, all of them or, if any is there already, none."""
    connection.execute("SAVEPOINT _lakesync_new")
    is_new = connection.executemany(_INSERT_ROW, stored).rowcount == len(stored)
    if not is_new:
        connection.execute("ROLLBACK TO _lakesync_new")
    connection.execute("RELEASE _lakesync_new")
    return is_new


def cells_by_column(
    table: AppTable,
    names: tuple[str, ...],
    row_ids: Collection[str],
    values: Sequence[Sequence[CanonicalJson]],
) -> Iterable[Sequence[Cell]]:
    """Return what `AppTable.cells` gives for rows with the same columns, 1 us a row of five."""
    columns: dict[str, Iterable[Cell]] = {}
    for name, raw in zip(names, values, strict=True):
        joined = b"[%b]" % b",".join(raw)
        try:
            parsed = json.loads(joined)
        except (ValueError, RecursionError):  # too many digits, too deep
            parsed, kinds = None, _INTEGERS | {str, list}
        else:
            kinds = set(map(type, parsed))
        _learn(table, name, raw, joined, parsed, kinds)
        write = table.writer(name)
        if parsed is None or write:
            columns[name] = map(write or cell, raw)
        else:
            columns[name] = parsed if kinds <= _PLAIN else _cells(parsed, raw)
    nulls: list[Cell] = [None] * len(row_ids)
    return zip(row_ids, *[columns.get(name, nulls) for name in table.shown], strict=True)


def _learn(
    table: AppTable,
    name: str,
    raw: Sequence[CanonicalJson],
    joined: bytes,
    parsed: Sequence[object] | None,
    kinds: set[type],
) -> None:
    """Note the forms of a column's values, looking at each only where any may have one."""
    if kinds <= _INTEGERS and parsed is not None:
        if int in kinds and not table.forms.get(name, 0) & BIT and (0 in parsed or 1 in parsed):
            table.learn(name, BIT)
    elif not kinds <= _PLAIN or b'"[' in joined or b'"{' in joined:
        forms = 0
        for value in {value[:2] for value in raw}:
            forms |= FORMS.get(value, 0)
        table.learn(name, forms)


def _cells(column: Iterable[object], raw: Iterable[CanonicalJson]) -> Iterator[Cell]:
    for value, text in zip(column, raw, strict=True):
        kind = value.__class__
        if kind is bool:
            yield 1 if value else 0
        elif kind is int:
            # Canonical JSON prints a double such as 1e20 in digits; SQLite's integers end at 2^63.
            yield value if value in _INT64 else float(value)  # type: ignore[arg-type,misc]
        else:
            yield text.decode() if kind is list or kind is dict else value  # type: ignore[misc]
