"""Polled flows between databases, tables of Iceberg's kind, a connector and a gateway.

What is read, shaped, written, saved and handed over is the product's; the state machine is walked
by its definition. Sources go on being written to, forget their histories, are filled anew, restored
and get another column; databases are away and refuse rows; operators pause, resume and have all
brought again; functions, jobs and their tasks die between any two calls. At the end each
destination holds what its flow lets through of its source, its history nothing twice, and what was
refused is listed.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from lakesync.buffer.admin_stores import ItemConnectors
from lakesync.buffer.admission import ItemAccess
from lakesync.buffer.memory_items import MemoryItemStore
from lakesync.connectors import large_polls, pages, poll, registry
from lakesync.connectors.state import state_from
from lakesync.core.clock import stamp
from lakesync.errors import Conflict
from lakesync.flows import routes
from lakesync.flows.database_sources import RESTORED, Place, place_from
from lakesync.flows.routes import keeper
from lakesync.gateway.destination_admin import DestinationAdmin
from lakesync.runtime import observe
from tests.simulation import flow_sources
from tests.simulation.flow_checks import Checks
from tests.simulation.flow_ends import (
    GATEWAY,
    LAKES,
    NUMBERS,
    Ends,
    GatedPort,
    MemorySecrets,
    Polling,
)
from tests.simulation.flow_runs import Runs
from tests.simulation.flow_sources import EVENTS, GROWN, TABLE, Clicks, Shop, plan_of
from tests.simulation.flow_tasks import Writer
from tests.simulation.ports import SimulatedObjects
from tests.support.gateways import administrator
from tests.support.lake import Messages

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.connectors.state import PollState
    from lakesync.flows.flow_admin import FlowAdmin
    from lakesync.ports import WallClock
    from tests.simulation.scheduler import Process
    from tests.simulation.world import World

PARTS: Final = 10
PAGE_ROWS: Final = 3
STRETCH_ROWS: Final = 4
PUSH_DELTAS: Final = 2
EVERY_MS: Final = 60_000
TRY_AGAIN_MS: Final = 20_000
APART_MS: Final = 180_000
"""How long after the last write a poll begins that counts; of one that follows, after the end of
the one that it follows."""
_CHANGES: Final = ("pause", "resume", "backfill", "since", "run", "run")
_FILTERS: Final = (
    None, {"column": "region", "op": "neq", "value": "asia"},
    {"column": "n", "op": "lt", "value": 12}, {"column": "region", "op": "eq", "value": "eu"},
)  # fmt: skip
_MAPS: Final = (
    None, {"rename": {"title": "label"}}, {"drop": ["region"], "constant": {"origin": "shop"}},
    {"rename": {"title": "label"}, "drop": ["size"]},
)  # fmt: skip

_TEXTS: Final = ("title", "label", "region", "origin", "via")
"""Other columns than those of numbers, as maps leave them."""


def bounds(flows: Flows) -> list[tuple[object, str, Any]]:
    """Return what of the product is other than it is there, by where it stands."""
    if not flows.names:
        return []
    small = [
        (module, "PAGE_ROWS_MAX", PAGE_ROWS)
        for module in (poll, large_polls, large_polls, large_polls)
    ]
    own = {**registry.BUILT_IN, "clicks": "tests.simulation.flow_sources:CLICKS"}
    silent = [(observe, name, _silent) for name in ("count", "failure", "publish")]
    return [
        *small, *silent,
        (routes, "PAGE_ROWS_MAX", 5_000),  # two pages, where writes are gathered
        (large_polls, "STRETCH_ROWS", STRETCH_ROWS),
        (large_polls, "OneWriter", partial(Writer, flows.world.scheduler)),
        (pages, "PUSH_DELTAS_MAX", PUSH_DELTAS),
        (registry, "BUILT_IN", own),
        (flow_sources, "CLICKS", flows.clicks.kind()),
    ]  # fmt: skip


def _kind(secret: str) -> str:
    return "iceberg" if secret in LAKES else "postgres" if secret == "shop" else "mysql"


def _silent(*_: object, **__: object) -> None:
    """Neither log nor measure."""


class Flows:
    def __init__(self, world: World) -> None:
        self.world = world
        self.random = world.stream("flows")
        self.ends = Ends(world)
        self.store, self.secrets = ItemConnectors(MemoryItemStore()), MemorySecrets()
        self.access = ItemAccess(MemoryItemStore())
        self.clicks = Clicks(world)
        self.runs = Runs(self)
        self.declared: dict[str, dict[str, Any]] = {}
        """By name, as it was sent."""
        self.schedules: dict[str, bool] = {}
        """Of flows that are polled by themselves: whether they are now."""
        self._busy: set[str] = set()
        self.written_ms = 0
        """When the source was written to last, after calm."""
        self._first_ended_ms = 0
        """When the first flow was seen to be polled to its end, after that."""
        if world.scenario.flows:
            self._draw()

    def _draw(self) -> None:
        random, count = self.random, self.world.scenario.flows
        secret = random.choice(["shop", "shop", "lake"])
        self.shop = Shop(self.world, self.ends.raw(secret, "other"))
        if secret == "lake":
            self.shop.back_up = lambda: None  # type: ignore[method-assign]
        source = {"database": _kind(secret), "secret": secret, "gateway": "other"}
        to = random.choice(["gateway", *["lake-of-first"] * 2, *["warehouse"] * 2])
        self.declared["first"] = self._body("first", source, to)
        if count > 1 and to != "gateway":
            source = {"database": _kind(to), "secret": to, "gateway": keeper(GATEWAY, "first")}
            following = random.choice(["lake-of-second", "reports", "reports"])
            self.declared["second"] = self._body("second", source, following)
        if count > 2:
            clicks = {"connector": "clicks", "configuration": {}}
            self.declared["events"] = self._body("events", clicks, "gateway")

    def _body(self, name: str, source: dict[str, Any], to: str) -> dict[str, Any]:
        random = self.random
        body: dict[str, Any] = {"name": name, "source": source, "continuous": True}
        body["destination"] = to
        if to != "gateway":
            body["destination"] = {"database": _kind(to), "secret": to}
        if name == "events":
            return body
        one, said = random.choice(_FILTERS), random.choice(_MAPS)
        if name == "second":  # what the first made of a column is nothing that both name
            one = random.choice([None, {"column": "n", "op": "gte", "value": 4}])
            said = random.choice([None, {"constant": {"via": "first"}}])
        if one:
            body["filter"] = [{"name": "some", "tables": [], "filters": [one]}]
        if said:
            body["map"] = {TABLE: said}
        return body | {"tables": [TABLE]}

    @property
    def names(self) -> list[str]:
        """All of them, those first that others follow."""
        return list(self.declared)

    def clock(self) -> WallClock:
        return self.world.new_clock(self.world.scenario.function_skew_ms)

    # --- what happens -----------------------------------------------------------------------------

    def plan(self) -> None:
        if not self.names:
            return
        world, random = self.world, self.random
        span_ms = world.scenario.span_ms
        service = administrator(self.ends.gateway)
        numbers = [{"name": name, "type": "integer"} for name in (NUMBERS, GROWN)]
        texts = [{"name": name, "type": "string"} for name in _TEXTS]
        service.register_schema(GATEWAY, {"table": TABLE, "columns": [*numbers, *texts]})
        service.register_schema(GATEWAY, {"table": EVENTS, "columns": numbers[:1], "append": True})
        for _ in range(random.choice([1, 2 * world.scenario.rows])):
            self.shop.write()
        plan_of(self, self.shop)
        for _ in range(world.scenario.flow_writes // 3 if "events" in self.declared else 0):
            world.later("source", self.clicks.happen, int(random.random() * span_ms))
        for name in self.names:
            self._operate(name, "declare")
            world.every(EVERY_MS, partial(self._scheduled, name))
        for _ in range(world.scenario.flow_changes):
            name, change = random.choice(self.names), random.choice(_CHANGES)
            at_ms = int(random.random() * span_ms)
            world.later("operator", partial(self._operate, name, change), at_ms)
        for part in range(PARTS):
            world.later("weather of flows", self._weather, span_ms * part // PARTS)

    def _weather(self) -> None:
        away = 0.0 if self.world.is_calm else self.world.scenario.flows_away
        self.ends.set_away(away)

    def _scheduled(self, name: str) -> None:
        if self.schedules.get(name):
            self._poll(name)

    def _poll(self, name: str) -> None:
        self.runs.start({"gateway": GATEWAY, "name": name})

    def calm(self) -> None:
        """End all that is wrong; what is paused is resumed, and each source is written to again."""
        if not self.names:
            return
        self.ends.set_away(0)
        for name in self.names:
            if name in self._busy or not self.schedules.get(name, True):
                self._operate(name, "resume")
        self.world.later("source", self._written_again, 1_000)

    def _place(self) -> Place:
        return place_from(self.state("first").cursors.get(TABLE) or '["rows",0]')

    @property
    def read_to(self) -> int:
        """The commit up to which the source was read, or in the middle of which a page ended."""
        return self._place().commit

    def has_read_past(self, mark: int) -> bool:
        return self._place().commit > mark

    def _written_again(self) -> None:
        """Have the source go on, once it was noticed that it was restored from a backup."""
        if self._place().step == RESTORED or not self.has_read_past(self.shop.mark):
            self.shop.go_on()
            self.written_ms = self.world.scheduler.now_ms
        else:
            self.world.later("source", self._written_again, 10_000)

    # --- operators --------------------------------------------------------------------------------

    def _operate(self, name: str, change: str) -> None:
        """Have an operator do something, and again until it is done; one at a time for each."""
        world = self.world
        if world.is_calm and change != "resume":
            return
        if name in self._busy:
            world.later("operator", lambda: self._operate(name, change), 5_000)
            return
        self._busy.add(name)
        world.scheduler.spawn(
            self.runs._machines, "operator", lambda: self._until_done(name, change)
        )

    def _until_done(self, name: str, change: str) -> None:
        world = self.world
        for _ in range(1_000):
            done = self.runs.within("operator", self._acting(name, change), TRY_AGAIN_MS)
            if done is True:
                break
            if isinstance(done, Conflict) and change == "run":
                break  # it is paused
            world.count(f"flows: {change} is tried again")
            world.scheduler.sleep(TRY_AGAIN_MS)
        world.count(f"flows: {change}")
        self._busy.discard(name)

    def _acting(self, name: str, change: str) -> Callable[[Process], bool]:
        def act(process: Process) -> bool:
            polling = Polling(self, process, self.clock())
            buffer: Any = GatedPort(self.world, process, self.ends.gateway)
            destinations = DestinationAdmin(
                buffer, SimulatedObjects(self.world, process), Messages(),
                wall_clock=polling.wall_clock,
            )  # fmt: skip
            self._change(polling.flow_admin(buffer, destinations), name, change)
            return True

        return act

    def _change(self, admin: FlowAdmin, name: str, change: str) -> None:
        match change:
            case "declare":
                admin.declare(GATEWAY, self.declared[name])
            case "pause" | "resume":
                admin.set_paused(GATEWAY, name, paused=change == "pause")
            case "backfill" | "since" if self.shop.is_restored:
                pass  # nobody is told how to go on with that
            case "backfill":
                admin.backfill(GATEWAY, name)
            case "since" if name != "events":
                hour_ms = self.world.scheduler.now_ms - int(self.random.random() * 3_600_000)
                admin.backfill(GATEWAY, name, stamp(hour_ms))
            case "run":
                self._poll(name)
            case _:
                pass

    # --- the end ----------------------------------------------------------------------------------

    def left_to_do(self) -> str:
        """Return what is left to do; nothing if all is quiet."""
        if self._busy:
            return "an operator of flows is at work"
        for name in self.names:
            state = self.state(name)
            if not self.written_ms:
                return "it was not noticed that a source was restored"
            # A poll may take longer than those that follow it are apart.
            written_ms = self._first_ended_ms if name == "second" else self.written_ms
            begun_ms = written_ms + APART_MS
            has_fault = state.fault and self._is_there(name)
            if state.polled_ms < begun_ms or has_fault or state.poll_ms:
                return f"the flow {name} is not polled to its end: {state}"
            self._first_ended_ms = self._first_ended_ms or self.world.scheduler.now_ms
        return ""

    def _is_there(self, name: str) -> bool:
        """Return whether there is what a flow reads: who brought nothing made no table."""
        source = self.declared[name]["source"]
        if name != "second":
            return True
        database = self.ends.raw(source["secret"], source["gateway"])
        return TABLE in database.tables().unwrap()

    def state(self, name: str) -> PollState:
        stored = self.store.connector(GATEWAY, name)
        return state_from(stored.state if stored else b"")

    def check_end(self) -> None:
        """Hold each destination against its source."""
        if self.names:
            Checks(self).check()
