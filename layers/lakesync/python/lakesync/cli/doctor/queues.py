"""Checks the queues for dead letters, and for messages that wait too long."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from lakesync.cli.commands.replay import QUEUES
from lakesync.cli.doctor.diagnosis import duration, well, wrong
from lakesync.core.plural import plural

if TYPE_CHECKING:
    from lakesync.cli.doctor.deployed import Deployed
    from lakesync.cli.doctor.diagnosis import Diagnosis

_ATTRIBUTES: Final = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible")
_AGE_S_MAX: Final = {"flush": 3_600, "announce": 21_600, "deliver": 7_200}
"""How long a message of each queue may wait, as for the alarms."""
_WINDOW_S: Final = 900
_PERIOD_S: Final = 300


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue and its dead letters."""

    name: str
    messages: int
    dead: int
    oldest_s: float = 0.0


def check_queues(deployed: Deployed) -> list[Diagnosis]:
    """Check every queue that may be replayed."""
    return [state for name in QUEUES for state in queue_state(_queue(deployed, name))]


def _queue(deployed: Deployed, name: str) -> Queue:
    url, dead = (deployed.aws.output(output) for output in QUEUES[name])
    client = deployed.client("sqs")
    return Queue(name, _depth(client, url), _depth(client, dead), _oldest_s(deployed, url))


def _depth(client: Any, url: str) -> int:
    answer = client.get_queue_attributes(QueueUrl=url, AttributeNames=list(_ATTRIBUTES))
    return sum(int(answer["Attributes"].get(name, 0)) for name in _ATTRIBUTES)


def _oldest_s(deployed: Deployed, url: str) -> float:
    now = datetime.fromtimestamp(deployed.now_s, UTC)
    answer = deployed.client("cloudwatch").get_metric_statistics(
        Namespace="AWS/SQS",
        MetricName="ApproximateAgeOfOldestMessage",
        Dimensions=[{"Name": "QueueName", "Value": url.rpartition("/")[2]}],
        StartTime=now - timedelta(seconds=_WINDOW_S),
        EndTime=now,
        Period=_PERIOD_S,
        Statistics=["Maximum"],
    )
    points = sorted(answer["Datapoints"], key=lambda point: point["Timestamp"])
    return float(points[-1]["Maximum"]) if points else 0.0


def queue_state(queue: Queue) -> list[Diagnosis]:
    """Decide by a queue's depth, its dead letters, and how long the oldest message has waited."""
    faults = []
    if queue.dead:
        faults.append(
            wrong(
                f"{queue.name}: {plural(queue.dead, 'message')} given up",
                f"lakesync replay {queue.name} --look says what; mend the cause, then replay",
            )
        )
    if queue.oldest_s > _AGE_S_MAX[queue.name]:
        faults.append(
            wrong(
                f"{queue.name}: {plural(queue.messages, 'message')} waiting, the oldest for "
                f"{duration(queue.oldest_s)}",
                "read the log of the function that takes them: it fails, is throttled or stopped",
            )
        )
    return faults or [well(f"{queue.name}: {plural(queue.messages, 'message')} waiting, none dead")]
