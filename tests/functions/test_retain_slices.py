"""Retention of many gateways: in how many calls, what a bad one costs, and where it goes on."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.buffer.memory_buffer import MemoryBuffer
from lakesync.checkpoint.store import CHUNK_BYTES_MAX, Checkpoints
from lakesync.errors import NotFound, Unavailable
from lakesync.log.declare import Declare
from lakesync.log.read import ReadBarrier
from lakesync.maintenance.checkpoint_upkeep import Builder, Keeper
from lakesync.maintenance.horizons import Forgetter, Trimmer
from lakesync.ports import NO_HEAD, FlushState
from lakesync.runtime.retention import (
    SINGLES_MAX,
    SLICE_GATEWAYS,
    SLICES_MAX,
    Retention,
    Slices,
    retain_handler,
)
from tests.functions.conftest import Context, no_deletion
from tests.support.builders import WALL_MS, at_ms, delete, insert, push
from tests.support.gateways import GivenTime, SeededChance, pusher
from tests.support.repository import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

MACHINE = json.loads((ROOT / "stepfunctions" / "retention.asl.json").read_text())
DAY_MS = 86_400_000
EVENTS_MAX = 25_000
"""Of one execution, as Step Functions has it."""
PAYLOAD_BYTES_MAX = 256 * 1024
"""Of a state, as Step Functions has it."""
GATEWAYS = [f"g{number:05}" for number in range(10_000)]
EVENTS = {"Task": 5, "Pass": 2, "Choice": 2}
"""That a state writes into the history of its execution."""


class FoldersOfObjects:
    """Objects, found by their first two folders: ten thousand gateways have many."""

    def __init__(self) -> None:
        self._folders: dict[str, dict[str, bytes]] = defaultdict(dict)

    def _of(self, key: str) -> dict[str, bytes]:
        return self._folders["/".join(key.split("/")[:2])]

    def put_object(self, key: str, body: bytes, content_type: str) -> None:
        assert content_type
        self._of(key)[key] = body

    def get_object(self, key: str) -> bytes:
        if key not in self._of(key):
            raise NotFound(f"there is no object {key}")
        return self._of(key)[key]

    def get_range(self, key: str, start: int, size: int) -> bytes:
        return self.get_object(key)[start : start + size]

    def list_objects(self, prefix: str) -> list[str]:
        return sorted(key for key in self._of(prefix) if key.startswith(prefix))

    def delete_object(self, key: str) -> None:
        self._of(key).pop(key, None)


class Many:
    """Many gateways, and the function that keeps them."""

    def __init__(self, *, call_ms: float = 0.0, remaining_ms: int = 300_000) -> None:
        self.buffer = MemoryBuffer()
        self.objects = FoldersOfObjects()
        self.time = GivenTime(WALL_MS)
        self.pushes = pusher(self.buffer, time_=self.time)
        self.calls: Counter[str] = Counter()
        self.retained: Counter[str] = Counter()
        self.remaining_ms = remaining_ms
        self.worst_bytes = 0
        self._seconds = 0.0
        self._step_s = call_ms / 1000
        self.deadly: set[str] = set()
        """Gateways whose tasks end the process."""
        self.broken: set[str] = set()
        """Gateways whose heads cannot be read."""

    def handler(self) -> Callable[[Any, Any], Any]:
        clock, buffer = self.time.wall_clock, Faulty(self)
        checkpoints = Checkpoints(self.objects)
        declare = Declare(
            buffer, wall_clock=clock, sleep_ms=self.time.sleep_ms, chance=SeededChance()
        )
        one = Retention(
            buffer,
            ReadBarrier(buffer),
            builder=Builder(
                buffer, self.objects, checkpoints, wall_clock=clock, chunk_bytes=CHUNK_BYTES_MAX
            ),
            trimmer=Trimmer(buffer, wall_clock=clock, keep_ms=DAY_MS),
            forgetter=Forgetter(buffer, checkpoints, declare, wall_clock=clock, keep_ms=2 * DAY_MS),
            keeper=Keeper(self.objects, checkpoints, wall_clock=clock),
            checkpoints=checkpoints,
            lake_rows_min=1_000_000,
        )
        slices = Slices(buffer, one, wall_clock=clock, every_ms=DAY_MS)
        return retain_handler(one, slices, no_deletion, self._now)

    def _now(self) -> float:
        self._seconds += self._step_s
        return self._seconds

    def call(self, payload: dict[str, Any]) -> Any:
        """Invoke the function, as the state machine does."""
        self.calls[payload["task"]] += 1
        answer = self.handler()(payload, Context(self.remaining_ms))
        size = max(len(json.dumps(payload)), len(json.dumps(answer)))
        self.worst_bytes = max(self.worst_bytes, size)
        return answer


class Faulty:
    """The buffer, with gateways that cannot be kept."""

    def __init__(self, many: Many) -> None:
        self._many = many

    def __getattr__(self, name: str) -> Any:
        act = getattr(self._many.buffer, name)
        if name != "flush_state":
            return act

        def call(gateway: str) -> Any:
            if gateway in self._many.deadly:
                raise SystemExit(1)  # as a process that is out of memory
            if gateway in self._many.broken:
                raise Unavailable("throttled")
            self._many.retained[gateway] += 1
            return act(gateway)

        return call


class Walk:
    """An execution: what its slices and its single gateways came to, and the events it wrote."""

    def __init__(self, many: Many) -> None:
        self._many = many
        self.events = 0
        slices = self._task("List", {})["slices"]
        results = [self._slice(**one) for one in slices]
        assert len(json.dumps(results)) < PAYLOAD_BYTES_MAX
        chosen = self._task("Choose", {"results": results})
        self.singles = chosen["gateways"]
        self.failed = chosen["failed"]
        for gateway in self.singles:
            self._each(gateway)

    def _task(self, name: str, arguments: dict[str, Any], states: Any = None) -> Any:
        """Enter a task; its payload is what is told, by the names that it asks for."""
        state = (states or MACHINE["States"])[name]
        self.events += EVENTS["Task"]
        payload = state["Arguments"]["Payload"]
        assert payload.keys() - arguments.keys() == {"task"} - arguments.keys()
        return self._many.call(
            {**payload, **{key: arguments[key] for key in payload if key in arguments}}
        )

    def _slice(self, after: str, until: str) -> dict[str, Any]:
        flow = MACHINE["States"]["Slices"]["ItemProcessor"]["States"]
        left: list[str] = []
        self.events += 2 + 2 * EVENTS["Pass"]
        finished = False
        while not finished:
            arguments = {"after": after, "until": until}
            try:
                answer = self._task("Slice", arguments, flow)
            except SystemExit:
                assert flow["Slice"]["Catch"][0]["Next"] == "Names"
                left += self._task("Names", arguments, flow)["gateways"]
                break
            self.events += EVENTS["Choice"]
            after, finished = answer["after"], answer["finished"]
            left += answer["gateways"]
        return {"gateways": left, "failed": False}

    def _each(self, gateway: str) -> None:
        """Walk a gateway's own flow, without its retries; one that fails is given up."""
        self.events += 55
        for task in ("plan", "build", "trim", "forget", "clean"):
            try:
                while not self._many.call({"task": task, "gateway": gateway}).get("finished", True):
                    pass
            except (SystemExit, Unavailable):
                self.failed += 1
                return


