"""One run of the job: all tables with enough waiting deltas, several at once."""

from __future__ import annotations

import json
from concurrent.futures import as_completed
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Final

from lakesync.core.deliveries import announcement
from lakesync.errors import Contention
from lakesync_spark.common.report import reason_of, say
from lakesync_spark.common.scheduling import table_threads

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from pyspark.sql import SparkSession

    from lakesync.core.deliveries import DeliveryPlace
    from lakesync.delivery.deliverer import Delivered, Deliverer
    from lakesync.ports import Queue

TABLES_AT_ONCE_MAX: Final = 4
"""Tables that a run works on at once: each mostly waits for BigQuery."""


@dataclass(slots=True)
class DeliveryReport:
    """What a run did, and what it left."""

    delivered: dict[str, int] = field(default_factory=dict)
    """By table: the deltas that were new there."""
    failed: dict[str, str] = field(default_factory=dict)
    """By table: why it could not go on."""

    def problem(self) -> str:
        """Say in one sentence what somebody must look at; empty if nothing."""
        return "; ".join(f"{table}: {reason}" for table, reason in sorted(self.failed.items()))

    def as_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)


def run(
    spark: SparkSession,
    deliverer: Deliverer,
    places: Callable[[], list[DeliveryPlace]],
    queue: Queue,
    has_time: Callable[[], bool],
) -> DeliveryReport:
    """Process large backlogs until none is left, or time runs out. Safe to repeat and to kill.

    Args:
        places: gives the tables with large backlogs.
        queue: notifies the function of each table: it handles what is left.
    """
    report = DeliveryReport()
    done: set[DeliveryPlace] = set()
    with table_threads(spark, TABLES_AT_ONCE_MAX) as threads:
        while has_time() and (waiting := [one for one in places() if one not in done]):
            at_work = {threads.submit(deliverer.deliver, one, has_time): one for one in waiting}
            for ended in as_completed(at_work):
                place = at_work[ended]
                if not _noted(ended, place, report):
                    done.add(place)
                queue.send(announcement(place.prefix))
    return report


def _noted(ended: Future[Delivered], place: DeliveryPlace, report: DeliveryReport) -> bool:
    """Note what became of a table; tell whether it moved, and may go on."""
    error = ended.exception()
    if error is None:
        deltas = ended.result().deltas
        say("delivered", table=place.prefix, deltas=deltas)
        report.delivered[place.prefix] = report.delivered.get(place.prefix, 0) + deltas
        return deltas > 0
    if not isinstance(error, Exception):
        raise error
    reason = reason_of(error)
    say("left", table=place.prefix, reason=reason)
    if not isinstance(error, Contention):  # which is not a fault
        report.failed[place.prefix] = reason
    return False
