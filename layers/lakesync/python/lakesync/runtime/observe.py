"""Logs and metrics of the functions.

Both go to standard output, so they cost no call: the log as JSON lines, metrics in CloudWatch's
embedded format. What is logged is chosen word by word; events and headers carry tokens and are
never logged whole. Traces are Lambda's own (``Tracing: Active``): the X-Ray SDK would add a tenth
of a second to every cold start, and is in maintenance only.
"""

from __future__ import annotations

from typing import Final

from aws_lambda_powertools import Logger
from aws_lambda_powertools.metrics import Metrics

from lakesync.errors import (
    AdapterFailed,
    Backpressure,
    Contention,
    FlushFailed,
    InternalError,
    LakeSyncError,
    RateLimited,
    Unavailable,
)

logger: Final = Logger()
"""JSON lines with the service's name and, within a request, its id."""

_metrics: Final = Metrics(namespace="LakeSync")
INTERNAL_ERRORS: Final = "InternalErrors"
"""Bugs that were answered with a 500: Lambda itself sees a successful invocation. Alarmed."""
DEPENDENCIES_FAILED: Final = "DependenciesFailed"
"""Times that DynamoDB, S3 or SQS refused, failed or could not be reached. Alarmed if it lasts."""
CONTENDED: Final = "Contended"
"""Requests that lost every race against other writers: a table that needs more lanes."""
_METRICS: Final[dict[type[LakeSyncError], str]] = {
    InternalError: INTERNAL_ERRORS,
    AdapterFailed: DEPENDENCIES_FAILED,
    FlushFailed: "FlushesFailed",
    Backpressure: "PushesHeldBack",
    Contention: CONTENDED,
    RateLimited: "Refused",
    Unavailable: DEPENDENCIES_FAILED,
    LakeSyncError: "Refused",
}
"""What an error is counted as: the entry of the nearest of its classes. What callers do wrong is
one metric, as each is paid for by the month and the log tells them apart."""


def count(name: str, value: float = 1, unit: str = "Count") -> None:
    """Add to a metric of this service; `publish` writes them out."""
    _metrics.add_metric(name=name, unit=unit, value=value)


def publish() -> None:
    """Write out what was counted since the last time, as one line; nothing if nothing was."""
    if _metrics.provider.metric_set:
        _metrics.flush_metrics()


def failure(error: LakeSyncError, **where: str) -> None:
    """Log and count an error that a caller is answered: as an ERROR if it is a bug of ours."""
    metric = next(_METRICS[kind] for kind in type(error).__mro__ if kind in _METRICS)
    if metric == INTERNAL_ERRORS:
        bug(error, **where)
        return
    count(metric)
    if metric == "Refused":
        logger.info("refused", extra={"code": error.code, "field": error.field})
    else:
        extra = {"code": error.code, "reason": error.message, "where": where}
        logger.warning("failed", extra=extra)


def bug(error: BaseException, **where: str) -> None:
    """Log an unexpected exception with its trace, and count it for the alarm."""
    logger.error("unexpected exception", exc_info=error, extra={"where": where})
    count(INTERNAL_ERRORS)
