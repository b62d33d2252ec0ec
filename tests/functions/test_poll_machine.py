"""The state machine of polls, walked by its definition: killed at each step, several at once.

A *moment* is right before or right behind each write: of the lease, of rows, of a dead letter, of
how far the poll is. What is there in the end is what `core.merge` makes of all the source told.
"""

from __future__ import annotations

import json
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakesync.adapters.database import PlacedDelta, Position, TableBatch
from lakesync.adapters.ledger_database import values_of
from lakesync.buffer.admin_stores import ItemConnectors
from lakesync.buffer.memory_buffer import MemoryBuffer
from lakesync.buffer.memory_items import MemoryItemStore
from lakesync.connectors import Change, Unreadable
from lakesync.connectors.pages import client_id_of, delta_of
from lakesync.connectors.poll import JOB_START_MS
from lakesync.connectors.state import state_from
from lakesync.core.clock import stamp
from lakesync.core.flows import CONNECTORS, DATABASES, LAKES
from lakesync.core.merge import fold, view
from lakesync.declare.flows import read_connector
from lakesync.errors import AdapterRefused, RateLimited
from lakesync.flows.routes import keeper
from lakesync.gateway.destination_admin import DestinationAdmin
from lakesync.log.lanes import DEFAULT_LIMITS, Limits
from lakesync.result import Err
from lakesync.runtime.polls import ingest_handler
from lakesync.wire.records import decode_row_state
from tests.delivery.world import KeptDatabase
from tests.functions.conftest import Context
from tests.support import sources
from tests.support.builders import delete, insert
from tests.support.gateways import GivenTime, administrator, pulled, pusher
from tests.support.lake import Killed, Messages, Objects
from tests.support.machines import Machine, TaskFailed, definition_of
from tests.support.polling import PollingByHand
from tests.support.repository import ROOT
from tests.support.sources import MemorySource, use_memory_source
from tests.support.steps import Steps

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from lakesync.core.delta import Delta
    from lakesync.core.merge import RowState

GATEWAY, NAME = "acme", "items"
EVENT = {"gateway": GATEWAY, "name": NAME}
NOW_MS = 1_800_000_000_000
EVERY_MS = 15 * 60_000
PUSH_MS = 20_000
"""How long a write of rows takes: one fills a call, and all do not fit into one execution."""
DEFINITION = definition_of(
    ROOT / "stepfunctions" / "poll_connector.asl.json",
    IngestFunction=CONNECTORS, FlowFunction=DATABASES, LakeFlowFunction=LAKES,
    FlowJob="flow-job",
)  # fmt: skip
WRITES = {"lease", "save", "push", "insert_deltas", "insert_apart", "put_object", "delete_object"}
LARGE = "large flow between databases"
BETWEEN = {"flow between databases", LARGE}
KINDS = ["connector", "flow to the gateway", *sorted(BETWEEN)]


class Watched:
    """A port, each of whose writes lies between two moments."""

    def __init__(self, port: Any, world: World) -> None:
        self._port = port
        self._world = world

    def __getattr__(self, name: str) -> Any:
        act = getattr(self._port, name)
        if name not in WRITES:
            return act

        def call(*arguments: Any) -> Any:
            self._world.moment()
            if name in {"push", "insert_deltas", "insert_apart"}:
                self._world.time.sleep_ms(PUSH_MS)
            answer = act(*arguments)
            self._world.moment()
            return answer

        return call


