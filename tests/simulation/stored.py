"""What a client has stored, read behind its back: its position, its outbox, its rows."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from lakesync.wire.records import decode_records
from tests.simulation.model import NOTHING, Key, Row, stored_row
from tests.support.client_rows import client_rows

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lakesync.client import Client
    from lakesync.core.delta import Delta


class Position(NamedTuple):
    """Where a client reads on."""

    cursor: int
    snapshot: str
    """Where a snapshot goes on; empty if none is being read."""
    mode: str
    """What becomes of old rows while all is read again; empty if it is not."""
    epoch: str

    @property
    def is_reading(self) -> bool:
        """Return whether it is in the middle of whole rows, or reads everything again."""
        return bool(self.snapshot or self.mode)


class StoredRow(NamedTuple):
    """One row."""

    state: Row
    known: Row
    """The same without the edits that wait."""


class Stored(Protocol):
    """What is stored; each call reads it anew."""

    def position(self) -> Position: ...

    def outbox(self) -> Iterator[tuple[Delta, str]]:
        """Yield the edits that are not known to be at the gateway, each with its status."""
        ...

    def later_stamp(self, hlc: int) -> int | None:
        """Return a stamp in the outbox above another, if there is one."""
        ...

    def rows(self) -> dict[Key, StoredRow]: ...

    def row(self, key: Key) -> StoredRow:
        """Return one row; nothing if it is not there."""
        ...

    def listed(self, key: Key) -> list[dict[str, Any]] | None:
        """Return a row as a query of the app gives it; None if it has no such table."""
        ...


ABSENT = StoredRow(NOTHING, NOTHING)


class StoredInFile:
    """What is in the SQLite file of a Python client."""

    def __init__(self, client: Client) -> None:
        self._client = client

    @property
    def _reader(self) -> sqlite3.Connection:
        reader: sqlite3.Connection = self._client._file.database._reader
        return reader

    def position(self) -> Position:
        cursor, snapshot, mode, epoch = self._reader.execute(
            "SELECT cursor, snapshot, resync_mode, epoch FROM _lakesync_sync"
        ).fetchone()
        return Position(cursor, snapshot or "", str(mode or ""), epoch or "")

    def outbox(self) -> Iterator[tuple[Delta, str]]:
        for run, status in self._reader.execute("SELECT run, status FROM _lakesync_outbox"):
            for delta in decode_records(run):
                yield delta, status

    def later_stamp(self, hlc: int) -> int | None:
        found = self._reader.execute(
            "SELECT hlc FROM _lakesync_outbox WHERE hlc > ? LIMIT 1", (hlc,)
        ).fetchone()
        return None if found is None else int(found[0])

    def rows(self) -> dict[Key, StoredRow]:
        return {
            (row.table, row.row_id): StoredRow(stored_row(*row.state), stored_row(*row.known))
            for row in client_rows(self._client)
        }

    def row(self, key: Key) -> StoredRow:
        for row in client_rows(self._client, *key):
            return StoredRow(stored_row(*row.state), stored_row(*row.known))
        return ABSENT

    def listed(self, key: Key) -> list[dict[str, Any]] | None:
        name = self._client.sql_name(key[0]).unwrap()
        if name is None:
            return None
        sql = f'SELECT * FROM "{name}" WHERE _row_id = ?'  # noqa: S608 - a name that the client gave
        listed: list[dict[str, Any]] = self._client.query(sql, (key[1],)).unwrap()
        return listed


def stored_of(client: Any) -> Stored:
    """Return what a client has stored: one that is no Python client has it at hand."""
    stored: Stored | None = getattr(client, "stored", None)
    return StoredInFile(client) if stored is None else stored


def edits_in(path: Path) -> list[Delta]:
    """Return the outbox of a file that nobody has open; nothing if it has no tables yet."""
    with closing(sqlite3.connect(path)) as connection:
        try:
            runs = connection.execute("SELECT run FROM _lakesync_outbox").fetchall()
        except sqlite3.OperationalError:
            return []
    return [delta for (run,) in runs for delta in decode_records(run)]
