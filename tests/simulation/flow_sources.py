"""What flows read: tables of somebody else's, who goes on writing, and what is to be in them.

What is to be there is worked out by `tests.simulation.model`, of the deltas that were committed.
"""

from __future__ import annotations

import json
from collections import deque
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Final

from pydantic import BaseModel

from lakesync.adapters.database import PlacedDelta, Position, RowImages, TableBatch
from lakesync.connectors import (
    Change,
    ConnectorType,
    SourceColumn,
    SourcePage,
    SourceTable,
    Unreadable,
)
from lakesync.core.clock import stamp
from lakesync.core.delta import Op, make_delta
from lakesync.core.schema import Column, TableSchema
from lakesync.result import Ok
from tests.simulation.flow_ends import NO_NUMBER, NUMBERS
from tests.simulation.model import row_of
from tests.simulation.oracle import holds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lakesync.core.delta import Delta
    from lakesync.errors import LakeSyncError
    from lakesync.result import Result
    from tests.simulation.flows import Flows
    from tests.simulation.world import World

TABLE: Final = "orders"
EVENTS: Final = "clicks"
GROWN: Final = "size"
"""The column that comes midway."""
REGIONS: Final = ("eu", "us", "asia")
_WRITER: Final = "shop"
_LATE_MS: Final = 20_000
_FILLED_AFTER_MS: Final = 90_000

Rows = dict[str, dict[str, Any]]


class Shop:
    """A table of a database that LakeSync keeps for somebody else: its rows, and their history."""

    def __init__(self, world: World, database: Any) -> None:
        self._world = world
        self._random = world.stream("shop")
        self.database = database
        self._deltas: dict[str, list[Delta]] = {}
        self._commits: deque[int] = deque(maxlen=4)
        self._backup: Any = None
        self._backup_mark = 0
        self._has_grown = self._is_filling = False
        self.is_restored = False
        """And nobody was told: it is not to be further again than what was read of it."""
        self.ever_removed: set[str] = set()
        self._removed: set[str] = set()
        """By a filling, which leaves no trace: they come back whole, as what was out of sight."""
        self._learn()

    def _learn(self) -> None:
        columns = [(NUMBERS, "integer"), ("title", "string"), ("region", "string")]
        columns += [(GROWN, "integer")] if self._has_grown else []
        named = tuple(Column(name, kind) for name, kind in columns)
        self.database.ensure_schema(TableSchema(TABLE, named, 1 + self._has_grown)).unwrap()

    @property
    def mark(self) -> int:
        mark: int = self.database.mark(TABLE).unwrap()
        return mark

    @property
    def rows(self) -> Rows:
        shown = ((row_id, row_of(deltas).values) for row_id, deltas in self._deltas.items())
        return {
            row_id: {name: json.loads(raw) for name, raw in values.items()}
            for row_id, values in shown if values is not None
        }  # fmt: skip

    def grow(self) -> None:
        """Get another column."""
        self._has_grown = True
        self._learn()
        self._world.count("flows: a source's table grew")

    def write(self) -> None:
        if self._is_filling or self.is_restored:
            return
        now = stamp(self._world.scheduler.now_ms)
        made = [self._delta(now + place) for place in range(self._random.choice([1, 1, 2, 5]))]
        mark = self.mark
        last = max(mark + 1, now)
        placed = [PlacedDelta(Position(last, place), one) for place, one in enumerate(made)]
        self.database.insert_deltas(TableBatch(TABLE, mark, last, placed)).unwrap()
        self._commits.append(last)
        for one in made:
            self._deltas.setdefault(one.row_id, []).append(one)
        self._world.count("flows: written at a source")

    def _delta(self, at: int) -> Delta:
        random, refused = self._random, self._world.scenario.flow_refused
        row_id = f"r{random.randrange(self._world.scenario.rows):02}"
        late_ms = random.randrange(_LATE_MS) if random.random() < 0.2 else 0
        op = random.choice([Op.INSERT, Op.INSERT, Op.UPDATE, Op.UPDATE, Op.DELETE])
        values: dict[str, Any] = {
            NUMBERS: NO_NUMBER if random.random() < refused else random.randrange(20),
            "title": f"t{self._world.number()}",
            "region": random.choice(REGIONS),
        }
        if self._has_grown:
            values[GROWN] = random.randrange(9)
        if op is Op.DELETE:
            values = {}
        elif row_id in self._removed:
            op = Op.INSERT
            self._removed.discard(row_id)
        elif op is Op.UPDATE or random.random() < 0.2:
            names = random.sample(sorted(values), random.randint(1, len(values)))
            values = {name: values[name] for name in names}
        hlc = at - stamp(late_ms)
        return make_delta(op, TABLE, row_id, values or None, client_id=_WRITER, hlc=hlc)

    def forget(self, read_to: int) -> None:
        """Forget its history: all of it, what is oldest, or what was read and no more."""
        if not self._is_filling:
            self._world.count("flows: a source forgot its history")
            until = self._random.choice([self.mark, *self._commits, *[read_to] * 4])
            self.database.forget_history(TABLE, until).unwrap()

    def back_up(self) -> None:
        """Remember it as it is."""
        if not self._is_filling:
            self._backup_mark = self.mark
            self._backup = deepcopy((self.database._tables, self._deltas, self._removed))

    def restore(self, is_passed: Callable[[int], bool]) -> None:
        """Make it what it was, if all who read it were further: else nobody could notice it."""
        if self._backup is not None and not self._is_filling and is_passed(self._backup_mark):
            self.database._tables, self._deltas, self._removed = self._backup
            self._backup, self.is_restored = None, True
            self._world.count("flows: a source was restored from a backup")
            self._learn()

    def go_on(self) -> None:
        """Be written to again, after a backup."""
        self.is_restored = False
        self.write()

    def fill_anew(self) -> None:
        """Remove some rows and go on without a history, as a filling does; it takes a while."""
        if self._is_filling or self.is_restored:
            return
        gone = [row_id for row_id in sorted(self._deltas) if self._random.random() < 0.3]
        self._is_filling, mark = True, self.mark
        images = RowImages(TABLE, 0, mark + 1, dict.fromkeys(gone))
        self.database.put_rows(images).unwrap()
        self.database.restart(TABLE).unwrap()
        for row_id in gone:
            del self._deltas[row_id]
        self._removed |= {*gone}
        self.ever_removed |= {*gone}
        self._world.later("filled", lambda: self._filled(mark), _FILLED_AFTER_MS)
        self._world.count("flows: a source was filled anew")

    def _filled(self, mark: int) -> None:
        self.database.put_rows(RowImages(TABLE, 0, mark + 2, {})).unwrap()
        self._is_filling = False


