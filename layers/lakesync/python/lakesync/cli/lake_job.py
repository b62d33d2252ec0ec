"""Starts runs of the job that maintains the lake's tables, and waits for their reports."""

from __future__ import annotations

import json
import time
import uuid
from typing import TYPE_CHECKING, Any, Final

from lakesync.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lakesync.cli.session import Session

_POLL_S: Final = 2.0
_AT_WORK: Final = frozenset({"STARTING", "RUNNING", "STOPPING", "WAITING"})


def run_job(
    session: Session, only: str, timeout_s: float, arguments: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Run the stack's job on one gateway, or on one table of it; return its report.

    Args:
        session: the command's.
        only: the gateway, or ``gateway/table``.
        timeout_s: how long to wait.
        arguments: further arguments of the job.

    Raises:
        Unavailable: it failed, or takes longer; what it has done stays done.
    """
    glue, job = session.aws.client("glue"), session.aws.output("MaintainJobName")
    report_key = f"maintenance/{uuid.uuid4().hex}.json"
    given = {"--only": only, "--report_key": report_key, **(arguments or {})}
    ends = time.monotonic() + timeout_s
    run_id = _started(glue, job, given, ends)
    with session.out.progress(f"the Glue run {run_id[:12]} is at work …"):
        while (run := glue.get_job_run(JobName=job, RunId=run_id)["JobRun"])[
            "JobRunState"
        ] in _AT_WORK:
            if time.monotonic() > ends:
                raise Unavailable(
                    f"the Glue run {run_id} is still at work after {timeout_s:.0f} s, and goes on "
                    "by itself; look again with `lakesync lake status`"
                )
            time.sleep(_POLL_S)
    if run["JobRunState"] != "SUCCEEDED":
        raise Unavailable(
            f"the Glue run {run_id} ended as {run['JobRunState']}: "
            f"{run.get('ErrorMessage', '').strip() or 'see its log'}; what it did is done"
        )
    body = session.aws.client("s3").get_object(
        Bucket=session.aws.output("LakeBucket"), Key=report_key
    )["Body"]
    report: dict[str, Any] = json.loads(body.read())
    return report


def keep_days(session: Session) -> int:
    """Return the number of days for which the job keeps snapshots."""
    job = session.aws.client("glue").get_job(JobName=session.aws.output("MaintainJobName"))["Job"]
    return int(job["DefaultArguments"]["--snapshot_keep_days"])


def _started(glue: Any, job: str, given: Mapping[str, str], ends: float) -> str:
    """Start a run as soon as the limit of concurrent runs allows.

    Raises:
        Unavailable: the limit was reached all the time.
    """
    while True:
        try:
            run_id: str = glue.start_job_run(JobName=job, Arguments=given)["JobRunId"]
        except glue.exceptions.ConcurrentRunsExceededException as exc:
            if time.monotonic() > ends:
                raise Unavailable(
                    f"as many runs of {job} are at work as may be; repeat it when one has ended"
                ) from exc
            time.sleep(_POLL_S)
        else:
            return run_id
