"""How the rows of one file name columns and clients: by places, and by numbers."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Mapping, Sequence

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
    """Return the places of all tables' columns by the tables' ids, as a connection sees a file now.

    A table of which no columns are known has none.
    """
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
        """Forget what may have been undone."""
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
        """Return the client of a number."""
        client_id = self._clients.get(number)
        if client_id is None:
            client_id = self._clients[number] = client_of(self._connection, number)
        return client_id


def client_of(connection: sqlite3.Connection, number: int) -> str:
    """Return the client of a number in a file."""
    row = connection.execute(
        "SELECT client_id FROM _lakesync_clients WHERE number = ?", (number,)
    ).fetchone()
    if row is None:
        raise ValueError(f"a row names the client {number}, which the file does not know")
    return str(row[0])
