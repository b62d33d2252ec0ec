"""Clients on files, a gateway, and clocks that a test moves."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lakesync.client import Client, MemoryTransport
from lakesync.client.storage.cell_values import cell, kind_of, read_value
from lakesync.client.storage.file_layout import PREFIX
from lakesync.core.delta import Op
from lakesync.core.merge import fold, view
from lakesync.core.messages import Pull
from lakesync.wire.records import decode_records, encode_row_state
from tests.client.support.gateways import GATEWAY, NaiveGateway, RealGateway
from tests.support.builders import WALL_MS
from tests.support.client_rows import client_rows
from tests.support.oracle import expected_row

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from lakesync.core.delta import CanonicalJson, Delta
    from lakesync.core.merge import RowState


@dataclass
class Clock:
    """A wall clock that stands until it is moved."""

    ms: int = WALL_MS

    def __call__(self) -> int:
        """Return the time."""
        return self.ms


class World:
    """A gateway and its clients."""

    def __init__(self, folder: Path, kind: str = "naive") -> None:
        self.folder = folder
        self.clock = Clock()
        self.gateway: Any = (NaiveGateway if kind == "naive" else RealGateway)(self.clock)
        self._open: list[Client] = []

    def transport(self) -> MemoryTransport:
        """Return a new way to the gateway."""
        return MemoryTransport(GATEWAY, self.gateway, self.gateway)

    def client(self, name: str = "a", **options: Any) -> Client:
        """Open a client's file; again, after it was closed."""
        options.setdefault("wall_clock", self.clock)
        options.setdefault("transport", self.transport())
        options.setdefault("durability", "NORMAL")
        client = Client(self.folder / f"{name}.db", client_id=name, **options)
        # No power fails in a test: leave out what waits for the disk.
        writer = client._file.database.writer
        of_sqlite = isinstance(writer, sqlite3.Connection)
        execute = sqlite3.Connection.execute if of_sqlite else type(writer).execute
        execute(writer, "PRAGMA synchronous = OFF")
        self._open.append(client)
        return client

    def close(self) -> None:
        """Close all clients; each file must be sound by then."""
        for client in self._open:
            client.close()

    def deltas(self) -> list[Delta]:
        """Return everything that the gateway holds, in commit order."""
        received: list[Delta] = []
        cursor = 0
        while True:
            page = self.gateway.pull(GATEWAY, Pull("observer", cursor, 1_000))
            received += [delta for run in page.records for delta in decode_records(run)]
            cursor = page.cursor
            if not page.has_more:
                return received

    def rows(self) -> dict[tuple[str, str], dict[str, Any]]:
        """Return the rows that those deltas make, by the oracle."""
        by_row: dict[tuple[str, str], list[Delta]] = {}
        for delta in self.deltas():
            by_row.setdefault((delta.table, delta.row_id), []).append(delta)
        rows = {key: expected_row(deltas) for key, deltas in by_row.items()}
        return {
            key: {name: json.loads(value) for name, value in row.items()}
            for key, row in rows.items()
            if row is not None
        }


def rows_of(client: Client) -> dict[tuple[str, str], dict[str, Any]]:
    """Return every row that a client shows, exactly."""
    keys = [(row.table, row.row_id) for row in client_rows(client)]
    rows = {key: client.get(*key).unwrap() for key in keys}
    return {key: row for key, row in rows.items() if row is not None}


def states_of(client: Client) -> list[tuple[Any, ...]]:
    """Return the rows of a file, their states as they are sent."""
    return [
        (
            *(row.table_id, row.row_id, encode_row_state(row.state)),
            *(None if row.base is None else encode_row_state(row.base), row.waiting, row.tombstone),
        )
        for row in client_rows(client)
    ]


