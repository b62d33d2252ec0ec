"""The handler of ``functions/notify``: the stream of the buffer's table, and the sweep.

A batch of the stream is handled gateway by gateway; each has its share of the remaining time, so
that none waits for another's connections. Lambda retries what fails, or had no time, for some
minutes, and then gives up: clients pull what they missed.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from lakesync.buffer.stream import changes_of
from lakesync.errors import GatewayDeleted, LakeSyncError, Retry
from lakesync.runtime import observe

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.gateway.broadcast import Broadcaster
    from lakesync.gateway.sweep import ConnectionSweep
    from lakesync.runtime.observe import Handler

_MARGIN_MS: Final = 10_000
"""Left of a function's time when no further frame is sent: one without an answer takes 6 s."""


def notify_handler(broadcaster: Broadcaster, sweep: ConnectionSweep) -> Handler:
    """Return the handler of the stream's batches, and of the schedule's ticks."""

    def handler(event: dict[str, Any], context: Any) -> dict[str, object]:
        try:
            if "Records" in event:
                return _notify(broadcaster, event["Records"], context)
            return {"closed": sweep.sweep(_share(context, 1))}
        finally:
            try:
                broadcaster.drain()
            finally:
                observe.publish()

    return handler


def _notify(
    broadcaster: Broadcaster, records: list[dict[str, Any]], context: Any
) -> dict[str, object]:
    changes = changes_of(records)
    owner = str(records[0].get("eventID", ""))
    tasks: list[Callable[[Callable[[], bool]], bool]] = [
        partial(broadcaster.close_revoked, gateway, kind, name)
        for gateway, kind, name in changes.revocations
    ]
    tasks += [
        partial(
            broadcaster.notify,
            gateway,
            changes.commits.get(gateway, 0),
            owner,
            rules_changed=gateway in changes.configs,
        )
        for gateway in sorted(changes.commits.keys() | changes.configs)
    ]
    again: list[LakeSyncError] = []
    is_whole = True
    for number, task in enumerate(tasks):
        is_done, errors = _tried(task, _share(context, len(tasks) - number))
        is_whole, again = is_whole and is_done, again + errors
    if again:
        raise again[0]  # the whole batch comes again; what is done is not done twice
    failures = []
    if not is_whole:
        observe.count("BroadcastsHandedOn")
        failures = [{"itemIdentifier": records[0]["dynamodb"]["SequenceNumber"]}]
    return {"gateways": len(changes.commits), "batchItemFailures": failures}


def _share(context: Any, parts: int) -> Callable[[], bool]:
    """Return a function that tells whether time is left of one of ``parts`` equal shares."""
    left_ms = context.get_remaining_time_in_millis()
    ends_ms = left_ms - max(left_ms - _MARGIN_MS, 0) / parts
    return lambda: context.get_remaining_time_in_millis() > ends_ms


def _tried(
    task: Callable[[Callable[[], bool]], bool], has_time: Callable[[], bool]
) -> tuple[bool, list[LakeSyncError]]:
    """Do something; returns whether it is done, and returns the error if it may succeed later.

    What failed keeps no neighbour.
    """
    try:
        return task(has_time), []
    except GatewayDeleted:
        return True, []  # its connections are closed by its revocation
    except LakeSyncError as error:
        observe.failure(error, task="notify")
        return True, [error] if error.retry is Retry.LATER else []
