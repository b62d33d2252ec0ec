"""Declared destinations beside the lake: databases in memory under the real delivery.

Operators declare, pause, fill, remove and declare anew; databases are away, slow, or do it and do
not say so. At the end each holds what was committed, as far as its filters let it pass.
"""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

from lakesync.adapters.database import PlacedDelta, Position
from lakesync.core.deliveries import DELIVERIES, DELIVERIES_FAILED, delivery_place
from lakesync.core.delta import Op, known_delta
from lakesync.core.rules import rules_to_json
from lakesync.declare.destinations import destination_reader
from lakesync.delivery.deliverer import Deliverer
from lakesync.errors import AdapterUnreachable, Conflict, LakeSyncError, NotFound
from lakesync.gateway.destination_admin import DestinationAdmin
from lakesync.result import Err
from tests.delivery.world import KeptDatabase
from tests.simulation.history import Violation
from tests.simulation.lake import rows_in
from tests.simulation.model import at_least, deletes_win, row_of, seen, stored_row
from tests.simulation.oracle import Eyes
from tests.simulation.ports import Gate, SimulatedBuffer, SimulatedObjects, SimulatedQueue
from tests.simulation.rulings import TEAMS

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.core.deliveries import Batch
    from lakesync.core.destinations import Destination
    from tests.simulation.model import Row
    from tests.simulation.scheduler import Process
    from tests.simulation.world import World

GATEWAY: Final = "g1"
PARTS: Final = 10
TIME_OUT_MS: Final = 300_000
"""Of the function that delivers: less than what was removed must rest before it is added anew."""
TRY_AGAIN_MS: Final = 20_000
HAS_TIME: Final = 0.9
_CHANGES: Final = ("pause", "resume", "backfill", "replay", "anew", "anew")
_WRITES: Final = frozenset({"insert_deltas", "put_rows", "restart"})


class SimulatedDatabase:
    """A destination's database as one process meets it."""

    def __init__(self, world: World, process: Process, database: KeptDatabase) -> None:
        self._gate = Gate(world, process)
        self._database = database

    def __getattr__(self, name: str) -> Any:
        act, database = getattr(self._database, name), self._database

        def call(*arguments: Any) -> Any:
            def reached() -> Any:
                if database.is_away:
                    raise AdapterUnreachable("the database is away")
                return act(*arguments)

            try:
                return self._gate.call(name, reached, writes=name in _WRITES)
            except LakeSyncError as error:
                return Err(error)

        return call

    def close(self) -> None:
        """Let go of nothing."""


def read_batch(body: bytes, batch: Batch) -> list[PlacedDelta]:
    """Read what `tests.simulation.lake.JsonEncoder` wrote."""
    return [
        PlacedDelta(
            Position(commit, ordinal),
            known_delta(Op[op], batch.table, row_id, client, hlc,
                        tuple((name, value.encode()) for name, value in columns)),
        )
        for commit, ordinal, op, row_id, client, hlc, _, columns in rows_in(body)
    ]  # fmt: skip


