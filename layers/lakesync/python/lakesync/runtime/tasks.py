"""Tasks of gateways that requests and schedules begin: flushes, and deletion.

Messages of the queue of flushes are handled at least once. A failed message is returned to the
queue individually; the others of its batch are done. A message that returns too often is moved to
the dead-letter queue.

The schedule's handler is called every minute, and takes the gateways whose minute of the interval
it is: by a hash of their ids, so that a thousand gateways are not flushed at once, and each of them
is asked for an interval after the time before. Its cost and duration depend on the gateways that
are due, not on those that exist: 10,000 due gateways are ten reads and a thousand calls of the
queue, some seconds. A run whose time is over passes its position to the next one. The next tick
repeats a run that died, from the beginning: a surplus message causes a flush that finds nothing.

A gateway is deleted by ``functions/retain``: here are the task, and how its answer is waited for.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from lakesync.core.clock import place_in, stamp_ms
from lakesync.core.wording import utc_text
from lakesync.errors import (
    BY_CODE,
    AdapterFailed,
    FlushFailed,
    InternalError,
    LakeSyncError,
    ValidationFailed,
)
from lakesync.runtime import observe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord

    from lakesync.core.clock import Stamp
    from lakesync.maintenance.erasure import Deleter, DeletionReport
    from lakesync.maintenance.flush import FlushReport
    from lakesync.ports import GatewaySlice, Queue, WallClock
    from lakesync.runtime.observe import Handler, Invoke, Seconds

    Answer: TypeAlias = Mapping[str, object]
    HasTime: TypeAlias = Callable[[], bool]
    DeleteTask: TypeAlias = Callable[[Mapping[str, Any], HasTime], Answer]
    DeleteNow: TypeAlias = Callable[[str, str], Answer]

# --- the queue of flushes -------------------------------------------------------------------------


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
    """Return the function that a flush calls when lanes stay open: it requests closing them."""
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
    flush: Flush, flush_if_due: FlushIfDue, close_lanes: CloseLanes, seconds: Seconds
) -> observe.Handler:
    """Return the handler of ``functions/flush``: messages from the queue, or one direct request."""

    @observe.publishing
    def handler(event: dict[str, Any], context: Any) -> Any:
        ends = seconds() + context.get_remaining_time_in_millis() / 1000 - _MARGIN_S
        if "Records" in event:
            act = partial(_done, flush, flush_if_due, close_lanes, lambda: seconds() < ends)
            return _handle_all(act, event, context)
        if "seconds" in event:
            ends = min(ends, seconds() + float(event["seconds"]))
        return _flush_one(flush, event, lambda: seconds() < ends)

    return handler


def _handle_all(act: Callable[[str], bool], event: dict[str, Any], context: Any) -> Any:
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
    invoke: Invoke,
) -> Callable[[str, str], Mapping[str, object]]:
    """Return the function behind ``POST /admin/flush``: flush now, and report what was done."""

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


# --- the schedule of flushes ----------------------------------------------------------------------


MESSAGES_MAX: Final = 10
"""Messages of one call of SQS."""
SENDERS_MAX: Final = 8
"""Concurrent calls of the queue: a thousand messages take some 2 s, and the queue's client keeps
ten connections.
"""
UNFLUSHED_AGE: Final = "UnflushedAge"
"""How long the oldest unflushed commit has waited. Alarmed."""
_SCHEDULE_MARGIN_S: Final = 15
"""Left of a function's time when it begins no other slice: one takes some seconds."""


def schedule_handler(
    due: Callable[[str], Iterator[GatewaySlice]],
    send_all: Callable[[Sequence[str]], None],
    go_on: Callable[[str, str], None],
    seconds: Seconds,
    wall_clock: Callable[[], int],
    every_minutes: int = 1,
) -> Handler:
    """Return the handler of ``functions/schedule_flush``.

    ``send_all`` takes `MESSAGES_MAX` messages at once. ``go_on`` starts the function of an ARN at a
    position, without waiting for it.
    """

    @observe.publishing
    def handler(event: dict[str, Any], context: Any) -> dict[str, object]:
        ends = seconds() + context.get_remaining_time_in_millis() / 1000 - _SCHEDULE_MARGIN_S
        place = event.get("place", "")
        if not isinstance(place, str):
            raise ValidationFailed("the place to go on at is text", field="place")
        at, count = event.get("at", ""), 0
        is_turn = _turn(at, every_minutes, wall_clock())
        try:
            for some in due(place):
                _note_age(some, wall_clock())
                gateways = [gateway for gateway in some.gateways if is_turn(gateway)]
                _send(send_all, gateways)
                count += len(gateways)
                if some.place and seconds() > ends:
                    # By the alias that it was called by: the same release goes on.
                    further = json.dumps({"place": some.place, "at": at})
                    go_on(context.invoked_function_arn, further)
                    return {"due": count, "finished": False}
            return {"due": count, "finished": True}
        finally:
            observe.count("GatewaysDue", count)

    return handler


