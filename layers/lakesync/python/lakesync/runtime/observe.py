"""Logs and metrics of the functions, and the figures by which their memory is sized.

Both are written to standard output, so they cost no call: the log as JSON lines, metrics in
CloudWatch's embedded format. Only chosen fields are logged; events and headers contain tokens and
are never logged whole. Traces are Lambda's own (``Tracing: Active``), with the calls of DynamoDB,
which `lakesync.buffer.caller` reports.

Sizing: Lambda's own REPORT lines would cost more than all that the functions log which devices
call, so the template keeps them for the others alone (``SystemLogLevel``). In their place a process
logs its first call, and of the further ones one in a thousand, by a hash of the request's id: a
cent or two a month for 10,000 devices. How memory is sized by them: ``docs/operations.md``.
"""

from __future__ import annotations

import itertools
import os
import resource
import time
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from zlib import crc32

from aws_lambda_powertools import Logger
from aws_lambda_powertools.metrics import Metrics, MetricUnit, single_metric
from aws_lambda_powertools.metrics.provider.cloudwatch_emf.cloudwatch import (
    AmazonCloudWatchEMFProvider,
)

from lakesync.core.destinations import LAKE
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
from lakesync.ports import Usage

if TYPE_CHECKING:
    from collections.abc import Callable

Handler: TypeAlias = "Callable[[dict[str, Any], Any], Any]"
Invoke: TypeAlias = "Callable[[str], tuple[bool, bytes]]"
"""Passes a request to another function; returns whether it answered, and what."""
Seconds: TypeAlias = "Callable[[], float]"
"""A clock that only goes forward."""
NOTHING: Final = Usage()
logger: Final = Logger()
"""JSON lines with the service's name and, within a request, its id."""

_STACK: Final = os.environ.get("STACK_NAME", "none")
_metrics: Final = Metrics(namespace="LakeSync")
# Both dimensions, the service and the stack: see template.yaml.
_metrics.set_default_dimensions(stack=_STACK)
_signals: Final = AmazonCloudWatchEMFProvider(
    namespace="LakeSync", service="", default_dimensions={"stack": _STACK}
)
"""Metrics of the stack, whichever service counts: an alarm on each would cost ten times as much."""
INTERNAL_ERRORS: Final = "InternalErrors"
"""Bugs that were answered with a 500: Lambda itself sees a successful invocation. Alarmed."""
DEPENDENCIES_FAILED: Final = "DependenciesFailed"
"""Times that DynamoDB, S3 or SQS refused, failed or could not be reached. Alarmed if it lasts."""
CONTENDED: Final = "Contended"
"""Requests that lost every race against other writers until their deadline."""
_HELD_BACK: Final = "PushesHeldBack"
FLUSHES_FAILED: Final = "FlushesFailed"
SIGNALS: Final = frozenset(
    {INTERNAL_ERRORS, DEPENDENCIES_FAILED, CONTENDED, _HELD_BACK, FLUSHES_FAILED}
)
"""Metrics of the whole stack, whichever service counts."""
_METRICS: Final[dict[type[LakeSyncError], str]] = {
    InternalError: INTERNAL_ERRORS,
    AdapterFailed: DEPENDENCIES_FAILED,
    FlushFailed: FLUSHES_FAILED,
    Backpressure: _HELD_BACK,
    Contention: CONTENDED,
    RateLimited: "Refused",
    Unavailable: DEPENDENCIES_FAILED,
    LakeSyncError: "Refused",
}
"""The metric that an error is counted as: the entry of the nearest of its classes. Callers' errors
share one metric, as each metric is paid for by the month and the log names each error.
"""


def count(name: str, value: float = 1, unit: str = "Count") -> None:
    """Add to a metric of this service, or of the stack; `publish` writes them out.

    Zero is not counted. A metric that nobody adds to costs nothing.
    """
    if value:
        metrics = _signals if name in SIGNALS else _metrics.provider
        metrics.add_metric(name=name, unit=unit, value=value)


def usage(gateway: str, pushed: Usage = NOTHING, *, pulled: int = 0, bytes_out: int = 0) -> None:
    """Note what one request of a gateway used: the base of a bill.

    As fields of the line in which its metrics are written, which CloudWatch Logs Insights sums by
    gateway; and, if the stack enables it for this one, as metrics of the gateway, which cost $0.30
    a month each. An empty pull is only in the access log.
    """
    if has_metrics(gateway):
        _gateway_metrics(gateway, pushed, pulled, bytes_out)
    fields: dict[str, str | int] = {}
    if pushed.pushes:
        fields = {"pushes": pushed.pushes, "deltasIn": pushed.deltas, "bytesIn": pushed.bytes}
        count("BytesIn", pushed.bytes, "Bytes")
    elif pulled:
        fields = {"pulls": 1, "deltasOut": pulled}
        count("BytesOut", bytes_out, "Bytes")
    if fields:
        for name, value in ({"gateway": gateway, "bytesOut": bytes_out} | fields).items():
            _metrics.add_metadata(key=name, value=value)


