"""How many devices one gateway serves, of which each edits once in five minutes and is told of all.

A device belongs to a team of a hundred, and sync rules show it its team's rows. It asks for news
every half minute, and right after its own edit, as the client does. One of many asks really: what
the others ask is the same again, and what they need is computed from what those needed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from benchmarks.entries import at_least, sized
from benchmarks.scale import latency
from benchmarks.scale.devices import Device, pull_function, push_function, push_until_taken
from benchmarks.scale.lambdas import CONCURRENCY_MAX
from benchmarks.scale.measures import Answers, percentile
from benchmarks.scale.world import World
from lakesync.core.messages import Pull
from lakesync.declare.schemas import read_schema
from lakesync.declare.sync_rules import rules_reader
from lakesync.gateway.admin import AdminService
from lakesync.runtime import wiring

if TYPE_CHECKING:
    from benchmarks.entries import Entry
    from lakesync.compat.follower_pulls import CheckpointService, FollowingPulls
    from lakesync.core.clock import Stamp
    from lakesync.core.messages import PullPage

GATEWAY: Final = "crowd"
EDIT_EVERY_S: Final = 300
ASK_EVERY_MS: Final = 30_000
TEAM: Final = 100
STEPS: Final = sized((12_500, 25_000, 50_000, 100_000, 200_000), (100, 1_000, 2_000))
"""Numbers of devices that are tried."""
FIRST: Final = sized(100_000, 1_000)
WARM_UP_MS: Final = 35_000
MEASURED_MS: Final = 10_000
REAL_READERS: Final = sized(40, 4)
"""Devices whose asking is carried out: each passes the log of half a minute, which takes half a
second of the machine's time at 100,000 devices."""
P99_MS_MAX: Final = 1_000
PILED_UP_S: Final = 3
"""Pushes of so many seconds that wait at once are more than will ever be taken."""
TABLE: Final = "tasks"
_COLUMNS: Final = ["team", "title", "owner", "done", "rank"]
RULES: Final[dict[str, Any]] = {
    "version": 1,
    "buckets": [
        {
            "name": "team",
            "tables": [TABLE],
            "filters": [{"column": "team", "op": "eq", "value": "jwt:team"}],
        }
    ],
}
SCHEMA: Final = {
    "table": TABLE,
    "columns": [{"name": name, "type": "string"} for name in _COLUMNS],
}


class Outcome(NamedTuple):
    """What came of so many devices."""

    devices: int
    p99_ms: float
    refused: int
    processes: float
    """Of both functions, at once."""
    lags_ms: list[float]
    """From an edit's being accepted to a device's having it."""
    detail: str

    @property
    def is_served(self) -> bool:
        """Whether that is as it should be."""
        return self.p99_ms < P99_MS_MAX and not self.refused and self.processes <= CONCURRENCY_MAX


class Crowd:
    """Devices in teams, and what was accepted of each team."""

    def __init__(self, world: World, devices: int) -> None:
        self.world = world
        self._devices = devices
        self._random = world.stream("crowd")
        self.pushes, self.pulls = push_function(world), pull_function(world)
        self.pushed, self.pulled = Answers(world, WARM_UP_MS), Answers(world, WARM_UP_MS)
        self.lags_ms: list[float] = []
        self._stamps: list[Stamp] = []
        """Of all that was accepted, in order."""
        self._of_team: dict[int, list[tuple[Stamp, float]]] = defaultdict(list)

    @property
    def pushes_per_s(self) -> float:
        """How many pushes there are in a second."""
        return self._devices / EDIT_EVERY_S

    @property
    def waiting(self) -> int:
        """Pushes that are not taken yet."""
        return self.pushed.waiting

    def edit(self) -> None:
        """Let devices edit, one after the other, at random."""
        while True:
            self.world.sleep_ms(self._random.expovariate(self._devices / EDIT_EVERY_S / 1000))
            self.world.spawn(partial(self._push, self._random.randrange(self._devices)))

    def _push(self, number: int) -> None:
        team = number // TEAM
        device = Device(self.world, GATEWAY, number)
        columns: dict[str, object] = dict.fromkeys(_COLUMNS, f"of device {number}")
        row_id = f"{number}-{self.world.now_ms():.0f}"
        push = device.push_of(row_id, columns | {"team": f"{team}"}, TABLE)
        push = replace(push, claims={"sub": device.client_id, "team": f"{team}"})

        def accepted(stamp: Stamp) -> None:
            insort(self._stamps, stamp)
            self._of_team[team].append((stamp, self.world.now_ms()))

        push_until_taken(self.pushed, self.pushes, device, push, accepted)

    def ask(self, number: int) -> None:
        """Let a device ask for news for ever."""
        team, cursor, scope = number // TEAM, 0, ""
        while True:
            before = cursor

            def pull(cursor: Stamp = cursor, scope: str = scope) -> PullPage:
                claims = {"sub": f"device{number}", "team": f"{team}"}
                asked = Pull(
                    f"device{number}", since=cursor, deltas_max=5_000, claims=claims,
                    removes=True, scope=scope,
                )  # fmt: skip
                return self.pulls.over_http(partial(self._serve, asked))

            pages: list[PullPage] = []
            self.pulled.ask(number, lambda pull=pull, pages=pages: pages.append(pull()))  # type: ignore[misc]
            if pages:
                cursor, scope = pages[0].cursor, pages[0].scope
                self._tell(team, before, cursor)
                if pages[0].has_more:
                    continue
            self.world.sleep_ms(ASK_EVERY_MS)

    def _serve(self, asked: Pull, services: tuple[FollowingPulls, CheckpointService]) -> PullPage:
        page = services[0].pull(GATEWAY, asked)
        passed = bisect_right(self._stamps, page.cursor) - bisect_right(self._stamps, asked.since)
        self.world.sleep_ms(max(passed, 0) * latency.ENTRY_CPU_MS)
        return page

    def _tell(self, team: int, before: Stamp, cursor: Stamp) -> None:
        now_ms = self.world.now_ms()
        edits = self._of_team[team]
        first = bisect_left(edits, (before + 1, 0.0))
        if before and now_ms >= WARM_UP_MS:
            new = edits[first : bisect_left(edits, (cursor + 1, 0.0))]
            self.lags_ms += [now_ms - at_ms for _, at_ms in new]


