"""The handler of the queue of flushes, and what asks for a flush.

Messages are handled at least once. A failed message is returned to the queue individually; the
others of its batch are done. A message that returns too often is moved to the dead-letter queue.
"""

from __future__ import annotations

import json
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from lakesync.errors import BY_CODE, FlushFailed, InternalError, LakeSyncError, ValidationFailed
from lakesync.runtime import observe

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord

    from lakesync.core.clock import Stamp
    from lakesync.maintenance.flush import FlushReport
    from lakesync.ports import Queue

CloseLanes: TypeAlias = "Callable[[str, Stamp], None]"
"""`lakesync.maintenance.flush.Flusher.close_lanes`."""

FLUSH_NOW_S: Final = 20
"""How long an administrator's flush may take: API Gateway waits 30 s for an answer."""
IF_DUE: Final = "ifDue"
"""The field of a message that requests a flush only if the gateway's declaration has it flushed by
now.
"""
CLOSE_SINCE: Final = "closeLanesSince"
"""The field of a message that requests no flush: nothing happened since this stamp in lanes that
are to be closed.
"""
_MARGIN_S: Final = 60
"""Left of a function's time when a flush begins no other range: one range takes seconds."""


FlushIfDue: TypeAlias = "Callable[[str, Callable[[], bool]], FlushReport]"
"""`lakesync.maintenance.flush.Flusher.flush_if_due`, which knows the time."""


class Flush(Protocol):
    """`lakesync.maintenance.flush.Flusher.flush`."""

    def __call__(self, gateway: str, has_time: Callable[[], bool], table: str = "") -> FlushReport:
        """Announce everything committed so far, or one table's part, while there is time."""
        ...


def flush_request(gateway: str) -> str:
    """Return the message that asks for a gateway to be flushed."""
    return json.dumps({"gateway": gateway})


def scheduled_request(gateway: str) -> str:
    """Return the message that asks for a gateway to be flushed if it is to be by now.

    A release that knows no declarations takes it for one that requests a flush.
    """
    return json.dumps({"gateway": gateway, IF_DUE: True})


def close_request(gateway: str, since: Stamp) -> str:
    """Return the message that requests closing the lanes in which nothing happened since a stamp.

    A release without lanes takes it for one that requests a flush, which does no harm.
    """
    return json.dumps({"gateway": gateway, CLOSE_SINCE: str(since)})


def ask_to_close(queue: Queue) -> Callable[[str, Stamp], None]:
    """Return the function that a flush calls when lanes stay open: it requests closing them.

    Args:
        queue: of flushes; it delays the message for a while.
    """
    return lambda gateway, since: queue.send(close_request(gateway, since))


def ask_for_flush(queue: Callable[[], Queue]) -> Callable[[str], None]:
    """Return the function that requests a flush if a push finds much unflushed; it never fails.

    The push is durable by then, and the schedule flushes in any case.
    """

    def ask(gateway: str) -> None:
        try:
            queue().send(flush_request(gateway))
        except LakeSyncError as error:
            observe.failure(error, task="ask for a flush")

    return ask


def flush_handler(
    flush: Flush, flush_if_due: FlushIfDue, close_lanes: CloseLanes, seconds: Callable[[], float]
) -> observe.Handler:
    """Return the handler of ``functions/flush``: messages from the queue, or one direct request.

    Args:
        flush: flushes one gateway.
        flush_if_due: flushes one if its declaration has it flushed by now.
        close_lanes: closes the lanes of one that are idle.
        seconds: a clock that only goes forward.
    """

    def handler(event: dict[str, Any], context: Any) -> Any:
        ends = seconds() + context.get_remaining_time_in_millis() / 1000 - _MARGIN_S
        try:
            if "Records" in event:
                act = partial(_done, flush, flush_if_due, close_lanes, lambda: seconds() < ends)
                return _handle_all(act, event, context)
            if "seconds" in event:
                ends = min(ends, seconds() + float(event["seconds"]))
            return _flush_one(flush, event, lambda: seconds() < ends)
        finally:
            observe.publish()

    return handler