def has_metrics(gateway: str) -> bool:
    """Return whether a gateway has metrics of its own (``GATEWAY_METRICS``: no, yes, or a sample).

    A sample is the same gateways always, by a hash of their ids: what is published of one is
    everything, and gateways that are not in it cost nothing.
    """
    share = os.environ.get("GATEWAY_METRICS", "no")
    if share.endswith("%"):
        return crc32(gateway.encode()) % 100 < int(share.removesuffix("%"))
    return share == "yes"


def _gateway_metrics(gateway: str, pushed: Usage, pulled: int, bytes_out: int) -> None:
    """Write one request's usage as metrics whose dimensions are the stack and the gateway.

    The number of pushes is the sample count of ``DeltasIn``, that of pulls that returned deltas the
    sample count of ``DeltasOut``.
    """
    used: dict[str, tuple[MetricUnit, int]] = {}
    if pushed.pushes:
        used["DeltasIn"] = MetricUnit.Count, pushed.deltas
        used["BytesIn"] = MetricUnit.Bytes, pushed.bytes
    if pulled:
        used["DeltasOut"] = MetricUnit.Count, pulled
        used["BytesOut"] = MetricUnit.Bytes, bytes_out
    if not used:
        return
    # Without a service: HTTPS and WebSockets share one metric.
    metrics = AmazonCloudWatchEMFProvider(namespace="LakeSync", service="")
    metrics.add_dimension(name="stack", value=_STACK)
    metrics.add_dimension(name="gateway", value=gateway)
    for name, (unit, value) in used.items():
        metrics.add_metric(name=name, unit=unit, value=value)
    metrics.flush_metrics()


def destination_lag(gateway: str, destination: str, seconds: float, claims: int = 0) -> None:
    """Report how far one destination is behind: a metric of its own, while a claim waits for it."""
    with single_metric(
        name="Lag",
        unit=MetricUnit.Seconds,
        value=seconds,
        namespace="LakeSync",
        default_dimensions={"stack": os.environ.get("STACK_NAME", "none")},
    ) as metric:
        metric.add_dimension(name="gateway", value=gateway)
        metric.add_dimension(name="destination", value=destination)
        if claims:
            metric.add_metadata(key="claims", value=claims)


def lake_lag(gateway: str, seconds: float) -> None:
    """Report how far the lake is behind with one gateway, if it has metrics of its own.

    After each flush all gateways are behind for a while: 10,000 metrics would be $3,000 a month.
    """
    if has_metrics(gateway):
        destination_lag(gateway, LAKE, seconds)


def publish() -> None:
    """Write out what was counted since the last time, as a line or two; nothing if nothing was."""
    if _signals.metric_set:
        # The line says who counted; only its dimensions do not.
        _signals.add_metadata(key="service", value=_metrics.provider.service or "none")
    for provider in (_metrics.provider, _signals):
        if provider.metric_set:
            provider.flush_metrics()
            # With POWERTOOLS_METRICS_DISABLED values are kept, and printed once they are a hundred.
            provider.clear_metrics()


def publishing(handler: Handler) -> Handler:
    """Return the handler that writes out what was counted, however it ends."""

    def published(event: dict[str, Any], context: Any) -> Any:
        try:
            return handler(event, context)
        finally:
            publish()

    return published


def failure(error: LakeSyncError, **where: str) -> None:
    """Log and count an error that a caller receives: as an ERROR if it is a bug of ours."""
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


# --- sizing ---------------------------------------------------------------------------------------


SAMPLED_OF: Final = 1_000
"""Calls of which one is logged."""
MESSAGE: Final = "sized"
"""Of the lines."""
_KB_OF_MB: Final = 1_024


def sized(handler: Handler) -> Handler:
    """Return a handler that logs what some of its calls used; it answers as before."""
    calls = itertools.count()

    def measured(event: dict[str, Any], context: Any) -> Any:
        is_first = next(calls) == 0
        if not (is_first or _is_sampled(getattr(context, "aws_request_id", ""))):
            return handler(event, context)
        begun = time.perf_counter()
        try:
            return handler(event, context)
        finally:
            used = {
                "durationMs": round(1_000 * (time.perf_counter() - begun), 1),
                # The most that the process had so far, as Lambda's reports have it.
                "memoryMb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // _KB_OF_MB,
                "memorySizeMb": int(os.environ.get("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "0")),
                "coldStart": int(is_first),
            }
            logger.info(MESSAGE, extra=used)

    return measured


def _is_sampled(request_id: str) -> bool:
    return crc32(request_id.encode()) % SAMPLED_OF == 0
