"""Triggers of the app, from one synced table to another and to a local one, made and dropped.

What holds is what holds anyway: rows are the same everywhere, and the app sees them. A trigger that
writes a synced table makes rows that no edit made, so no edit may fire it, and no page (K29).
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tests.simulation.clients import Device
    from tests.simulation.world import World

LOG: Final = "CREATE TABLE IF NOT EXISTS written_here (row TEXT)"
"""A local table."""
WRITES: Final = (
    'DELETE FROM "{other}" WHERE _row_id = {row}._row_id',
    'INSERT OR IGNORE INTO "{other}" (_row_id) VALUES ({row}._row_id)',
    'DELETE FROM "{other}"',
)
LOGS: Final = "INSERT INTO written_here (row) VALUES ({row}._row_id)"
EVENTS: Final = (("INSERT", "NEW"), ("UPDATE", "NEW"), ("DELETE", "OLD"))


class Triggers:
    """One client's developer, who tries triggers and drops them again."""

    def __init__(self, world: World, number: int) -> None:
        self._world = world
        self._random = world.stream(f"triggers {number}")

    def act(self, device: Device) -> None:
        client, random = device.client, self._random
        assert client is not None
        names = [client.sql_name(table.name).unwrap() for table in self._world.scenario.tables]
        if len(names) < 2 or None in names:
            return
        on, other = random.sample(names, 2)
        event, row = random.choice(EVENTS)
        name = f"app_{on}_{event}"
        if random.random() < 0.4:
            self._change(device, f'DROP TRIGGER IF EXISTS "{name}"', "trigger dropped")
            return
        body = random.choice([*WRITES, LOGS]).format(other=other, row=row)
        sql = f'CREATE TRIGGER IF NOT EXISTS "{name}" AFTER {event} ON "{on}" BEGIN {body}; END'
        self._change(device, f"{LOG}; {sql}", "trigger made")

    def _change(self, device: Device, sql: str, what: str) -> None:
        """Change the file as another program would: LakeSync makes no triggers for apps."""
        with closing(sqlite3.connect(device.path, timeout=0)) as file:
            try:
                file.executescript(sql)
            except sqlite3.OperationalError as error:
                what = f"{what}: {error}"
        self._world.count(what)