@pytest.fixture(scope="module")
def idle() -> Many:
    """Ten thousand gateways, of which every hundredth has rows; every thousandth lost them."""
    many = Many()
    for number, gateway in enumerate(GATEWAYS):
        if number % 100:
            many.buffer.raise_head(gateway, "main", None, 5, NO_HEAD)
        else:
            many.pushes.push(gateway, push(insert("r1", at=at_ms(1))))
            top = many.buffer.heads(gateway)["main"].commit
            many.buffer.save_flushed_table(gateway, "todos", top)
            many.buffer.save_flush_state(gateway, FlushState(), FlushState(top))
        if number % 1_000 == 0:
            many.pushes.push(gateway, push(delete("r1", at=at_ms(2))))
    many.time.now_ms += 3_600_000  # what was just committed may not be whole yet
    return many


@pytest.mark.law("R4")
def test_one_execution_retains_ten_thousand_gateways_within_aws_limits(idle: Many) -> None:
    walk = Walk(idle)

    assert idle.retained.keys() == set(GATEWAYS), "none is left for another time"
    assert idle.calls == {"list": 1, "slice": len(GATEWAYS) // SLICE_GATEWAYS, "choose": 1}
    assert (walk.singles, walk.failed) == ([], 0)
    assert walk.events < EVENTS_MAX
    assert idle.worst_bytes < PAYLOAD_BYTES_MAX
    assert Checkpoints(idle.objects).ids(GATEWAYS[0])


def small(count: int = 250, **more: Any) -> Many:
    many = Many(**more)
    for gateway in GATEWAYS[:count]:
        many.buffer.raise_head(gateway, "main", None, 5, NO_HEAD)
    return many


def test_a_slice_without_time_continues_after_its_last_gateway() -> None:
    many = small(call_ms=2_000.0)  # each look at the clock is so much later
    Walk(many)

    assert many.calls["slice"] > 3, "more calls than slices"
    assert many.retained.keys() == set(GATEWAYS[:250])


def test_a_failing_gateway_is_retried_alone_and_stops_no_other() -> None:
    many = small()
    many.broken = {GATEWAYS[7], GATEWAYS[120]}
    walk = Walk(many)

    assert walk.singles == sorted(many.broken)
    assert walk.failed == 2
    assert many.retained.keys() == set(GATEWAYS[:250]) - many.broken


def test_after_a_crash_the_gateways_of_the_slice_are_tried_one_by_one() -> None:
    many = small()
    many.deadly = {GATEWAYS[150]}
    walk = Walk(many)

    assert set(walk.singles) == set(GATEWAYS[100:200])
    assert walk.failed == 1
    assert many.retained.keys() == set(GATEWAYS[:250]) - many.deadly


def test_gateways_to_be_tried_alone_take_turns_over_executions() -> None:
    many = small(count=0)
    slices = Slices(many.buffer, None, wall_clock=many.time.wall_clock, every_ms=DAY_MS)  # type: ignore[arg-type]
    results: list[dict[str, Any]] = [
        {"gateways": [f"g{n}"], "failed": n == 3} for n in range(2 * SINGLES_MAX + 1)
    ]
    turns = []
    for _ in range(3):
        answer: Any = slices.choose(results)
        assert answer["failed"] == 1
        turns.append(answer["gateways"])
        many.time.now_ms += DAY_MS

    assert all(len(turn) <= SINGLES_MAX for turn in turns)
    assert sorted(name for turn in turns for name in turn) == sorted(
        result["gateways"][0] for result in results
    )


def test_choose_accepts_a_single_result_instead_of_a_list() -> None:
    many = small(count=1)
    answer = many.call({"task": "choose", "results": {"gateways": "g1", "failed": False}})

    assert answer == {"gateways": ["g1"], "failed": 0}


@pytest.mark.parametrize("count", [0, 1, SLICE_GATEWAYS, SLICE_GATEWAYS + 1, 777])
def test_slices_cover_each_gateway_once_including_new_ones(count: int) -> None:
    many = small(count)
    slices = many.call({"task": "list"})["slices"]
    many.buffer.raise_head("g00000-new", "main", None, 5, NO_HEAD)
    many.buffer.raise_head("z", "main", None, 5, NO_HEAD)
    names = [name for one in slices for name in many.call({"task": "names", **one})["gateways"]]

    assert sorted(names) == names
    assert names == many.buffer.gateways()


def test_the_number_of_slices_is_bounded_with_100_000_gateways() -> None:
    class Crowd:
        def gateways(self) -> list[str]:
            return [f"g{number:06}" for number in range(100_000)]

    crowd: Any = Crowd()
    slices = Slices(crowd, None, wall_clock=lambda: 0, every_ms=1).slices()  # type: ignore[arg-type]

    assert len(slices) <= SLICES_MAX + 1
    assert len(json.dumps(slices)) < PAYLOAD_BYTES_MAX


def test_the_state_machine_runs_slices_in_parallel_and_then_single_gateways() -> None:
    states = MACHINE["States"]
    flow = states["Slices"]["ItemProcessor"]

    assert [MACHINE["StartAt"], states["List"]["Next"], states["Slices"]["Next"],
            states["Choose"]["Next"], states["Each"]["Next"]] == [
        "List", "Slices", "Choose", "Each", "AnyFailed",
    ]  # fmt: skip
    assert states["Slices"]["MaxConcurrency"] > 1
    assert flow["States"]["SliceDone"]["Default"] == "Slice"
    assert flow["States"]["SliceDone"]["Choices"][0]["Next"] == "SliceRetained"
    assert flow["States"]["Names"]["Catch"][0]["Next"] == "SliceGivenUp"
