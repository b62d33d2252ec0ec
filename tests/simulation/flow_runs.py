"""What carries polled flows out: the state machine, the functions that it calls, runs of the job.

The machine is walked by its own definition. It is AWS's and never dies; each call of a function is
a process that may, and so is a run of the job, and each of its tasks.
"""

from __future__ import annotations

import json
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

from lakesync.connectors.large_polls import LargePolls, read_stretch
from lakesync.connectors.port import Storage
from lakesync.connectors.registry import definition_from
from lakesync.core.flows import CONNECTORS, DATABASES, LAKES
from lakesync.errors import LakeSyncError
from lakesync.runtime.polls import ingest_handler
from tests.simulation.flow_ends import Polling
from tests.simulation.flow_tasks import Tasks
from tests.simulation.scheduler import Event, Process
from tests.support.machines import Machine, TaskFailed, definition_of
from tests.support.repository import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.connectors.large_polls import StretchRead, Work
    from lakesync.connectors.port import Stretch
    from tests.simulation.flows import Flows

DEFINITION: Final = definition_of(
    ROOT / "stepfunctions" / "poll_connector.asl.json",
    IngestFunction=CONNECTORS, FlowFunction=DATABASES, LakeFlowFunction=LAKES,
    FlowJob="flow-job",
)  # fmt: skip
FUNCTION_MS: Final = 29_000
"""How long a function may take, as the template has it."""
JOB_MS: Final = 600_000
"""How long a run of the job takes at the most, as nothing here takes longer."""
AT_ONCE: Final = 3


class _Context:
    """What Lambda tells a function."""

    def get_remaining_time_in_millis(self) -> int:
        return FUNCTION_MS


class Runs:
    """Starts executions, and all that they start."""

    def __init__(self, flows: Flows) -> None:
        self._flows = flows
        self.world = flows.world
        self._random = self.world.stream("flow runs")
        self._machines = Process("machine")
        self.at_work = 0
        """Executions and runs that have not ended."""
        self._machine = Machine(
            DEFINITION,
            {
                "arn:aws:states:::lambda:invoke": self._invoke,
                "arn:aws:states:::states:startExecution": self._go_on,
                "arn:aws:states:::glue:startJobRun": self._start_job,
            },
            lambda seconds: self.world.scheduler.sleep(seconds * 1_000),
            self._seconds,
        )

    def _seconds(self) -> float:
        return self.world.scheduler.now_ms / 1_000

    def start(self, event: dict[str, Any]) -> None:
        self.at_work += 1

        def walk() -> None:
            try:
                for state in self._machine.walk(event):
                    self.world.note("machine", "%s: %s", event["name"], state)
            except TaskFailed as failed:
                self.world.count(f"flows: an execution failed: {failed.name}")
            finally:
                self.at_work -= 1

        self.world.scheduler.spawn(self._machines, "execution", walk)

    def _go_on(self, arguments: Any) -> None:
        self.world.count("flows: another execution goes on")
        self.start(arguments["Input"])

    # --- functions --------------------------------------------------------------------------------

    def _invoke(self, arguments: Any) -> Any:
        flows, place = self._flows, arguments["FunctionName"]
        sent = json.loads(json.dumps(arguments["Payload"]))

        def poll(process: Process) -> Any:
            polling = Polling(flows, process, flows.clock())
            handler = ingest_handler(polling.polls_at(place), self._seconds)
            return handler(sent, _Context())

        answer = self.within("poll", poll, FUNCTION_MS)
        if isinstance(answer, LakeSyncError):
            raise TaskFailed(type(answer).__name__)
        if answer is None:
            raise TaskFailed("Lambda.Unknown")
        self.world.count(f"flows: {answer['status']}")
        if self._random.random() < self.world.faults.lose_answer:
            self.world.count("flows: the machine lost an answer")
            raise TaskFailed("States.TaskFailed")
        return {"Payload": json.loads(json.dumps(answer))}

    def within(self, name: str, act: Callable[[Process], Any], most_ms: int) -> Any:
        """Do something in a process of its own; None if that died, or the error that it raised."""
        process = Process(f"{name}#{self.world.number()}")
        answers, ended = [], Event(self.world.scheduler)

        def run() -> None:
            try:
                answers.append(act(process))
            except LakeSyncError as error:
                self.world.note(process.name, "%s", error)
                answers.append(error)
            process.alive = False
            ended.set()

        process.on_kill.append(ended.set)
        self.world.scheduler.spawn(process, process.name, run)
        self.world.later("time-out", lambda: self.world.crash(process, "time-out"), most_ms)
        ended.wait()
        return answers[0] if answers else None

    # --- the job ----------------------------------------------------------------------------------

    def _start_job(self, arguments: Any) -> None:
        world, chance = self.world, self._random.random
        if chance() < 0.1:
            world.count("flows: no job could be started")
            raise TaskFailed("Glue.ConcurrentRunsExceededException")
        given = arguments["Arguments"]
        # Glue may lose a run, or be asked twice where its answer was lost.
        for _ in range(0 if chance() < 0.05 else 2 if chance() < 0.1 else 1):
            world.later("job", lambda: self._run_job(given), int(20_000 + chance() * 100_000))

    def _run_job(self, given: dict[str, str]) -> None:
        world, flows = self.world, self._flows
        self.at_work += 1

        def run() -> None:
            try:
                brought = self.within("job", bring, JOB_MS)
            finally:
                self.at_work -= 1
            if brought is None or isinstance(brought, LakeSyncError):
                world.count("flows: a job died")
            elif brought.is_mine:
                world.count("flows: a job brought something" if brought.rows else "flows: no rows")
                self.start({"gateway": given["--gateway"], "name": given["--name"]})
            else:
                world.count("flows: a job came too late")

        def bring(process: Process) -> Any:
            polling = Polling(flows, process, flows.clock())
            polls = polling._made(LargePolls, polling.flow_routes(DATABASES, side_by_side=True))
            return polls.take_over(
                given["--gateway"], given["--name"], int(given["--lease"]),
                Tasks(self, process), AT_ONCE, lambda: True,
            )  # fmt: skip

        world.scheduler.spawn(self._machines, "run", run)

    def read_stretch(self, work: Work, stretch: Stretch) -> Callable[[Process], StretchRead]:
        flows = self._flows

        def read(process: Process) -> StretchRead:
            polling = Polling(flows, process, flows.clock())
            routes = polling.flow_routes(DATABASES, side_by_side=True)
            storage = Storage(polling.objects, work.gateway, work.name)
            route = routes.route(work.gateway, work.name, definition_from(work.definition), storage)
            with closing(route.connector), closing(route):
                return read_stretch(
                    route, work, stretch, polling.wall_clock,
                    lambda seconds: self.world.scheduler.sleep(seconds * 1_000),
                )  # fmt: skip

        return read

    def task(
        self, job: Process, act: Callable[[Process], Any], ended: Callable[[Any], None]
    ) -> None:
        world = self.world
        process = Process(f"task#{world.number()}")

        def run() -> None:
            answer: Any = None
            try:
                answer = act(process)
            except LakeSyncError as error:
                answer = error
            process.alive = False
            ended(answer)

        process.on_kill.append(lambda: ended(None))
        late_ms = int(self._random.random() * 20_000)
        job.on_kill.append(
            lambda: world.later("task", lambda: world.scheduler.kill(process), late_ms)
        )
        world.scheduler.spawn(process, process.name, run)