class World:
    """A source, what is polled of it, the two functions, and the machine that calls them."""

    def __init__(
        self, kind: str, time: GivenTime | None = None, limits: Limits = DEFAULT_LIMITS
    ) -> None:
        self.kind, self.time, self.buffer = kind, time or GivenTime(NOW_MS), MemoryBuffer()
        self.moment: Callable[[], None] = lambda: None
        self.loses_answer: Callable[[], bool] = lambda: False
        self.starts_no_job = False
        self.store, self.pushes = (
            ItemConnectors(MemoryItemStore()),
            pusher(self.buffer, time_=self.time, limits=limits),
        )
        clock = self.time.wall_clock
        self.by_hand = PollingByHand(
            Watched(self.pushes, self).push, clock, store=Watched(self.store, self),
            objects=Watched(Objects(), self), rows=self.buffer,
            rows_min=6 if kind == LARGE else 0,
        )  # fmt: skip
        self.functions = {
            place: ingest_handler(self.by_hand.polls_at(place), self.seconds)
            for place in (CONNECTORS, DATABASES)
        }
        self.started: list[dict[str, Any]] = []
        tasks = {
            "arn:aws:states:::lambda:invoke": self._invoke,
            "arn:aws:states:::states:startExecution": self._start,
            "arn:aws:states:::glue:startJobRun": self._start_job,
        }
        self.machine = Machine(
            DEFINITION, tasks, lambda seconds: self.time.sleep_ms(seconds * 1000), self.seconds
        )
        self.there, self.here = KeptDatabase(), KeptDatabase()
        self._declare()

    @property
    def source(self) -> MemorySource:
        return sources.SOURCE

    def seconds(self) -> float:
        return self.time.wall_clock() / 1000

    def _declare(self) -> None:
        settings_ = {"token": "hush"}
        source: dict[str, Any] = {"connector": "memory", "configuration": settings_}
        flow: dict[str, Any] = {"name": NAME, "source": source, "destination": "gateway"}
        if self.kind == "connector":
            body = {"type": "memory", "name": NAME, "configuration": settings_}
            self.by_hand.admin.register(GATEWAY, read_connector(body))
            return
        if self.kind in BETWEEN:
            flow |= {
                "source": {"database": "postgres", "secret": "shop", "gateway": "other"},
                "tables": ["things"],
                "destination": {"database": "mysql", "secret": "warehouse"},
            }
            self.by_hand.databases["shop", "other"] = self.there
            here = Watched(self.here, self)
            self.by_hand.databases["warehouse", keeper(GATEWAY, NAME)] = here
        destinations = DestinationAdmin(
            self.buffer, Objects(), Messages(), wall_clock=self.time.wall_clock
        )
        self.by_hand.flow_admin(self.buffer, destinations).declare(GATEWAY, flow)

    def change(self, *changes: Change) -> None:
        """Change rows at the source."""
        self.source.log += changes
        for each in changes if self.kind in BETWEEN else ():
            self.time.now_ms += 3
            at = stamp(self.time.wall_clock())
            made: dict[str, Any] = {"table": "things", "at": at}
            columns = each.columns
            row = (
                delete(each.row_id, **made)
                if columns is None
                else insert(each.row_id, **made, **columns)
            )
            batch = TableBatch(
                "things",
                self.there.mark("things").unwrap(),
                at,
                [PlacedDelta(Position(at, 0), row)],
            )
            self.there.insert_deltas(batch).unwrap()

    def _invoke(self, arguments: Any) -> Any:
        sent = json.loads(json.dumps(arguments["Payload"]))
        try:
            answer = self.functions[arguments["FunctionName"]](sent, Context(29_000))
        except Killed:
            raise TaskFailed("Lambda.Unknown") from None
        except Exception as error:
            raise TaskFailed(type(error).__name__) from error
        if self.loses_answer():
            raise TaskFailed("States.TaskFailed")
        return {"Payload": json.loads(json.dumps(answer))}

    def _start(self, arguments: Any) -> None:
        self.started.append(arguments["Input"])

    def _start_job(self, arguments: Any) -> None:
        assert arguments["JobName"] == "flow-job"
        if self.starts_no_job:
            raise TaskFailed("Glue.ConcurrentRunsExceededException")
        self.started.append({"job": arguments["Arguments"]})

    def _job(self, arguments: dict[str, str]) -> str:
        """Do a run of the job, which may die."""
        lease = int(arguments["--lease"])
        try:
            brought = self.by_hand.job(arguments["--gateway"], arguments["--name"], lease)
        except Killed:
            return "job died"
        if brought.is_mine:
            self.started.append(EVENT)  # as the job does: the functions have the rest
        return "job"

    def execution(self, event: dict[str, Any]) -> Generator[str]:
        """Walk one execution, which may fail; or do a run of the job."""
        if "job" in event:
            yield self._job(event["job"])
            return
        try:
            yield from self.machine.walk(event)
        except TaskFailed:
            yield "failed"

    def executions(self) -> Generator[str]:
        """Walk what the schedule starts, and what that starts."""
        self.started.append(EVENT)
        while self.started:
            yield from self.execution(self.started.pop(0))

    def interval(self) -> list[str]:
        """Let an interval go by, and walk what is started at its end."""
        self.time.now_ms += EVERY_MS
        return list(self.executions())

    def finish(self) -> None:
        """Go on, undisturbed, until there is no more."""
        self.moment, self.loses_answer = lambda: None, lambda: False
        polls = self.state.polls
        for _ in range(6):
            self.interval()
        assert self.state.polls > polls + 2
        assert self.state.fault is None

    @property
    def state(self) -> Any:
        stored = self.store.connector(GATEWAY, NAME)
        assert stored is not None
        return state_from(stored.state)

    def check(self, refused: frozenset[str] = frozenset()) -> None:
        """Compare what is there with all that the source told: nothing lost, nothing twice."""
        letters = self.by_hand.admin.one(GATEWAY, NAME)["deadLetters"]
        assert {letter["rowId"] for letter in letters} == refused
        assert self.state.dead_letters == len(refused)
        if self.kind in BETWEEN:
            assert _rows(self.here) == _rows(self.there)
            history = self.here.query_deltas_since("things", Position(), 9_999).unwrap().deltas
            ids = [placed.delta.delta_id for placed in history]
        else:
            deltas = self.logged(refused)
            rows = {row_id: fold(each for each in deltas if each.row_id == row_id)
                    for row_id in {delta.row_id for delta in deltas}}  # fmt: skip
            stored = self.buffer.scan_rows(GATEWAY, "things", "", 999).rows
            states = {row_id: decode_row_state(one.state) for row_id, one in stored}
            if self.kind != "connector":  # of what was never in sight a flow says nothing
                assert _seen(states) == _seen(rows)
            else:
                assert states == rows
            ids = [delta.delta_id for delta in pulled(self.buffer, GATEWAY)]
            assert {*ids} <= {delta.delta_id for delta in deltas}
        assert len(ids) == len({*ids}), "nothing comes twice"

    def logged(self, refused: frozenset[str]) -> list[Delta]:
        """Return the deltas of all that the source told, but for rows that are refused."""
        changes = (one for one in self.source.log if isinstance(one, Change))
        client, now_ms = client_id_of(NAME), self.time.wall_clock()
        return [
            delta_of(one, "things", client, now_ms) for one in changes if one.row_id not in refused
        ]