def check_sound(client: Client) -> None:
    """Prove a file sound: states are bases and outbox merged; app tables read as the states."""
    waiting: dict[tuple[int, str], list[Delta]] = {}
    for entry in client.query("SELECT table_id, row_id, hlc, run FROM _lakesync_outbox").unwrap():
        (delta,) = decode_records(entry["run"])
        assert delta.hlc == entry["hlc"]
        waiting.setdefault((entry["table_id"], entry["row_id"]), []).append(delta)
    tables = {row["id"]: row for row in client.query("SELECT * FROM _lakesync_tables").unwrap()}
    rows = client_rows(client)
    shown: dict[int, dict[str, Mapping[str, CanonicalJson]]] = {table_id: {} for table_id in tables}
    for row in rows:
        deltas = waiting.pop((row.table_id, row.row_id), [])
        assert row.waiting == len(deltas)
        assert (row.base is None) == (not deltas)
        if row.base is not None:
            assert row.state == fold(deltas, row.base)
        seen = view(row.state)
        if seen is not None:
            shown[row.table_id][row.row_id] = seen
    assert waiting == {}
    _check_unfolded(client)
    for table_id, table in tables.items():
        states = {row.row_id: row.state for row in rows if row.table_id == table_id}
        _check_app_table(client, table_id, table["sql_name"], states, shown[table_id])


def _check_unfolded(client: Client) -> None:
    """Prove that what has no state is one insert of a row, and where it is looked for."""
    entries = client.query(
        "SELECT row_id, run, hlc > (SELECT folded FROM _lakesync_sync) AS is_looked_at "
        "FROM _lakesync_outbox WHERE (table_id, row_id) NOT IN "
        "(SELECT table_id, row_id FROM _lakesync_rows)"
    ).unwrap()
    assert all(entry["is_looked_at"] for entry in entries)
    assert all(decode_records(entry["run"])[0].op is Op.INSERT for entry in entries)
    assert len({entry["row_id"] for entry in entries}) == len(entries)


def _check_app_table(
    client: Client,
    table_id: int,
    sql_name: str,
    states: Mapping[str, RowState],
    shown: Mapping[str, Mapping[str, CanonicalJson]],
) -> None:
    """Prove that an app's table has the rows, and that each cell reads as its value (K34)."""
    columns = client.query(
        "SELECT name, sql_name, declared FROM _lakesync_columns "
        "WHERE table_id = ? AND sql_name IS NOT NULL",
        (table_id,),
    ).unwrap()
    kinds = {column["name"]: kind_of(column["declared"] or "") for column in columns}
    select = f'SELECT * FROM "{sql_name}" ORDER BY _row_id'  # noqa: S608 - our own name
    sql_names, cells = client._file.database.read(select)  # as SQLite stores them
    stored_rows = [dict(zip(sql_names, row, strict=True)) for row in cells]
    read_rows = client.query(select).unwrap()
    assert [row["_row_id"] for row in stored_rows] == sorted(shown)
    for stored, read in zip(stored_rows, read_rows, strict=True):
        row_id = str(stored["_row_id"])
        assert read["_row_id"] == stored["_row_id"]
        values, known = shown[row_id], states[row_id].columns
        assert values.keys() <= kinds.keys()
        for column in columns:
            name, at = column["name"], column["sql_name"]
            if name not in known:
                # A column that the row does not have must be NULL; one that is null is, too.
                assert (stored[at], read[at]) == (None, None)
                continue
            value = values[name]
            # With its type: 1 is not true, and text is no list that looks like it.
            assert repr(read[at]) == repr(read_value(kinds[name], value))
            # It is plain, or marked: a BLOB of its JSON. A declaration may have it otherwise.
            assert kinds[name] or stored[at] in (cell(value), value)


def user_tables(client: Client) -> list[str]:
    """Return the tables of the file that are the app's."""
    rows = client.query("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY 1").unwrap()
    return [row["name"] for row in rows if not row["name"].startswith(PREFIX)]


def reopened(world: World, client: Client, **options: Any) -> Client:
    """Close a client and open its file again, as after a restart."""
    name = client.client_id
    with closing(client):
        pass
    return world.client(name, **options)
