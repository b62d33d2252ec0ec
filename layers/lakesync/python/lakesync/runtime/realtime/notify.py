"""The handler of ``functions/notify``: the stream of the buffer's table, and the sweep.

A batch of the stream is taken up gateway by gateway. What fails is tried again by Lambda for a
minute, and then given up: clients pull what they missed.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from lakesync.buffer.stream import changes_of
from lakesync.errors import GatewayDeleted, LakeSyncError, Retry
from lakesync.runtime import observe

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.gateway.broadcast import Broadcaster
    from lakesync.runtime.tasks import Handler

_MARGIN_MS = 10_000
"""Left of a function's time when the sweep reads no further."""


def notify_handler(broadcaster: Broadcaster) -> Handler:
    """Give the handler of the stream's batches, and of the schedule's ticks."""

    def handler(event: dict[str, Any], context: Any) -> dict[str, object]:
        try:
            if "Records" in event:
                return _notify(broadcaster, event["Records"])
            closed = broadcaster.sweep(lambda: context.get_remaining_time_in_millis() > _MARGIN_MS)
            return {"closed": closed}
        finally:
            observe.publish()

    return handler


def _notify(broadcaster: Broadcaster, records: list[dict[str, Any]]) -> dict[str, object]:
    changes = changes_of(records)
    owner = str(records[0].get("eventID", ""))
    again: list[LakeSyncError] = []
    for gateway, kind, name in changes.revocations:
        again += _tried(partial(broadcaster.shut_out, gateway, kind, name))
    for gateway in changes.commits.keys() | changes.configs:
        commit, changed = changes.commits.get(gateway, 0), gateway in changes.configs
        again += _tried(partial(broadcaster.notify, gateway, commit, owner, rules_changed=changed))
    if again:
        raise again[0]  # the whole batch comes again; what is done is not done twice
    return {"gateways": len(changes.commits)}


def _tried(call: Callable[[], None]) -> list[LakeSyncError]:
    """Make a call; gives the error if it may succeed later. What failed keeps no neighbour."""
    try:
        call()
    except GatewayDeleted:
        return []  # its connections are closed by its revocation
    except LakeSyncError as error:
        observe.failure(error, task="notify")
        return [error] if error.retry is Retry.LATER else []
    return []
