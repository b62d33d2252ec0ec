"""Retention: the tasks of ``stepfunctions/retention.asl.json``; each may die and be repeated.

In the order in which they are done for one gateway:

    plan       whether the checkpoint comes out of the lake, by a job, or is built here
    build      a checkpoint, if anything changed since the latest one
    trim       the log, as far as it is flushed, old, and covered by every checkpoint that is kept
    forget     tombstones that are old enough, and whose delete nobody has to read any more
    clean      checkpoints that are no longer kept

Each task ends when its time is up, and reports so; the state machine calls it again until it is
finished. Of many gateways:

    list       the slices: ranges of gateway ids, of which each is some of all gateways
    slice      does all tasks for the gateways of a slice, one after the other, until its time is up
    names      the gateways of a slice, for when the call that did it died
    choose     of all that a slice did not finish, what this execution does one by one

A gateway that fails, that takes longer than a call, or whose checkpoint is built from the lake, is
done one by one afterwards, with retries and reports. So one gateway never makes a slice fail. Laws
R1-R6: ``docs/spec/retention.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from lakesync.checkpoint import flushed_of, flushed_to_json, out_of_lake
from lakesync.checkpoint.store import Checkpoints
from lakesync.errors import GatewayDeleted, LakeSyncError, ValidationFailed
from lakesync.log.declare import Declare
from lakesync.log.read import ReadBarrier
from lakesync.maintenance.checkpoint_upkeep import Builder, Keeper
from lakesync.maintenance.erasure import Deleter
from lakesync.maintenance.horizons import Forgetter, Trimmer
from lakesync.runtime import observe, wiring
from lakesync.runtime.tasks import delete_task

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lakesync.ports import Buffer, Configurations, WallClock
    from lakesync.runtime.observe import Handler, Seconds
    from lakesync.runtime.settings import RetainSettings
    from lakesync.runtime.tasks import Answer, DeleteTask, HasTime

# --- one gateway ----------------------------------------------------------------------------------


@dataclass
class Retention:
    """What is done for one gateway after the other."""

    buffer: Buffer
    barrier: ReadBarrier
    builder: Builder
    trimmer: Trimmer
    forgetter: Forgetter
    keeper: Keeper
    checkpoints: Checkpoints
    lake_rows_min: int

    def plan(self, gateway: str, place: str, has_time: HasTime) -> Answer:
        """Return arguments for the job that builds from the lake; nothing if it is built here."""
        del place, has_time
        log = self.barrier.raise_heads(gateway)
        state = self.buffer.flush_state(gateway)
        latest = self.checkpoints.latest(gateway, log.epoch, log.trimmed)
        if not out_of_lake(log, state, latest, self.lake_rows_min):
            return {"flushed": ""}
        if self.buffer.destinations(gateway).no_lake:
            return {"flushed": ""}  # the lake lacks tables
        flushed = flushed_of(log, state, self.buffer.flushed_tables(gateway))
        return {"flushed": flushed_to_json(flushed)}

    def build(self, gateway: str, place: str, has_time: HasTime) -> Answer:
        """Build a checkpoint."""
        del place  # its progress is kept with the checkpoints
        report = self.builder.build(gateway, has_time=has_time)
        if report.rows:
            observe.count("CheckpointRows", report.rows)
        return {
            "checkpoint": report.checkpoint,
            "since": str(report.since),
            "rows": report.rows,
            "finished": report.finished,
        }

    def trim(self, gateway: str, place: str, has_time: HasTime) -> Answer:
        """Trim the log."""
        del place  # what is left of the log is the place
        covered = self.keeper.covered(gateway, self.barrier.raise_heads(gateway).epoch)
        report = self.trimmer.trim(gateway, covered=covered, has_time=has_time)
        return {"horizon": str(report.horizon), "finished": report.finished}

    def forget(self, gateway: str, place: str, has_time: HasTime) -> Answer:
        """Forget tombstones."""
        report = self.forgetter.forget(gateway, place=place, has_time=has_time)
        if report.rows:
            observe.count("RowsForgotten", report.rows)
        return {
            "rows": report.rows,
            "finished": report.finished,
            "place": report.place,
        }

    def clean(self, gateway: str, place: str, has_time: HasTime) -> Answer:
        """Remove checkpoints that are no longer kept."""
        del place  # what is left of them is the place
        epoch = self.barrier.raise_heads(gateway).epoch
        report = self.keeper.clean(gateway, epoch, has_time=has_time)
        return {"objects": report.objects, "finished": report.finished}


# --- slices of all gateways -----------------------------------------------------------------------


SLICE_TASKS: Final = ("list", "slice", "names", "choose")
SLICE_GATEWAYS: Final = 100
"""Gateways of a slice, unless `SLICES_MAX` makes them more: idle ones take some 30 s."""
SLICES_MAX: Final = 400
"""Slices of one execution: its history takes 25,000 events, of which a slice makes 13, and 7 more
for each call that it takes."""
SINGLES_MAX: Final = 250
"""Gateways that one execution does one by one: each makes 55 events. If there are more, they take
turns.
"""


@dataclass
class Slices:
    """What is done for many gateways."""

    buffer: Configurations
    retention: Retention
    wall_clock: WallClock
    every_ms: int

    def do(self, event: Mapping[str, Any], has_time: HasTime) -> Answer:
        """Do one of `SLICE_TASKS`.

        Raises:
            ValidationFailed: the event is none that the state machine makes.
        """
        task = event.get("task")
        after, until = event.get("after", ""), event.get("until", "")
        if not isinstance(after, str) or not isinstance(until, str):
            raise ValidationFailed("a slice is given by two gateway ids", field="after")
        if task == "list":
            return {"slices": self.slices()}
        if task == "slice":
            return self.slice(after, until, has_time)
        if task == "names":
            return {"gateways": self.names(after, until)}
        return self.choose(_listed(event.get("results", [])))

    def slices(self) -> list[dict[str, str]]:
        """Return the slices: whatever gateways come meanwhile, each is in one of them."""
        every = self.buffer.gateways()
        size = max(SLICE_GATEWAYS, -(-len(every) // SLICES_MAX))
        ends = [*every[size - 1 : -1 : size], ""]
        return [
            {"after": after, "until": until}
            for after, until in zip(["", *ends], ends, strict=False)
        ]

    def names(self, after: str, until: str) -> list[str]:
        """Return the gateways behind one and up to another; to the last one, if that is empty."""
        every = self.buffer.gateways()
        return [name for name in every if name > after and (name <= until or not until)]

    def slice(self, after: str, until: str, has_time: HasTime) -> Answer:
        """Do all tasks for the gateways of a slice until the time is up.

        Returns:
            The gateway after which to continue, whether all are done, and those that are not.
        """
        left: list[str] = []
        for gateway in self.names(after, until):
            if not has_time():
                return {"after": after, "gateways": left, "finished": False}
            if not self._is_done(gateway, has_time):
                left.append(gateway)
            after = gateway
        return {"after": after, "gateways": left, "finished": True}

    def choose(self, results: Sequence[Mapping[str, Any]]) -> Answer:
        """Return the unfinished gateways whose turn it is, and how many slices were given up."""
        left = sorted({name for result in results for name in _listed(result["gateways"])})
        turns = -(-len(left) // SINGLES_MAX) or 1
        turn = self.wall_clock() // self.every_ms % turns
        given_up = sum(bool(result["failed"]) for result in results)
        return {"gateways": left[turn::turns], "failed": given_up}

    def _is_done(self, gateway: str, has_time: HasTime) -> bool:
        """Do all tasks for a gateway; False if it needs a flow of its own."""
        try:
            if self.retention.plan(gateway, "", has_time)["flushed"]:
                return False
            tasks = (self.retention.build, self.retention.trim, self.retention.forget,
                     self.retention.clean)  # fmt: skip
            return all(_finished(task, gateway, has_time) for task in tasks)
        except GatewayDeleted:
            return True  # and deletion removes all that is stored of it
        except LakeSyncError as error:
            observe.failure(error, task="slice", gateway=gateway)
        except Exception as error:  # noqa: BLE001 - one gateway's bug must not cost its neighbours
            observe.bug(error, gateway=gateway)
        return False


def _finished(task: Callable[[str, str, HasTime], Answer], gateway: str, has_time: HasTime) -> bool:
    """Do a task, from place to place, until it is finished or the time is up."""
    place = ""
    while True:
        report = task(gateway, place, has_time)
        if report["finished"]:
            return True
        if not has_time():
            return False
        place = str(report.get("place", ""))


def _listed(value: Any) -> list[Any]:
    """Return a list: JSONata gives a list of one as its element."""
    return value if isinstance(value, list) else [value]


# --- the handler ----------------------------------------------------------------------------------


_MARGIN_S: Final = 30
"""Left of a function's time when it begins nothing more: one step takes some seconds."""