class NoSettings(BaseModel):
    """How the connector is configured."""


class Clicks:
    """An outside system with a table of events, in the order in which they happened."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._random = world.stream("clicks")
        self.log: list[Change | Unreadable] = []
        self._last_us = 0

    def kind(self) -> ConnectorType:
        return ConnectorType(
            "clicks", "Clicks", NoSettings, lambda *_: self, lambda _: {EVENTS: EVENTS}
        )

    def happen(self) -> None:
        for _ in range(self._random.choice([1, 2, 4])):
            name = f"e{len(self.log):03}"
            if self._random.random() < 0.05:
                self.log.append(Unreadable(name, "it is not JSON"))
                continue
            number = NO_NUMBER if self._random.random() < 0.05 else len(self.log)
            self._last_us = max(self._last_us + 1, self._world.scheduler.now_ms * 1_000)
            at_us = self._last_us
            self.log.append(Change(name, {NUMBERS: number}, at_us))

    @property
    def refused(self) -> set[str]:
        return {
            one.row_id for one in self.log
            if isinstance(one, Unreadable) or (one.columns or {}).get(NUMBERS) == NO_NUMBER
        }  # fmt: skip

    def check(self) -> Result[str, LakeSyncError]:
        return Ok("It answers.")

    def discover(self) -> Result[tuple[SourceTable, ...], LakeSyncError]:
        return Ok((SourceTable(EVENTS, (SourceColumn(NUMBERS, "integer"),), ("id",)),))

    def read(
        self, table: str, cursor: str, *, rows_max: int, poll_ms: int
    ) -> Result[SourcePage, LakeSyncError]:
        del table, poll_ms
        start = int(cursor or 0)
        some = self.log[start : start + rows_max]
        changes = tuple(one for one in some if isinstance(one, Change))
        unreadable = tuple(one for one in some if isinstance(one, Unreadable))
        end = start + len(some)
        return Ok(SourcePage(changes, str(end), end < len(self.log), unreadable, is_dated=True))

    def close(self) -> None:
        """Let go of nothing."""


CLICKS: Any = None
"""The type of connector while a simulation runs: the registry knows it by this name."""


def due_of(rows: Rows, declared: Mapping[str, Any]) -> Rows:
    """Return what a flow is to bring of some rows, from its declaration as it was sent."""
    due: Rows = {}
    for row_id, row in rows.items():
        filters = [one for bucket in declared.get("filter", []) for one in bucket["filters"]]
        if all(holds(one["op"], row.get(one["column"]), [one["value"]]) for one in filters):
            due[row_id] = _mapped(row, declared.get("map", {}).get(TABLE, {}))
    return due


def _mapped(row: Mapping[str, Any], said: Mapping[str, Any]) -> dict[str, Any]:
    renamed = said.get("rename", {})
    kept = {name: value for name, value in row.items() if name not in said.get("drop", ())}
    made = {renamed.get(name, name): value for name, value in kept.items()}
    return {**made, **said.get("constant", {})}


def plan_of(flows: Flows, shop: Shop) -> None:
    """Put what happens at a source on the calendar."""
    world, random = flows.world, flows.random
    span_ms = world.scenario.span_ms

    def sometime(act: Any) -> None:
        world.later("source", act, int(random.random() * span_ms))

    for _ in range(world.scenario.flow_writes):
        sometime(shop.write)
    sometime(shop.grow)
    for _ in range(random.choice([0, 1, world.scenario.flow_forgets])):
        sometime(lambda: shop.forget(flows.read_to))
    for _ in range(random.choice([0, 0, 1, 2]) + world.scenario.flow_fillings):
        sometime(shop.fill_anew)
    if random.random() < 0.2:
        at_ms = int(random.random() * span_ms)
        world.later("source", shop.back_up, at_ms)
        passed = flows.has_read_past
        world.later(
            "source", lambda: shop.restore(passed), at_ms + int(random.random() * (span_ms - at_ms))
        )