def _seen(states: dict[str, RowState]) -> dict[str, Any]:
    """Return the rows that there are, each with its stamps."""
    return {
        row_id: (seen, state.columns)
        for row_id, state in states.items()
        if (seen := view(state)) is not None
    }


def _rows(database: KeptDatabase) -> dict[str, Any]:
    """Return the rows of a database."""
    states = database.rows_after("things", "", 999).unwrap().rows
    rows = {row_id: values_of(state) for row_id, state in states.items()}
    return {row_id: row for row_id, row in rows.items() if row is not None}


@pytest.fixture(autouse=True)
def memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read a source in memory, two rows at a time."""
    use_memory_source(monkeypatch)
    for module in ("poll", "large_polls"):
        monkeypatch.setattr(f"lakesync.connectors.{module}.PAGE_ROWS_MAX", 2)
    monkeypatch.setattr("lakesync.connectors.large_polls.STRETCH_ROWS", 3)


def numbered(changes: int = 36) -> Iterator[Change]:
    """Yield changes of some rows, each at its own time; some rows go, and some come back."""
    for number in range(changes):
        is_gone = number % 7 == 4
        columns = None if is_gone else {"value": number}
        yield Change(f"r{number % 27}", columns, 1_700_000_000_000_000 + number * 1_001)


def due(kind: str) -> World:
    """Return a source with much to read, and rows that are refused."""
    sources.SOURCE.__init__()  # type: ignore[misc]  # as it is at first
    world = World(kind)
    world.change(*numbered())
    if kind not in BETWEEN:
        columns = [{"name": "value", "type": "integer"}]
        administrator(world.buffer, time_=world.time).register_schema(
            GATEWAY, {"table": "things", "columns": columns}
        )
        world.change(Change("text", {"value": "no number"}, 1_700_000_000_500_000))
        world.source.log.append(Unreadable("broken", "it is not JSON"))
    return world


def refused_by(kind: str) -> frozenset[str]:
    """Return the rows that are dead letters."""
    return frozenset() if kind in BETWEEN else frozenset({"text", "broken"})


@pytest.mark.law("N1", "N7", "Y5")
@pytest.mark.parametrize("kind", KINDS)
def test_a_long_poll_continues_in_further_executions(kind: str) -> None:
    world = due(kind)
    entered = world.interval()

    if kind == LARGE:
        assert (entered.count("Job"), entered.count("job")) == (1, 1)
        assert entered.count("Poll") < 6
    else:
        assert {"Poll", "Following", "GoOn", "Polled"} == {*entered}
        assert entered.count("Poll") > 14
    world.check(refused_by(kind))
    assert world.interval().count("GoOn") == 0
    world.check(refused_by(kind))


@pytest.mark.law("N1", "N2", "N4", "N7", "Y5")
@pytest.mark.parametrize("kind", KINDS)
def test_a_poll_killed_at_any_write_loses_and_repeats_no_row(kind: str) -> None:
    for kill_at in count():
        world, moments = due(kind), count()

        def moment(at: Iterator[int] = moments, kill_at: int = kill_at) -> None:
            if next(at) == kill_at:
                raise Killed

        world.moment = moment
        world.interval()
        was_killed = next(moments) > kill_at
        world.finish()
        world.check(refused_by(kind))
        if not was_killed:
            break
    assert kill_at > 60


@pytest.mark.law("N1", "N7", "Y5")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["the execution ends", "the answer is lost"])
def test_a_poll_stopped_between_any_two_states_loses_and_repeats_no_row(
    kind: str, how: str
) -> None:
    whole = len(due(kind).interval())
    for stop_at in range(whole):
        world = due(kind)
        if how == "the answer is lost":
            lost = [number == stop_at for number in range(whole)]
            world.loses_answer = iter(lost).__next__
            world.interval()
        else:
            world.time.now_ms += EVERY_MS
            walk = world.executions()
            for _ in range(stop_at + 1):
                next(walk)
            walk.close()
            world.started.clear()
        world.finish()
        world.check(refused_by(kind))


class SharedTime(GivenTime):
    """The time of programs that take turns."""

    def __init__(self, steps: Steps) -> None:
        super().__init__(NOW_MS)
        self._steps = steps

    def wall_clock(self) -> int:
        """Return the milliseconds since 1970."""
        return int(self.now_ms + self._steps.now_ms)

    def sleep_ms(self, milliseconds: float) -> None:
        """Let time pass, and others go on."""
        self._steps.sleep_ms(milliseconds)


@pytest.mark.law("N1", "N7", "Y5")
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 4_500), min_size=60, max_size=200), st.integers(2, 3))
def test_concurrent_polls_with_kills_and_lost_answers_lose_and_repeat_no_row(
    kind: str, choices: list[int], many: int
) -> None:
    sources.SOURCE.__init__()  # type: ignore[misc]
    steps = Steps(choices)
    world = World(kind, SharedTime(steps))
    world.change(*numbered(12))

    def moment() -> None:
        steps.step()
        if steps.chosen % 17 == 16:
            raise Killed

    world.moment, world.loses_answer = moment, lambda: steps.chosen % 19 == 18

    def poll() -> None:
        """Walk an execution, and those that it starts, as its own schedule started it."""
        for _ in world.execution(EVENT):
            steps.step()
        while world.started:
            for _ in world.execution(world.started.pop(0)):
                steps.step()

    steps.run([poll] * many, lambda: None)
    world.finish()
    world.check()


@pytest.mark.law("N4", "N6", "Y9")
def test_a_poll_through_repeated_source_faults_loses_no_row() -> None:
    world = due("connector")
    storm = [RateLimited("slower", retry_after_s=42), RateLimited("slower", retry_after_s=90),
             AdapterRefused("the token has expired")]  # fmt: skip
    world.source.fails = list(storm)
    entered = world.interval()

    assert entered.count("Patience") == 1, "a minute is waited for in the machine, more outside it"
    assert world.state.rows == 0
    world.interval()
    assert world.state.fault.code == AdapterRefused.code
    world.finish()
    world.check(refused_by("connector"))


@pytest.mark.law("N1", "N6")
def test_a_poll_backs_off_during_backpressure_and_then_delivers_all_rows() -> None:
    limits = Limits(backpressure_bytes_max=200)
    world = World("connector", limits=limits)
    world.change(*numbered())
    world.interval()
    before = len(pulled(world.buffer, GATEWAY))
    assert 0 < before < 36, "the gateway is full midway"
    reads = world.source.reads
    ends_ms = world.time.wall_clock() + 3_600_000
    while world.time.wall_clock() < ends_ms:
        world.time.now_ms += 60_000
        list(world.executions())
    assert world.state.fault.code == "BACKPRESSURE_ERROR"
    assert len(pulled(world.buffer, GATEWAY)) == before
    assert 10 < world.source.reads - reads < 30, "it is left alone for longer each time"
    assert world.by_hand.admin.one(GATEWAY, NAME)["deadLetters"] == []
    world.pushes = pusher(world.buffer, time_=world.time)
    world.by_hand.push = Watched(world.pushes, world).push
    world.functions = {
        CONNECTORS: ingest_handler(world.by_hand.polls_at(CONNECTORS), world.seconds)
    }
    world.finish()
    world.check()


def states_in(world: World) -> tuple[Any, set[str]]:
    """Return what rows are merged to where a flow goes, and the ids of the deltas that came."""
    rows = world.here.rows_after("things", "", 999).unwrap().rows
    history = world.here.query_deltas_since("things", Position(), 9_999).unwrap().deltas
    return dict(rows), {placed.delta.delta_id for placed in history}


@pytest.mark.law("Y11")
def test_a_job_run_delivers_the_same_row_states_as_paged_polls() -> None:
    by_pages, by_job = due("flow between databases"), due(LARGE)
    by_pages.interval()
    assert by_job.interval().count("job") == 1
    for world in (by_pages, by_job):
        world.time.now_ms = NOW_MS + 2 * EVERY_MS
        world.change(Change("r1", {"value": "late"}, 1_700_000_000_900_000))
        world.finish()

    assert states_in(by_job) == states_in(by_pages)
    assert by_job.state.rows == by_pages.state.rows


@pytest.mark.law("Y11")
def test_a_poll_continues_by_pages_when_the_job_cannot_be_started() -> None:
    world = due(LARGE)
    world.starts_no_job = True
    entered = world.interval()

    assert entered.count("Job") == 1
    assert entered[entered.index("Job") :].count("Poll") > 4
    world.check()


@pytest.mark.law("Y11")
def test_a_job_that_never_starts_is_replaced_by_paged_polls_after_a_wait() -> None:
    world = due(LARGE)
    world.time.now_ms += EVERY_MS
    for state in world.executions():
        if state == "Polled":
            world.started.clear()  # the run is lost
    before = world.state.rows
    world.time.now_ms += JOB_START_MS - 60_000
    assert "Job" not in list(world.executions())
    assert world.state.rows == before, "it may come still"
    world.finish()
    world.check()


@pytest.mark.law("Y11")
def test_a_job_that_died_midway_is_started_again() -> None:
    world, writes = due(LARGE), count()

    def moment() -> None:
        if world.state.job_moved and next(writes) > 4:
            raise Killed

    world.moment = moment
    assert "job died" in world.interval()
    rows = world.state.rows
    world.moment = lambda: None
    assert world.interval().count("job") == 1
    assert world.state.rows > rows
    world.check()


@pytest.mark.law("Y11", "Y9")
def test_a_fault_of_a_job_is_recorded_and_the_poll_continues_by_pages() -> None:
    world = due(LARGE)
    refuses = AdapterRefused("the user may not write")
    world.by_hand.databases["warehouse", keeper(GATEWAY, NAME)] = Refusing(world.here, refuses)
    world.time.now_ms += EVERY_MS
    entered = []
    for state in world.executions():
        entered.append(state)
        if state == "job":
            assert world.state.fault.message == "the user may not write"
            here = Watched(world.here, world)
            world.by_hand.databases["warehouse", keeper(GATEWAY, NAME)] = here

    assert entered.count("job") == 1, "what brought nothing is not tried again in this poll"
    world.check()


class Refusing:
    """A database that refuses what tasks of a job write."""

    def __init__(self, database: Any, error: AdapterRefused) -> None:
        self._database = database
        self._error = error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    def insert_apart(self, batch: TableBatch) -> Any:
        """Refuse."""
        del batch
        return Err(self._error)
