"""The handler of ``functions/materialise``: many announcements, as few runs as do the work.

Runs find what waits by the claims on S3, and share it among themselves, so messages only say that
there is something. How many claims wait decides how many runs there should be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from lakesync.runtime import observe

if TYPE_CHECKING:
    from lakesync.runtime.tasks import Handler

CLAIMS_PER_RUN: Final = 400
"""Claims for which one run is enough: it takes some minutes for them, and a run costs a minute at
the least."""


class Runs(Protocol):
    """The runs of the Glue job, and what waits for them."""

    def waiting(self, enough: int) -> int:
        """Count the claims that wait, or only so many."""
        ...

    def at_work(self) -> int:
        """Count the runs that are at work, or about to be."""
        ...

    def start(self) -> bool:
        """Start a run; False if as many as there may be are at work."""
        ...


def materialise_handler(runs: Runs, runs_max: int) -> Handler:
    """Give the handler of ``functions/materialise``.

    Announcements are done with once a run was started for them, or nothing waits any more. While
    the runs at work are enough they go back to the queue: they may have come too late for those.

    Args:
        runs: the job's.
        runs_max: how many may be at work at once.
    """

    def handler(event: dict[str, Any], context: object) -> dict[str, Any]:  # noqa: ARG001 - AWS's
        waiting = runs.waiting(runs_max * CLAIMS_PER_RUN)
        wanted = min(runs_max, -(-waiting // CLAIMS_PER_RUN))
        at_work = runs.at_work() if wanted else 0
        started = 0
        while at_work + started < wanted and runs.start():
            started += 1
        if started:
            observe.count("RunsStarted", started)
        elif wanted:
            observe.count("RunsAtWork")
        observe.publish()
        left = event["Records"] if wanted and not started else []
        return {"batchItemFailures": [{"itemIdentifier": one["messageId"]} for one in left]}

    return handler