def retain_handler(
    retention: Retention, slices: Slices, delete: DeleteTask, seconds: Seconds
) -> Handler:
    """Return the handler of ``functions/retain``.

    It raises what went wrong, so that the state machine tries again.
    """
    tasks = {
        "plan": retention.plan,
        "build": retention.build,
        "trim": retention.trim,
        "forget": retention.forget,
        "clean": retention.clean,
    }

    @observe.publishing
    def handler(event: dict[str, Any], context: Any) -> Answer:
        ends = seconds() + context.get_remaining_time_in_millis() / 1000 - _MARGIN_S
        task = event.get("task")
        if "seconds" in event:
            ends = min(ends, seconds() + float(event["seconds"]))
        try:
            if task in SLICE_TASKS:
                return slices.do(event, lambda: seconds() < ends)
            if task == "delete":
                return delete(event, lambda: seconds() < ends)
            gateway, place = event.get("gateway"), event.get("place", "")
            if task not in tasks or not isinstance(gateway, str) or not isinstance(place, str):
                raise ValidationFailed(
                    f"name a task, one of {', '.join((*SLICE_TASKS, *tasks))}, and its gateway",
                    field="task",
                )
            return {"place": "", **tasks[task](gateway, place, lambda: seconds() < ends)}
        except GatewayDeleted:
            return {"place": "", "flushed": "", "finished": True}
        except LakeSyncError as error:
            # The state machine's own record has no room for the errors of single gateways.
            observe.failure(error, task=str(task), gateway=str(event.get("gateway")))
            raise

    return handler


