"""Logs and metrics, once per cold start.

Both go to standard output, so they cost no call: the log as JSON lines, metrics in CloudWatch's
embedded format. What is logged is chosen word by word; events and headers carry tokens and are
never logged whole. Traces are Lambda's own (``Tracing: Active``): the X-Ray SDK would add a tenth
of a second to every cold start, and is in maintenance only.
"""

from __future__ import annotations

from typing import Final

from aws_lambda_powertools import Logger
from aws_lambda_powertools.metrics import Metrics

logger: Final = Logger()
"""JSON lines with the service's name and, within a request, its id."""

_metrics: Final = Metrics(namespace="LakeSync")
INTERNAL_ERRORS: Final = "InternalErrors"
"""Bugs that were answered with a 500: Lambda itself sees a successful invocation. Alarmed."""


def count(name: str, value: float = 1, unit: str = "Count") -> None:
    """Add to a metric of this service; `publish` writes them out."""
    _metrics.add_metric(name=name, unit=unit, value=value)


def publish() -> None:
    """Write out what was counted since the last time, as one line; nothing if nothing was."""
    if _metrics.provider.metric_set:
        _metrics.flush_metrics()


def bug(error: BaseException, **where: str) -> None:
    """Log an unexpected exception with its trace, and count it for the alarm."""
    logger.error("unexpected exception", exc_info=error, extra={"where": where})
    count(INTERNAL_ERRORS)
