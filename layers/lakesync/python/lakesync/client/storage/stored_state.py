"""Row states as a client's file keeps them: exact, in few bytes, quick to write and to read.

A file identifies the columns of a table by their places and clients by numbers, so that no row
repeats their names. Values are stored as they were sent. The bytes are never sent, since they are
only meaningful within their file. The layout, in this order, with unneeded parts left out::

    flags │ alive │ deleted │ writes: a stamp and a client each │ columns, a bit for each place
          │ for each column its write │ sizes of the values │ values

A row of one insert, which most are, is one write without `alive`, and has no list of writes.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from lakesync.core.merge import EMPTY, RowState

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Mapping, Sequence

    from lakesync.core.clock import Stamp
    from lakesync.core.delta import CanonicalJson
    from lakesync.core.merge import Register

# --- places and numbers for names -----------------------------------------------------------------


_SETS_REMEMBERED: Final = 512


class Places:
    """The columns of a table by their places; a set of columns is a bit for each place."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._places = {name: place for place, name in enumerate(names)}
        self._sets: dict[tuple[str, ...], tuple[tuple[str, ...], bytes]] = {}
        self._of: dict[bytes, tuple[str, ...]] = {}

    def of(self, names: tuple[str, ...]) -> tuple[tuple[str, ...], bytes]:
        """Return columns in the order of their places, and their set."""
        known = self._sets.get(names)
        if known is None:
            places = sorted(self._places[name] for name in names)
            bits = sum(1 << place for place in places)
            columns = bits.to_bytes((bits.bit_length() + 7) // 8, "little")
            if len(self._sets) >= _SETS_REMEMBERED:
                self._sets.clear()
            known = self._sets[names] = tuple([self._names[place] for place in places]), columns
        return known

    def names(self, columns: bytes) -> tuple[str, ...]:
        """Return the columns of a set, in the order of their places."""
        known = self._of.get(columns)
        if known is None:
            bits = int.from_bytes(columns, "little")
            if bits >> len(self._names):
                raise ValueError("a row has a column that its table has not")
            known = tuple([name for place, name in enumerate(self._names) if bits >> place & 1])
            if len(self._of) >= _SETS_REMEMBERED:
                self._of.clear()
            self._of[columns] = known
        return known


def places_in(connection: sqlite3.Connection) -> Mapping[int, Places]:
    """Return the places of tables' columns by the tables' ids, as a connection sees a file now."""
    names: dict[int, list[str]] = defaultdict(list)
    columns = "SELECT table_id, name FROM _lakesync_columns ORDER BY table_id, place"
    for table_id, name in connection.execute(columns):
        names[table_id].append(name)
    places = {table_id: Places(of_table) for table_id, of_table in names.items()}
    return defaultdict(lambda: Places(()), places)


class ClientNumbers:
    """The numbers by which one file knows clients. Used within the caller's transaction."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._numbers: dict[str, int] = {}
        self._clients: dict[int, str] = {}

    def forget(self) -> None:
        self._numbers.clear()
        self._clients.clear()

    def number(self, client_id: str) -> int:
        """Return a client's number, a new one if it has none."""
        number = self._numbers.get(client_id)
        if number is None:
            row = self._connection.execute(
                "INSERT INTO _lakesync_clients (client_id) VALUES (?) "
                # Existing rows are written unchanged, because RETURNING reports only written rows.
                "ON CONFLICT (client_id) DO UPDATE SET client_id = client_id RETURNING number",
                (client_id,),
            ).fetchone()
            number = self._numbers[client_id] = int(row[0])
        return number

    def client(self, number: int) -> str:
        client_id = self._clients.get(number)
        if client_id is None:
            client_id = self._clients[number] = client_of(self._connection, number)
        return client_id


def client_of(connection: sqlite3.Connection, number: int) -> str:
    row = connection.execute(
        "SELECT client_id FROM _lakesync_clients WHERE number = ?", (number,)
    ).fetchone()
    if row is None:
        raise ValueError(f"a row names the client {number}, which the file does not know")
    return str(row[0])


# --- states ---------------------------------------------------------------------------------------


_ALIVE_FIRST: Final = 1
"""The row is alive by its first write."""
_ALIVE: Final = 2
_DELETED: Final = 4
_MANY: Final = 8
"""There are several writes; else all columns are of one."""
_WIDE: Final = 16
"""Counts, sizes and indexes take four bytes, not one."""
_FAR: Final = 32
"""Numbers of clients take four bytes, not one."""
_COLUMNS: Final = 64
"""There are columns, and so what is about them."""
_STAMP: Final = 8
_BYTE_MAX: Final = 255


class States:
    """Row states to and from what one file keeps. Used within the caller's transaction."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.clients = ClientNumbers(connection)

    def decode(self, places: Places, stored: bytes | None) -> RowState:
        """Return a row state; `EMPTY` for None and for nothing."""
        return decode(stored, places, self.clients.client)

    def encode(self, places: Places, state: RowState) -> bytes:
        """Return the stored form of a row state: the same for equal ones; empty for `EMPTY`."""
        alive, deleted, columns = state
        if not columns:
            return _head(0, alive, deleted) if alive or deleted else b""
        names, members = places.of(tuple(columns))
        # A write's index is its place among the writes, as the columns first name them.
        writes: dict[tuple[Stamp, str], int] = {}
        indexes: list[int] = []
        values: list[CanonicalJson] = []
        for name in names:
            hlc, client_id, value = columns[name]
            indexes.append(writes.setdefault((hlc, client_id), len(writes)))
            values.append(value)
        numbers = [self.clients.number(client_id) for _, client_id in writes]
        sizes = list(map(len, values))
        flags = _COLUMNS | (_FAR if max(numbers) > _BYTE_MAX else 0)
        if max(*sizes, len(members), len(writes)) > _BYTE_MAX:
            flags |= _WIDE
        is_many = len(writes) > 1
        if is_many:
            flags |= _MANY
        if alive == columns[names[0]][0]:
            flags |= _ALIVE_FIRST
            alive = 0
        parts = [_head(flags, alive, deleted)]
        if is_many:
            parts.append(_numbers((len(writes),), flags & _WIDE))
        for (hlc, _), number in zip(writes, numbers, strict=True):
            parts += (hlc.to_bytes(_STAMP, "little"), _numbers((number,), flags & _FAR))
        parts += (_numbers((len(members),), flags & _WIDE), members)
        if is_many:
            parts.append(_numbers(indexes, flags & _WIDE))
        parts.append(_numbers(sizes, flags & _WIDE))
        parts += values
        return b"".join(parts)

    def encode_inserts(
        self,
        places: Places,
        names: tuple[str, ...],
        stamps: Sequence[Stamp],
        client_ids: Sequence[str],
        columns: Sequence[Sequence[CanonicalJson]],
    ) -> list[bytes]:
        """Return the stored states of rows that have just one insert of certain columns.

        They equal those of `encode`. Cost: 1 us a row.

        Args:
            places: the places of the table's columns.
            names: of the columns, at least one.
            stamps: of each row.
            client_ids: of each row.
            columns: of each column the values of all rows.
        """
        ordered, members = places.of(names)
        # Clients name columns in an order of their own.
        arranged = [columns[names.index(name)] for name in ordered]
        rows = zip(stamps, client_ids, zip(*arranged, strict=True), strict=True)
        if len(members) > _BYTE_MAX:
            return [self.encode(places, _inserted(ordered, *row)) for row in rows]
        openings: dict[str, tuple[bytes, bytes]] = {}
        encoded = []
        for hlc, client_id, values in rows:
            opening = openings.get(client_id)
            if opening is None:
                opening = openings[client_id] = self.opening(client_id, members)
            head, behind = opening
            try:
                sizes = bytes(map(len, values))
            except ValueError:  # one is longer than a byte tells
                encoded.append(self.encode(places, _inserted(ordered, hlc, client_id, values)))
            else:
                stamp = hlc.to_bytes(_STAMP, "little")
                encoded.append(b"".join((head, stamp, behind, sizes, *values)))
        return encoded

    def opening(self, client_id: str, members: bytes) -> tuple[bytes, bytes]:
        """Return what stands before and behind the stamp of a row of one insert of some columns."""
        number = self.clients.number(client_id)
        flags = _COLUMNS | _ALIVE_FIRST | (_FAR if number > _BYTE_MAX else 0)
        client = _numbers((number,), flags & _FAR)
        return bytes((flags,)), client + bytes((len(members),)) + members


def states_in(connection: sqlite3.Connection) -> Callable[[int, bytes | None], RowState]:
    """Return a reader of row states, by table id, as a connection sees a file now."""
    places = places_in(connection)
    numbers = "SELECT number, client_id FROM _lakesync_clients"
    clients: dict[int, str] = dict(connection.execute(numbers).fetchall())
    return lambda table_id, stored: decode(stored, places[table_id], clients.__getitem__)


def _inserted(
    names: Sequence[str], hlc: Stamp, client_id: str, values: Sequence[CanonicalJson]
) -> RowState:
    columns = {name: (hlc, client_id, value) for name, value in zip(names, values, strict=True)}
    return RowState(hlc, 0, columns)


def decode(
    stored: bytes | None, places: Places, client_of_number: Callable[[int], str]
) -> RowState:
    """Return a row state; `ValueError`, `IndexError` or ``struct.error`` if it is damaged."""
    if not stored:
        return EMPTY
    flags, at = stored[0], 1
    alive = deleted = 0
    if flags & _ALIVE:
        alive, at = _stamp(stored, at)
    if flags & _DELETED:
        deleted, at = _stamp(stored, at)
    if not flags & _COLUMNS:
        _check_end(stored, at)
        return RowState(alive, deleted, {})
    count, wide = 1, flags & _WIDE
    if flags & _MANY:
        (count,), at = _read(stored, at, 1, wide)
    writes, at = _writes(stored, at, count, flags & _FAR, client_of_number)
    (size,), at = _read(stored, at, 1, wide)
    names = places.names(stored[at : at + size])
    at += size
    indexes: Sequence[int] = ()
    if flags & _MANY:
        indexes, at = _read(stored, at, len(names), wide)
    sizes, at = _read(stored, at, len(names), wide)
    columns: dict[str, Register] = {}
    (hlc, client_id) = writes[0]
    for place, name in enumerate(names):
        if indexes:
            hlc, client_id = writes[indexes[place]]
        end = at + sizes[place]
        columns[name] = (hlc, client_id, stored[at:end])
        at = end
    _check_end(stored, at)
    if flags & _ALIVE_FIRST:
        alive = columns[names[0]][0]
    return RowState(alive, deleted, columns)


def _writes(
    stored: bytes, at: int, count: int, far: int, client_of_number: Callable[[int], str]
) -> tuple[list[tuple[Stamp, str]], int]:
    writes = []
    for _ in range(count):
        hlc, at = _stamp(stored, at)
        (number,), at = _read(stored, at, 1, far)
        writes.append((hlc, client_of_number(number)))
    return writes, at


def _check_end(stored: bytes, at: int) -> None:
    if at != len(stored):
        raise ValueError("a row is not as long as it says")


def _head(flags: int, alive: Stamp, deleted: Stamp) -> bytes:
    head = bytes((flags | (_ALIVE if alive else 0) | (_DELETED if deleted else 0),))
    if alive:
        head += alive.to_bytes(_STAMP, "little")
    return head + deleted.to_bytes(_STAMP, "little") if deleted else head


def _numbers(numbers: Sequence[int], wide: int) -> bytes:
    return struct.pack(f"<{len(numbers)}I", *numbers) if wide else bytes(numbers)


def _stamp(stored: bytes, at: int) -> tuple[Stamp, int]:
    end = at + _STAMP
    return int.from_bytes(stored[at:end], "little"), end


def _read(stored: bytes, at: int, count: int, wide: int) -> tuple[Sequence[int], int]:
    end = at + (count * 4 if wide else count)
    return struct.unpack_from(f"<{count}I", stored, at) if wide else stored[at:end], end