def _handle_all(act: Callable[[str], bool], event: dict[str, Any], context: Any) -> Any:
    """Do what each message asks for, once, however often it is asked for."""
    # Only this function pays for the import.
    from aws_lambda_powertools.utilities.batch import (  # noqa: PLC0415
        BatchProcessor,
        EventType,
        process_partial_response,
    )

    done = cache(act)

    def handle(record: SQSRecord) -> None:
        if not done(record.body):
            raise FlushFailed("logged where it failed; the message goes back to its queue")

    # A batch that failed whole goes back as one that failed in part: the alarm is on the messages.
    processor = BatchProcessor(EventType.SQS, raise_on_entire_batch_failure=False)
    return process_partial_response(event, handle, processor, context)


def _done(
    flush: Flush, flush_if_due: FlushIfDue, close_lanes: CloseLanes, has_time: Callable[[], bool],
    body: str,
) -> bool:  # fmt: skip
    """Do what a message asks for; False if it has to come again."""
    try:
        request = json.loads(body)
        gateway = _gateway_of(request)
        if since := request.get(CLOSE_SINCE):
            return _closed(close_lanes, gateway, int(since))
        asked = flush_if_due if request.get(IF_DUE) else flush
        outcome = _outcome_of(lambda: asked(gateway, has_time), gateway)
    except Exception as error:  # noqa: BLE001 - one message's bug must not cost its neighbours
        observe.bug(error, message=body[:200])
        observe.count(observe.FLUSHES_FAILED)
        return False
    return not isinstance(outcome, LakeSyncError)


def _closed(close_lanes: CloseLanes, gateway: str, since: Stamp) -> bool:
    """Close a gateway's idle lanes; nothing waits for it, so operational errors are no failure."""
    try:
        close_lanes(gateway, since)
    except LakeSyncError as error:
        observe.failure(error, task="close lanes", gateway=gateway)
        return False
    return True


def _flush_one(
    flush: Flush, request: Mapping[str, Any], has_time: Callable[[], bool]
) -> dict[str, Any]:
    table = str(request.get("table", ""))
    gateway = _gateway_of(request)
    outcome = _outcome_of(lambda: flush(gateway, has_time, table), gateway)
    if isinstance(outcome, LakeSyncError):
        return {"code": outcome.code, "error": outcome.message}
    return {
        "batches": outcome.batches,
        "deltas": outcome.deltas,
        "watermark": str(outcome.watermark),
        "finished": outcome.finished,
    }


def _outcome_of(flush: Callable[[], FlushReport], gateway: str) -> FlushReport | LakeSyncError:
    """Flush a gateway, or a table of it, and count the outcome; returns operational errors."""
    try:
        report = flush()
    except LakeSyncError as error:
        _note_failure(error, gateway)
        return error
    observe.count("BatchesAnnounced", report.batches)
    observe.count("DeltasAnnounced", report.deltas)
    return report


def _note_failure(error: LakeSyncError, gateway: str) -> None:
    observe.failure(error, task="flush", gateway=gateway)
    if not isinstance(error, FlushFailed):
        observe.count(observe.FLUSHES_FAILED)


def _gateway_of(request: object) -> str:
    gateway = request.get("gateway") if isinstance(request, dict) else None
    if not isinstance(gateway, str) or not gateway:
        raise ValidationFailed("a flush request names its gateway", field="gateway")
    return gateway


def flush_and_wait(
    invoke: Callable[[str], tuple[bool, bytes]],
) -> Callable[[str, str], Mapping[str, object]]:
    """Return the function behind ``POST /admin/flush``: flush now, and report what was done.

    Args:
        invoke: hands a request to ``functions/flush``; returns whether it answered, and what.
    """

    def flush_now(gateway: str, table: str) -> Mapping[str, object]:
        of_table = {"table": table} if table else {}
        request = {"gateway": gateway, "seconds": FLUSH_NOW_S, **of_table}
        returned, payload = invoke(json.dumps(request))
        if not returned:
            raise FlushFailed("the flush failed; it is safe to ask again")
        answer = json.loads(payload)
        if "code" in answer:
            raise BY_CODE.get(answer["code"], InternalError)(answer["error"])
        if not answer["finished"]:
            raise FlushFailed("much is waiting, and the flush goes on; ask again in a moment")
        return {name: answer[name] for name in ("batches", "deltas", "watermark")}

    return flush_now
