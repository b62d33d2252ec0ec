"""Checks how far each stage is behind: the flush of the buffer, and the lake's tables."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final

from lakesync.cli.doctor.diagnosis import duration, unchecked, well, wrong
from lakesync.core.claims import CLAIMS, CLAIMS_FAILED
from lakesync.core.plural import plural

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lakesync.cli.doctor.deployed import Deployed
    from lakesync.cli.doctor.diagnosis import Diagnosis

_GATEWAYS_MAX: Final = 500
"""Gateways that are checked, for a few read units each; it is reported if there are more."""
_NAMED_MAX: Final = 5
_CLAIMS_MAX: Final = 5_000
"""Claims that are read: five listings."""
_FLUSH_EVERY_MIN: Final = 15
_SWEEP_EVERY_MIN: Final = 30
_AT_WORK_S: Final = 900
"""The time that a flush may take beyond its interval, for queueing and retries."""
_RUN_S: Final = 7_200
"""A Glue run's time-out."""
_OVER: Final = frozenset({"SUCCEEDED", "FAILED", "TIMEOUT", "ERROR", "STOPPED"})


@dataclass(frozen=True, slots=True)
class Waiting:
    """The batches that wait for the Glue job, or that it set aside."""

    claims: int
    oldest_s: float
    set_aside: int
    more: bool = False


def check_buffer_lag(deployed: Deployed) -> list[Diagnosis]:
    """Check how long the oldest unflushed edit of each gateway has waited."""
    from lakesync.gateway.metrics import metrics
    from lakesync.maintenance.due import due_slices

    buffer = deployed.aws.buffer(deployed.aws.output("BufferTable"))
    # Only gateways with unflushed commits, by the index that the schedule reads too.
    due = (gateway for some in due_slices(buffer) for gateway in some.gateways)
    now_ms = int(deployed.now_s * 1000)
    ages_s = {
        gateway: int(str(metrics(buffer, gateway, None, now_ms)["unflushedAgeMs"])) / 1000
        for gateway in islice(due, _GATEWAYS_MAX)
    }
    allowed_s = deployed.number("FlushEveryMinutes", _FLUSH_EVERY_MIN) * 60 + _AT_WORK_S
    return buffer_lag(ages_s, allowed_s, more=next(due, None) is not None)


def buffer_lag(ages_s: Mapping[str, float], allowed_s: float, *, more: bool) -> list[Diagnosis]:
    """Decide by the age of each gateway's oldest unflushed edit, and whether there are more."""
    late = sorted((gateway for gateway, age in ages_s.items() if age > allowed_s))
    unseen = [
        unchecked(
            f"more than {plural(len(ages_s), 'gateway')} with edits to flush: not all looked at",
            "the alarm on the age of the oldest unflushed edit watches all of them",
        )
    ]
    if late:
        worst_s = max(ages_s[gateway] for gateway in late)
        state = wrong(
            f"{plural(len(late), 'gateway')} not flushed in time, the oldest edit for "
            f"{duration(worst_s)}: {', '.join(late[:_NAMED_MAX])}",
            "lakesync flush --gateway NAME, and read the log of FlushFunction; past "
            "what FlushBounds allow pushes are refused",
        )
    else:
        oldest_s = max(ages_s.values(), default=0.0)
        state = well(
            f"{plural(len(ages_s), 'gateway')} with edits to flush, the oldest for "
            f"{duration(oldest_s)}"
        )
    return [state, *(unseen if more else [])]


def check_lake_lag(deployed: Deployed) -> list[Diagnosis]:
    """Check how long announced batches have waited for the Glue job, and how its runs ended."""
    waiting = _waiting(deployed)
    allowed_s = deployed.number("SweepEveryMinutes", _SWEEP_EVERY_MIN) * 60 + _RUN_S
    runs = deployed.client("glue").get_job_runs(
        JobName=deployed.aws.output("GlueJobName"), MaxResults=20
    )["JobRuns"]
    latest = sorted(runs, key=lambda run: run["StartedOn"], reverse=True)
    return lake_lag(waiting, allowed_s, [run["JobRunState"] for run in latest])


def _waiting(deployed: Deployed) -> Waiting:
    listing = deployed.client("s3").get_paginator("list_objects_v2")
    bucket = deployed.aws.output("LakeBucket")

    def objects(prefix: str) -> list[float]:
        pages = listing.paginate(Bucket=bucket, Prefix=prefix)
        times = (item["LastModified"].timestamp() for p in pages for item in p.get("Contents", []))
        return list(islice(times, _CLAIMS_MAX))

    claims = objects(CLAIMS)
    oldest_s = max(deployed.now_s - min(claims), 0.0) if claims else 0.0
    return Waiting(len(claims), oldest_s, len(objects(CLAIMS_FAILED)), len(claims) == _CLAIMS_MAX)


def lake_lag(waiting: Waiting, allowed_s: float, runs: Sequence[str]) -> list[Diagnosis]:
    """Decide by what waits, and by the states of the runs, latest first."""
    return [_waits(waiting, allowed_s), *_set_aside(waiting.set_aside), *_runs(runs)]


def _waits(waiting: Waiting, allowed_s: float) -> Diagnosis:
    count = f"{plural(waiting.claims, 'batch')}{' or more' if waiting.more else ''}"
    if waiting.oldest_s > allowed_s:
        return wrong(
            f"{count} waiting for the lake, one for {duration(waiting.oldest_s)}",
            "read the job's log (/aws-glue/STACK/error), then start SweepStateMachineArn; nothing "
            "is lost before the first of LakeKeepDays",
        )
    return well(f"{count} waiting for the lake, the oldest for {duration(waiting.oldest_s)}")


def _set_aside(count: int) -> list[Diagnosis]:
    if not count:
        return []
    return [
        wrong(
            f"{plural(count, 'batch')} could not be applied to the lake, and were set aside",
            "lakesync replay claims --look says why, for each gateway; mend it, then replay",
        )
    ]


def _runs(states: Iterable[str]) -> list[Diagnosis]:
    over = next((state for state in states if state in _OVER), None)
    if over is None:
        return [well("the Glue job has not ended a run yet")]
    if over != "SUCCEEDED":
        return [
            wrong(
                f"the latest run of the Glue job ended as {over}",
                "read its log, /aws-glue/STACK/error; the sweep takes its batches up again",
            )
        ]
    return [well("the latest run of the Glue job succeeded")]
