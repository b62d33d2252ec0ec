"""The handler of ``functions/materialise``: many announcements, few runs.

Runs find waiting batches by the claims on S3, and share them, so a message only announces that
there is something. Small batches are written into the lake here, at once and without a run; for the
others, the number of claims decides how many runs there should be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from lakesync.runtime import observe

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lakesync.materialise.small_batches import Taken
    from lakesync.runtime.tasks import Handler

CLAIMS_PER_RUN: Final = 400
"""Claims for which one run is enough: it takes some minutes for them, and a run costs a minute at
the least.
"""
SMALL_TRIES_MAX: Final = 3
"""How often an announcement may have been received for its batches to be taken here: after that, a
batch that stops the function, for whatever reason, is left to Spark.
"""


SMALL_FAULTS: Final = "SmallBatchFaults"
"""Tables that the function failed at: a run does them, at the price of one. Alarmed if it lasts."""
LAKE_LAG: Final = "LakeLag"
"""How long the oldest batch has waited for the lake. Alarmed."""


class Small(Protocol):
    """What takes small batches without a run: `lakesync.materialise.small_batches`."""

    def take(self, seconds_left: Callable[[], float]) -> Taken:
        """Bring what waits into the lake, if it is small."""
        ...


class Runs(Protocol):
    """The runs of the Glue job, and what waits for them."""

    def waiting(self, enough: int) -> int:
        """Count the claims that wait, or only so many."""
        ...

    def oldest(self) -> Mapping[str, float]:
        """Return by gateway how long its oldest claim has waited, in seconds."""
        ...

    def at_work(self) -> int:
        """Count the runs that are at work, or about to be."""
        ...

    def start(self) -> bool:
        """Start a run; False if as many as there may be are at work."""
        ...


def materialise_handler(runs: Runs, runs_max: int, small: Small | None = None) -> Handler:
    """Return the handler of ``functions/materialise``.

    Announcements are completed once the waiting batches are in the lake, or a run was started for
    them, or only merges of what is in changes tables wait, which a later announcement or the sweep
    does. While enough runs are at work, or another function is, they return to the queue: they may
    have arrived too late for those.

    An event that is not from a queue is from a schedule: it asks how far behind the lake is, which
    is reported whatever has become of announcements and runs.

    Args:
        runs: the job's.
        runs_max: how many may be at work at once.
        small: writes small batches; None if only runs do.
    """

    def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
        if "Records" not in event:
            return _tell_lag(runs.oldest())
        waiting = runs.waiting(runs_max * CLAIMS_PER_RUN)
        at_work = runs.at_work() if waiting else 0
        if small is not None and waiting and not at_work and not _is_tried(event):
            taken = small.take(lambda: context.get_remaining_time_in_millis() / 1000)
            _tell(taken)
            if not taken.left:
                return _answer(event, again=taken.busy)
            waiting = runs.waiting(runs_max * CLAIMS_PER_RUN)
        wanted = min(runs_max, -(-waiting // CLAIMS_PER_RUN))
        started = 0
        while at_work + started < wanted and runs.start():
            started += 1
        if started:
            observe.count("RunsStarted", started)
        elif wanted:
            observe.count("RunsAtWork")
        return _answer(event, again=bool(wanted and not started))

    return handler


def _answer(event: dict[str, Any], *, again: bool) -> dict[str, Any]:
    observe.publish()
    left = event["Records"] if again else []
    return {"batchItemFailures": [{"itemIdentifier": one["messageId"]} for one in left]}


def _tell(taken: Taken) -> None:
    observe.count("SmallBatchDeltas", taken.deltas)
    observe.count("SmallBatchesLeft", len(taken.left))
    observe.count(SMALL_FAULTS, taken.faults)
    observe.count("MergesWaiting", len(taken.merges))
    if taken.left:
        say = observe.logger.warning if taken.faults else observe.logger.info
        say("left to a Glue run", extra={"reasons": taken.left})


def _tell_lag(oldest: Mapping[str, float]) -> dict[str, Any]:
    """Report how far the lake is behind: the greatest lag, and each gateway's if requested."""
    behind = max(oldest, key=lambda gateway: oldest[gateway], default=None)
    if behind is not None:
        observe.count(LAKE_LAG, max(oldest[behind], 0.001), "Seconds")
        observe.logger.info("waiting for the lake", extra={"gateway": behind, "of": len(oldest)})
    for gateway, seconds in oldest.items():
        observe.lake_lag(gateway, seconds)
    observe.publish()
    return {"waiting": len(oldest)}


def _is_tried(event: dict[str, Any]) -> bool:
    """Return whether an announcement returned so often that the function may be the cause."""
    received = (
        one.get("attributes", {}).get("ApproximateReceiveCount") for one in event["Records"]
    )
    return any(int(count or 1) > SMALL_TRIES_MAX for count in received)