# --- composition ----------------------------------------------------------------------------------


_HOUR_MS: Final = 3_600_000
_DAY_MS: Final = 24 * _HOUR_MS


def retention(settings: RetainSettings) -> tuple[Retention, Slices, DeleteTask]:
    """Return the services behind ``functions/retain``: for one gateway, for many, to delete one."""
    buffer = wiring.buffer(settings)
    one = _of_one(settings, buffer)
    every_ms = settings.checkpoint_every_hours * _HOUR_MS
    slices = Slices(buffer, one, wall_clock=wiring.wall_clock, every_ms=every_ms)
    return one, slices, delete_task(_deleter(settings, buffer), wiring.wall_clock)


def _deleter(settings: RetainSettings, buffer: Buffer) -> Deleter:
    clock, chance = wiring.wall_clock, wiring.Randomness()
    return Deleter(
        buffer,
        wiring.items(settings),
        wiring.store(settings),
        wiring.objects(settings, settings.lake_bucket),
        Declare(buffer, wall_clock=clock, sleep_ms=wiring.sleep_ms, chance=chance),
        wall_clock=clock,
    )


def _of_one(settings: RetainSettings, buffer: Buffer) -> Retention:
    clock = wiring.wall_clock
    objects = wiring.objects(settings, settings.lake_bucket)
    checkpoints = Checkpoints(objects)
    chance = wiring.Randomness()
    declare = Declare(buffer, wall_clock=clock, sleep_ms=wiring.sleep_ms, chance=chance)
    # A deletion is remembered for as long as a cursor may be behind it.
    remembered_days = max(settings.tombstone_keep_days, settings.log_keep_days)
    return Retention(
        buffer,
        ReadBarrier(buffer),
        builder=Builder(
            buffer,
            objects,
            checkpoints,
            wall_clock=clock,
            chunk_bytes=settings.checkpoint_chunk_bytes,
        ),
        trimmer=Trimmer(buffer, wall_clock=clock, keep_ms=settings.log_keep_days * _DAY_MS),
        forgetter=Forgetter(
            buffer, checkpoints, declare, wall_clock=clock, keep_ms=remembered_days * _DAY_MS
        ),
        keeper=Keeper(objects, checkpoints, wall_clock=clock),
        checkpoints=checkpoints,
        lake_rows_min=settings.checkpoint_lake_rows,
    )