def _turn(at: object, every_minutes: int, now_ms: int) -> Callable[[str], bool]:
    """Return what says whether it is a gateway's turn.

    Args:
        at: the time for which a tick was scheduled, not when it came: ticks may be late, but no two
            are of one minute. If there is none, somebody asks for all that is due.
        every_minutes: the interval.
        now_ms: the time that counts where the scheduler has put in none.
    """
    if not at:
        return lambda _: True
    try:
        seconds = datetime.fromisoformat(str(at)).timestamp()
    except ValueError:
        seconds = now_ms / 1000
    minute = int(seconds) // 60 % every_minutes
    return lambda gateway: place_in(every_minutes, gateway) == minute


def _note_age(some: GatewaySlice, now_ms: int) -> None:
    """Record how long the oldest commit of a slice has waited; the alarm is on the greatest."""
    if some.oldest:
        observe.count(UNFLUSHED_AGE, max(now_ms - stamp_ms(some.oldest), 1) / 1000, "Seconds")


def _send(send_all: Callable[[Sequence[str]], None], gateways: Sequence[str]) -> None:
    """Send a message for each gateway; all are attempted, and refused ones are raised."""
    bodies = [scheduled_request(gateway) for gateway in gateways]
    with ThreadPoolExecutor(max_workers=SENDERS_MAX) as pool:
        calls = [
            pool.submit(send_all, bodies[at : at + MESSAGES_MAX])
            for at in range(0, len(bodies), MESSAGES_MAX)
        ]
    for call in calls:
        call.result()


# --- deletion -------------------------------------------------------------------------------------


DELETE_NOW_S: Final = 20
"""How long one request may take to delete: API Gateway waits 30 s for an answer."""


def delete_task(deleter: Deleter, wall_clock: WallClock) -> DeleteTask:
    """Return the task: ``{"gateway": …, "by": …}``. Operational failures are part of its answer."""

    def task(event: Mapping[str, Any], has_time: HasTime) -> Answer:
        gateway, by = event.get("gateway"), event.get("by")
        if not isinstance(gateway, str) or not isinstance(by, str):
            raise ValidationFailed("name the gateway to delete, and who asks", field="gateway")
        try:
            report = deleter.delete(gateway, by=by, has_time=has_time)
        except LakeSyncError as error:
            observe.failure(error, task="delete", gateway=gateway)
            return {"code": error.code, "error": error.message}
        return _shown(report, wall_clock())

    return task


def _shown(report: DeletionReport, now_ms: int) -> Answer:
    return {
        "deletedAt": _at(report.deleted_ms),
        "finished": report.finished,
        "left": dict(report.left),
        "gone": report.is_gone,
        "proved": report.is_gone and now_ms >= report.final_ms,
        "provableFrom": _at(report.final_ms),
    }


def _at(ms: int) -> str:
    return utc_text(ms + 999)  # rounded up: a proof is not announced for too early a second


def delete_and_wait(invoke: Invoke) -> DeleteNow:
    """Get the function behind ``DELETE /admin/gateways``: go on deleting, and report progress."""

    def delete_now(gateway: str, by: str) -> Mapping[str, object]:
        request = {"task": "delete", "gateway": gateway, "by": by, "seconds": DELETE_NOW_S}
        returned, payload = invoke(json.dumps(request))
        if not returned:
            raise AdapterFailed("the deletion failed; it is safe to ask again")
        answer: dict[str, object] = json.loads(payload)
        if "code" in answer:
            raise BY_CODE.get(str(answer["code"]), InternalError)(str(answer["error"]))
        return answer

    return delete_now
