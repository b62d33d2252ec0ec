"""The Glue job: reads what is large of a flow from or to a database.

Arguments: ``--settings``, the environment of ``functions/flow`` as JSON, and ``--region``; of each
run ``--gateway``, ``--name`` and ``--lease``, what was handed over to it, and ``--machine``, the
state machine that did so, and which is started again for what is left. The last line is a JSON
summary; the run fails if something could not be read. Law Y11: ``docs/spec/flows.md``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lakesync.runtime import wiring_connectors
from lakesync.runtime.settings import PollSettings, load
from lakesync_spark.common.session import start_session
from lakesync_spark.flows.arguments import parse_flow_arguments
from lakesync_spark.flows.stretches import SparkStretches

if TYPE_CHECKING:
    from lakesync.connectors.large_polls import Work
    from lakesync.connectors.poll import Route

TAKING_S_MAX: Final = 4 * 3_600
"""How long a run begins stretches. It ends by itself long before its job's time-out; another run is
asked for what it leaves."""
_STRETCHES_PER_CORE: Final = 4
"""Stretches that are given out at a time: the last of them end at about the same time."""


# Without slots: a script runs as ``__main__``, so Spark sends the class itself, and Spark 3.5 loses
# the fields of one with slots.
@dataclass(frozen=True)
class OpenRoute:
    """Opens from where to where a flow goes, wherever it is sent: it has names of secrets alone."""

    settings: PollSettings

    def __call__(self, work: Work) -> Route:
        """Return the route; nothing is connected yet.

        Raises:
            LakeSyncError: a secret cannot be read, or says nothing that can be opened.
        """
        os.environ.setdefault("AWS_DEFAULT_REGION", self.settings.region)
        return wiring_connectors.route(self.settings, work.gateway, work.name, work.definition)


def main() -> None:
    """Do one run."""
    arguments = parse_flow_arguments(sys.argv[1:])
    # Nobody else says in a job which region it is in.
    os.environ.setdefault("AWS_DEFAULT_REGION", arguments.region)
    given = {**os.environ, "AWS_REGION": arguments.region, **arguments.settings}
    settings = load(PollSettings, given)
    spark = start_session("move_flow", {})  # no table of the lake is read
    ends = time.monotonic() + TAKING_S_MAX
    brought = wiring_connectors.large_polls(settings).take_over(
        arguments.gateway,
        arguments.name,
        arguments.lease,
        SparkStretches(spark, OpenRoute(settings)),
        _STRETCHES_PER_CORE * spark.sparkContext.defaultParallelism,
        lambda: time.monotonic() < ends,
    )
    if brought.is_mine:
        wiring_connectors.poll_now(settings, arguments.machine, arguments.gateway, arguments.name)
    summary = {"gateway": arguments.gateway, "name": arguments.name, "rows": brought.rows}
    print(json.dumps(summary), flush=True)  # noqa: T201 - the run's result
    if brought.error is not None:
        sys.exit(f"{brought.error.code}: {brought.error}")


if __name__ == "__main__":
    main()
