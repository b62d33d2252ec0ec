"""A gateway with destinations in memory, and functions that may die between any two writes."""

from __future__ import annotations

import json
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Any

from lakesync.adapters.database_types import database_kinds
from lakesync.adapters.history_archive import HistoryArchive
from lakesync.adapters.lake.memory import MemoryAdapter
from lakesync.adapters.lake.parquet import ParquetEncoder, read_batch
from lakesync.adapters.memory import MemoryDatabase
from lakesync.core.column_map import map_state
from lakesync.core.deliveries import delivery_place
from lakesync.core.delta import parse
from lakesync.core.merge import view
from lakesync.core.visibility import rule_columns
from lakesync.declare.destinations import destination_reader
from lakesync.delivery.deliverer import Archiver, Deliverer
from lakesync.errors import AdapterUnreachable, Contention, LakeSyncError
from lakesync.gateway.destination_admin import DestinationAdmin
from lakesync.maintenance.flush import Flusher
from lakesync.result import Err, Ok
from lakesync.wire.records import decode_row_state
from tests.support.builders import WALL_MS
from tests.support.gateways import GATEWAY, GatewayWorld, GivenTime
from tests.support.lake import Life, Messages, Objects

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.core.delta import Delta
    from lakesync.core.destinations import Destination
    from lakesync.result import Result


class KeptDatabase(MemoryDatabase):
    """A database in memory that can be away; it refuses no row."""

    def __init__(self) -> None:
        super().__init__()
        self.is_away = False

    def mark(self, table: str) -> Result[int, LakeSyncError]:
        """Return a table's mark, if it can be reached."""
        if self.is_away:
            return Err(AdapterUnreachable("the database cannot be reached"))
        return super().mark(table)

    def answers(self) -> Result[None, LakeSyncError]:
        """Answer, if it can be reached."""
        return Err(AdapterUnreachable("it cannot be reached")) if self.is_away else Ok(None)


class World(GatewayWorld):
    """A gateway, its lake's queue, its destinations, and what is delivered to them."""

    def __init__(self) -> None:
        super().__init__(time=GivenTime(WALL_MS))
        self.objects = Objects()
        self.lake, self.deliveries = Messages(), Messages()
        self.databases: dict[str, KeptDatabase] = defaultdict(KeptDatabase)
        self.bucket = MemoryAdapter()
        """Where archives are."""

    def destinations(self, life: Life | None = None) -> DestinationAdmin:
        of = _of(life)
        return DestinationAdmin(
            of(self.buffer), of(self.objects), of(self.deliveries),
            wall_clock=self.time.wall_clock,
        )  # fmt: skip

    def declare(self, name: str = "warehouse", life: Life | None = None, **body: object) -> None:
        declared = {"kind": "postgres", "secret": name} | body
        self.destinations(life).declare(
            GATEWAY, name, destination_reader(name, declared, database_kinds)
        )

    def push(self, *deltas: Delta, **more: Any) -> list[str]:
        """Commit deltas, each by itself."""
        for delta in deltas:
            self.time.now_ms += 5
            assert self.send(delta, **more).accepted == 1
        return []

    def pushed(self, event: str) -> bool:
        return any(delta.row_id == event for delta in self.pulled())

    def flush(self, life: Life | None = None) -> None:
        of = _of(life)
        Flusher(
            of(self.buffer), of(self.objects), of(self.lake), ParquetEncoder(), of(self.deliveries)
        ).flush(GATEWAY)

    def deliverer(self, life: Life | None = None) -> Deliverer:
        """Return what delivers, as a process that may die has it."""
        of = _of(life)

        def opened(gateway: str, destination: Destination) -> Any:
            assert gateway == GATEWAY
            return of(self.databases[destination.secret])

        return Deliverer(
            of(self.buffer),
            of(self.objects),
            of(self.deliveries),
            read_batch=read_batch,
            open_database=opened,
            wall_clock=self.time.wall_clock,
            open_archive=self.archive,
        )

    def archive(self, gateway: str, destination: Destination) -> HistoryArchive:
        keeper = f"{gateway}/{destination.name}/{destination.declared_ms}"
        return HistoryArchive(self.bucket, "", keeper)

    def archiver(self) -> Archiver:
        return Archiver(
            self.buffer,
            self.deliveries,
            open_database=lambda _, destination: self.databases[destination.secret],
            open_archive=self.archive,
            wall_clock=self.time.wall_clock,
        )

    def deliver(self, life: Life | None = None, steps: int = 10_000) -> list[LakeSyncError]:
        """Handle messages until there are none; returns what failed, whose messages are gone."""
        failures: list[LakeSyncError] = []
        deliverer = self.deliverer(life)
        while self.deliveries.sent:
            body = self.deliveries.sent.pop(0)
            has_time = iter([True] * steps)
            try:
                place = delivery_place(json.loads(body)["claim"])
                if not deliverer.deliver(place, partial(next, has_time, False)).finished:
                    self.deliveries.sent.append(body)
            except Contention as error:
                if "visible" in error.message:
                    self.time.now_ms += error.retry_after_s * 1000
                    self.deliveries.sent.append(body)
                else:
                    failures.append(error)
            except LakeSyncError as error:
                failures.append(error)
        return failures

    def sweep(self) -> None:
        self.deliverer().sweep()
        self.deliver()

    def waiting(self, name: str = "warehouse") -> list[str]:
        return self.objects.list_objects(f"deliveries/{GATEWAY}/{name}/")

    def rows(self, table: str = "todos", name: str = "warehouse") -> dict[str, Any]:
        database = self.databases[name]
        page = database.rows_after(table, "", 100_000).unwrap()
        shown = {row: database.latest_state(table, row).unwrap() for row in page.rows}
        return {row: values for row, values in shown.items() if values is not None}

    def expected(self, table: str = "todos", name: str = "warehouse") -> dict[str, Any]:
        """Return the rows that a destination is to have, by the gateway's rows alone."""
        destination = self.buffer.destinations(GATEWAY).by_name[name]
        columns, viewer = destination.rows.columns(table), destination.viewer()
        config = self.buffer.config(GATEWAY)
        expected: dict[str, Any] = {}
        for row_id, row in self.buffer.scan_rows(GATEWAY, table, "", 100_000).rows:
            state = config.as_read(table, decode_row_state(row.state))
            values = view(state)
            if values is not None and viewer.sees(table, rule_columns(values.items(), columns)):
                shown = view(map_state(destination.map_of(table), state)) or {}
                expected[row_id] = {column: parse(raw) for column, raw in shown.items()}
        return expected

    def check(self, *tables: str, name: str = "warehouse") -> None:
        """Hold a destination against the gateway's rows; nothing waits for it."""
        assert self.waiting(name) == []
        for table in tables or ("todos",):
            assert self.rows(table, name) == self.expected(table, name)


def _of(life: Life | None) -> Callable[[Any], Any]:
    return life.of if life else lambda port: port
