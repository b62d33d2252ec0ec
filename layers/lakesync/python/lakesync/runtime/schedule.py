"""The handler of ``functions/schedule_flush``: a message for each gateway that is due.

It is called every minute, and takes the gateways whose minute of the interval it is: by a hash of
their ids, so that a thousand gateways are not flushed at once, and each of them is asked for an
interval after the time before.

Its cost and duration depend on the gateways that are due, not on those that exist: 10,000 due
gateways are ten reads and a thousand calls of the queue, some seconds. A run whose time is over
passes its position to the next one. The next tick repeats a run that died, from the beginning: a
surplus message causes a flush that finds nothing.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Protocol

from lakesync.core.clock import stamp_ms
from lakesync.core.spread import place_in
from lakesync.errors import ValidationFailed
from lakesync.runtime import observe
from lakesync.runtime.tasks import scheduled_request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lakesync.ports import GatewaySlice
    from lakesync.runtime.observe import Handler

MESSAGES_MAX: Final = 10
"""Messages of one call of SQS."""
SENDERS_MAX: Final = 8
"""Concurrent calls of the queue: a thousand messages take some 2 s, and the queue's client keeps
ten connections.
"""
UNFLUSHED_AGE: Final = "UnflushedAge"
"""How long the oldest unflushed commit has waited. Alarmed."""
_MARGIN_S: Final = 15
"""Left of a function's time when it begins no other slice: one takes some seconds."""


class MessageSender(Protocol):
    """`lakesync.adapters.lake.sqs.SqsQueue.send_all`."""

    def __call__(self, bodies: Sequence[str]) -> None:
        """Hand messages over, at most `MESSAGES_MAX`."""
        ...


def schedule_handler(
    due: Callable[[str], Iterator[GatewaySlice]],
    send_all: MessageSender,
    go_on: Callable[[str, str], None],
    seconds: Callable[[], float],
    wall_clock: Callable[[], int],
    every_minutes: int = 1,
) -> Handler:
    """Return the handler of ``functions/schedule_flush``.

    Args:
        due: gives the gateways that are due, after a position.
        send_all: passes messages to the queue of flushes.
        go_on: starts a function of an ARN at a position, without waiting for it.
        seconds: a clock that only goes forward.
        wall_clock: gives the milliseconds since 1970.
        every_minutes: how often each gateway is asked for.
    """

    def handler(event: dict[str, Any], context: Any) -> dict[str, object]:
        ends = seconds() + context.get_remaining_time_in_millis() / 1000 - _MARGIN_S
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
            observe.publish()

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


def _send(send_all: MessageSender, gateways: Sequence[str]) -> None:
    """Send a message for each gateway; all are attempted, and refused ones are raised."""
    bodies = [scheduled_request(gateway) for gateway in gateways]
    with ThreadPoolExecutor(max_workers=SENDERS_MAX) as pool:
        calls = [
            pool.submit(send_all, bodies[at : at + MESSAGES_MAX])
            for at in range(0, len(bodies), MESSAGES_MAX)
        ]
    for call in calls:
        call.result()