def run() -> list[Entry]:
    """Measure, and give the figure."""
    outcome = _try(FIRST)
    best = outcome if outcome.is_served else None
    order = [n for n in STEPS if n > FIRST] if best else [n for n in STEPS[::-1] if n < FIRST]
    for devices in order:
        if best and outcome.processes * devices / outcome.devices > CONCURRENCY_MAX:
            break  # each of more devices takes as much at the least, as it passes more of others
        further = _try(devices)
        if further.is_served or best is None:
            outcome = further
        if further.is_served:
            best = further
        if further.is_served != (devices > FIRST):
            break
    value = best.devices if best else 0
    latency = (
        percentile(outcome.lags_ms, 0.5) / 1000,
        percentile(outcome.lags_ms, 0.99) / 1000,
    )
    detail = (
        f"of {', '.join(f'{n:,}' for n in STEPS)}; with {outcome.devices:,}: {outcome.detail}; "
        f"told after {latency[0]:.0f} s (p99 {latency[1]:.0f})"
    )
    return [at_least("scale_devices", value, "devices", 100_000, detail)]


def _keeps_up(crowd: Crowd, until_ms: float) -> bool:
    """Let time pass up to a moment, unless pushes of seconds pile up; tells whether they do not."""
    while crowd.world.now_ms() < until_ms:
        crowd.world.run_until(crowd.world.now_ms() + 1_000)
        if crowd.waiting > crowd.pushes_per_s * PILED_UP_S:
            return False
    return True


def _try(devices: int) -> Outcome:
    with World(6) as world:
        crowd = Crowd(world, devices)
        admin = AdminService(
            world.buffer(), wall_clock=world.wall_clock, sleep_ms=world.sleep_ms,
            chance=wiring.Randomness(),
        )  # fmt: skip

        def prepare() -> None:
            admin.register_schema(GATEWAY, read_schema(SCHEMA))
            admin.save_rules(GATEWAY, rules_reader(RULES))

        world.prepare(prepare)
        world.spawn(crowd.edit)
        for number in range(REAL_READERS):
            who = number * devices // REAL_READERS
            world.spawn(partial(crowd.ask, who), number * ASK_EVERY_MS / REAL_READERS)
        if not _keeps_up(crowd, WARM_UP_MS):
            return Outcome(devices, WARM_UP_MS, crowd.waiting, 0, [], "pushes pile up")
        before, seconds = world.dynamo.bill.copy(), MEASURED_MS / 1000
        crowd.pulls.busy_ms = crowd.pushes.busy_ms = 0
        _keeps_up(crowd, WARM_UP_MS + MEASURED_MS)
        bill = world.dynamo.bill.since(before)
    asked_per_s = devices / ASK_EVERY_MS * 1000 + devices / EDIT_EVERY_S
    share = asked_per_s * seconds / max(crowd.pulled.count, 1)
    processes = (crowd.pushes.busy_ms + crowd.pulls.busy_ms * share) / MEASURED_MS
    detail = (
        f"{crowd.pushed.count / seconds:,.0f} pushes/s, p99 "
        f"{crowd.pushed.percentile_ms(0.99):,.0f} ms, {crowd.pushed.refused} refused; "
        f"{bill.write_units / max(crowd.pushed.count, 1):.1f} write units a push, "
        f"{asked_per_s:,.0f} pulls/s (one in {share:,.0f} carried out), p99 "
        f"{crowd.pulled.percentile_ms(0.99):,.0f} ms; {processes:,.0f} processes at once, of "
        f"{CONCURRENCY_MAX:,}; {seconds:.0f} s after {WARM_UP_MS / 1000:.0f}"
    )
    refused = crowd.pushed.refused + crowd.pulled.refused
    p99_ms = crowd.pushed.percentile_ms(0.99)
    return Outcome(devices, p99_ms, refused, processes, crowd.lags_ms, detail)