class Destinations:
    """All that happens to the destinations of the gateway."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._random = world.stream("destinations")
        self.databases: dict[str, KeptDatabase] = defaultdict(KeptDatabase)
        """By secret."""
        self._busy: set[str] = set()
        """Destinations at which an operator is at work."""

    @property
    def names(self) -> list[str]:
        """Those that there may be."""
        return [f"d{number}" for number in range(self._world.scenario.destinations)]

    def plan(self) -> None:
        world, random = self._world, self._random
        span_ms = world.scenario.span_ms
        for name in self.names:
            after_ms = 0 if random.random() < 0.5 else int(random.random() * span_ms)
            world.later("destination", self._declaring(name), after_ms)
        for _ in range(world.scenario.destination_changes if self.names else 0):
            name, change = random.choice(self.names), random.choice(_CHANGES)
            world.later("destination", self._changing(name, change), int(random.random() * span_ms))
        for part in range(PARTS if self.names else 0):
            world.later("destinations' weather", self._weather, span_ms * part // PARTS)
        if self.names:
            world.every(max(60_000, span_ms // 100), self.sweep)

    def _weather(self) -> None:
        for name in self.names:
            away = self._random.random() < self._world.scenario.destinations_away
            self.databases[name].is_away = away and not self._world.is_calm

    def calm(self) -> None:
        """End all that is wrong with databases; what is paused is resumed."""
        for name in self.names:
            self.databases[name].is_away = False
            self._changing(name, "resume")()
        if self.names:
            self._world.every(30_000, self.sweep)

    def restored(self) -> None:
        """Do what ``docs/operations.md`` says: what is declared may be what was long before."""
        for name in self.names:
            self._changing(name, "backfill")()

    # --- operators --------------------------------------------------------------------------------

    def _declaring(self, name: str) -> Callable[[], None]:
        body = {"kind": "postgres", "secret": name, "buckets": self._buckets()}
        return lambda: self._operate(
            name,
            "declared",
            lambda admin: admin.declare(GATEWAY, name, destination_reader(name, body)),
        )

    def _buckets(self) -> list[dict[str, Any]]:
        random = self._random
        if random.random() < 0.4:
            return []
        column, op, value = random.choice(
            [
                ("team", "in", random.sample(TEAMS, 2)),
                ("team", "neq", random.choice(TEAMS)),
                ("done", "eq", random.random() < 0.5),
                ("size", random.choice(["lt", "gte"]), random.randint(0, 2) * 1_000_000),
            ]
        )
        filters = [{"column": column, "op": op, "value": value}]
        return [{"name": "some", "tables": [], "filters": filters}]

    def _changing(self, name: str, change: str) -> Callable[[], None]:
        def act(admin: DestinationAdmin) -> None:
            if change in {"pause", "resume"}:
                admin.set_paused(GATEWAY, name, paused=change == "pause")
            elif change == "backfill":
                admin.backfill(GATEWAY, name)
            elif change == "replay":
                admin.retry(GATEWAY, name)
            else:
                admin.remove(GATEWAY, name)

        def removed() -> None:
            self._world.later("destination", self._declaring(name), TRY_AGAIN_MS)

        after = removed if change == "anew" else None
        return lambda: self._operate(name, change, act, after)

    def _operate(
        self, name: str, operation: str, act: Callable[[DestinationAdmin], object],
        after: Callable[[], None] | None = None,
    ) -> None:  # fmt: skip
        """Have an operator do something, and again until it is answered; one at a time."""
        if self._world.is_calm and operation == "pause":
            return
        if name in self._busy:
            self._world.later(
                "destination", lambda: self._operate(name, operation, act, after), 5_000
            )
            return
        self._busy.add(name)
        self._try(name, operation, act, after)

    def _try(
        self, name: str, operation: str, act: Callable[[DestinationAdmin], object],
        after: Callable[[], None] | None,
    ) -> None:  # fmt: skip
        world, is_done = self._world, False
        clock = world.new_clock(world.scenario.function_skew_ms)

        def run(process: Process) -> None:
            nonlocal is_done
            admin = DestinationAdmin(
                SimulatedBuffer(world, process),
                SimulatedObjects(world, process),
                SimulatedQueue(world, process, world.deliveries),
                wall_clock=clock,
            )
            try:
                act(admin)
            except (NotFound, Conflict) as error:
                world.count(f"destination: {error.code}")
            except LakeSyncError as error:
                world.note(process.name, "%s", error)
                return
            is_done = True

        def look() -> None:
            if not is_done:
                self._try(name, operation, act, after)
                return
            world.count(f"destination: {operation}")
            self._busy.discard(name)
            if after:
                after()

        world.functions.start("operator", run, lambda: None, time_out_ms=TRY_AGAIN_MS)
        world.later("operator", look, TRY_AGAIN_MS)

    # --- functions --------------------------------------------------------------------------------

    def sweep(self) -> None:
        """Announce what waits, as the schedule does."""

        def run(process: Process) -> None:
            try:
                self._deliverer(process).sweep()
            except LakeSyncError as error:
                self._world.note(process.name, "%s", error)

        self._world.functions.start("sweep", run, lambda: None)

    def deliver(self, body: str, acknowledge: Callable[[], None]) -> None:
        place = delivery_place(json.loads(body)["claim"])
        world = self._world

        def run(process: Process) -> None:
            try:
                done = self._deliverer(process).deliver(
                    place, lambda: self._random.random() < HAS_TIME
                )
            except LakeSyncError as error:
                world.count("not delivered")
                world.note(process.name, "%s: %s", place.prefix, error)
                return
            if done.finished:
                world.count("delivered" if done.deltas else "nothing to deliver")
                acknowledge()

        world.functions.start("deliver", run, lambda: None, time_out_ms=TIME_OUT_MS)

    def _deliverer(self, process: Process) -> Deliverer:
        world = self._world

        def opened(_: str, destination: Destination) -> Any:
            return SimulatedDatabase(world, process, self.databases[destination.secret])

        return Deliverer(
            SimulatedBuffer(world, process),
            SimulatedObjects(world, process),
            SimulatedQueue(world, process, world.deliveries),
            read_batch=read_batch,
            open_database=opened,
            wall_clock=world.new_clock(world.scenario.function_skew_ms),
        )

    # --- the end ----------------------------------------------------------------------------------

    def left_to_do(self) -> str:
        """Return what is left to do; nothing if all is quiet."""
        if self._busy:
            return "an operator is at work"
        waiting = [key for key in self._world.objects if key.startswith(DELIVERIES)]
        return f"claims of destinations wait: {waiting[:3]}" if waiting else ""

    def check_end(self) -> None:
        """Hold each destination against everything that was committed."""
        aside = [key for key in self._world.objects if key.startswith(DELIVERIES_FAILED)]
        if aside:
            raise Violation("destinations converge", f"set aside: {aside[:3]}")
        for destination in self._world.store.destinations(GATEWAY).by_name.values():
            eyes = Eyes(rules_to_json(destination.rows), {})
            for table in self._world.scenario.tables:
                self._check(destination, table.name, eyes)

    def _check(self, destination: Destination, table: str, eyes: Eyes) -> None:
        page = self.databases[destination.secret].rows_after(table, "", 1_000_000).unwrap()
        stored = {row_id: stored_row(*state) for row_id, state in page.rows.items()}
        due = self._due(table, eyes)
        for row_id in {*stored, *due}:
            there, wanted = (seen(table, rows.get(row_id, row_of(()))) for rows in (stored, due))
            if self._world.counts["restored"]:  # what was flushed stays, though the buffer lost it
                # So does a deletion that the buffer lost; where deletes win, no update undoes it.
                is_final = deletes_win(table) and there.deleted > wanted.alive
                is_right = is_final or at_least(there, wanted._replace(deleted=0))
            else:
                is_right = (there.exists, there.columns) == (wanted.exists, wanted.columns)
            if not is_right:
                fault = f"{destination.name} {table} {row_id}: {there}, not {wanted}"
                raise Violation("destinations converge", fault)

    def _due(self, table: str, eyes: Eyes) -> dict[str, Row]:
        """Return the rows of a table that a destination is to hold: of events each by itself."""
        history, due = self._world.history, {}
        everything = eyes.see_all_of(table)
        for (its_table, row_id), deltas in history.of_row.items():
            if its_table != table:
                continue
            if history.appends(table):
                row = row_of(one for one in deltas if everything or eyes.see(table, row_of([one])))
                is_seen = True
            else:
                row = row_of(deltas)
                is_seen = everything or eyes.see(table, row)
            if seen(table, row).exists and is_seen:
                due[row_id] = row
        return due
