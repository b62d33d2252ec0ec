"""The handler of ``functions/deliver``: messages that say where claims may wait, and a sweep.

Once a day it announces the tables whose history may be old enough for an archive.

A message that could not be completed is returned to the queue individually: at once if only time
ran out; later, once enough has gathered, if its destination prefers large batches; with backoff if
the destination is down. Other messages of a destination that is down are not tried in the same
batch, so that they delay no others.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from lakesync.core.claims import delivery_place
from lakesync.errors import Contention, LakeSyncError, ValidationFailed
from lakesync.runtime import observe

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lakesync.core.claims import DeliveryPlace
    from lakesync.delivery.deliver import Delivered, Lag
    from lakesync.runtime.observe import Handler

LAG: Final = "DestinationLag"
"""How long the oldest commit has waited for a destination that is not paused. Alarmed."""
LAGS_MAX: Final = 20
"""Destinations whose lag is a metric of its own, those furthest behind: each costs $0.30 a month
while it is one, and with many gateways most are behind for a moment."""
BACK_OFF_S_MAX: Final = 900
"""The longest that a message waits before a destination that is down is tried again."""
_BACK_OFF_S: Final = 15
_MARGIN_S: Final = 45
"""Left of a function's time when it begins no other step: one takes seconds."""


class Delivers(Protocol):
    """`lakesync.delivery.deliver.Deliverer`."""

    def deliver(self, place: DeliveryPlace, has_time: Callable[[], bool]) -> Delivered:
        """Work on one place."""
        ...

    def sweep(self) -> list[Lag]:
        """Announce everything that waits."""
        ...


class Archives(Protocol):
    """`lakesync.delivery.archiving.Archiver`."""

    def archive(self, place: DeliveryPlace, has_time: Callable[[], bool]) -> Delivered:
        """Move what is old of one table."""
        ...

    def announce(self) -> int:
        """Announce every table that may have some."""
        ...


class Delays(Protocol):
    """Lets a message that was received come again later."""

    def __call__(self, receipt: str, seconds: int) -> None:
        """Hide it for so long."""
        ...


def deliver_handler(
    deliverer: Delivers, archiver: Archives, delay: Delays, seconds: Callable[[], float]
) -> Handler:
    """Return the handler of ``functions/deliver``.

    Args:
        deliverer: does the work.
        archiver: moves old history.
        delay: lets a message return later.
        seconds: a clock that only goes forward.
    """

    def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
        ends = seconds() + context.get_remaining_time_in_millis() / 1000 - _MARGIN_S
        try:
            if "archive" in event:
                return {"tables": archiver.announce()}
            if "Records" not in event:
                return {"waiting": _sweep(deliverer)}
            work = _Work(deliverer, archiver, lambda: seconds() < ends)
            failed = []
            for record in event["Records"]:
                again_s = work.again_in_s(record)
                if again_s is not None:
                    failed.append({"itemIdentifier": record["messageId"]})
                    _delay(delay, record, again_s)
            return {"batchItemFailures": failed}
        finally:
            observe.publish()

    return handler


class _Task(NamedTuple):
    """What a message asks for."""

    place: DeliveryPlace
    archives: bool
    """Whether history is moved there; else claims are delivered."""


class _Work:
    """The work on one batch of messages."""

    def __init__(
        self, deliverer: Delivers, archiver: Archives, has_time: Callable[[], bool]
    ) -> None:
        self._deliverer = deliverer
        self._archiver = archiver
        self._has_time = has_time
        self._down: set[tuple[str, str, bool]] = set()
        self._done: dict[_Task, int | None] = {}

    def again_in_s(self, record: Mapping[str, Any]) -> int | None:
        """Handle a message; gives in how many seconds it must return, None if never."""
        tries = int(record.get("attributes", {}).get("ApproximateReceiveCount", 1))
        back_off_s = min(_BACK_OFF_S * 2 ** min(tries - 1, 10), BACK_OFF_S_MAX)
        try:
            task = _task_of(record["body"])
        except ValidationFailed as error:
            observe.failure(error, task="deliver")
            return BACK_OFF_S_MAX
        if task not in self._done:
            self._done[task] = self._deliver(task, back_off_s)
        return self._done[task]

    def _deliver(self, task: _Task, back_off_s: int) -> int | None:
        place = task.place
        # An archive that is away delays no delivery.
        destination = (place.gateway, place.destination, task.archives)
        if destination in self._down:
            return back_off_s
        try:
            work = self._archiver.archive if task.archives else self._deliverer.deliver
            delivered = work(place, self._has_time)
        except Contention as error:
            return min(error.retry_after_s, BACK_OFF_S_MAX)
        except LakeSyncError as error:
            self._down.add(destination)
            where = {"gateway": place.gateway, "destination": place.destination}
            observe.logger.warning(
                "not delivered", extra={"code": error.code, "reason": error.message, "where": where}
            )
            observe.count("DeliveriesFailed")
            return back_off_s
        except Exception as error:  # noqa: BLE001 - one message's bug must not cost its neighbours
            observe.bug(error, place=place.prefix)
            return back_off_s
        observe.count("DeltasArchived" if task.archives else "DeltasDelivered", delivered.deltas)
        return None if delivered.finished else min(delivered.again_s, BACK_OFF_S_MAX)


def _task_of(body: str) -> _Task:
    try:
        said = json.loads(body)
        claim, archives = said["claim"], said.get("archive") is True
    except (ValueError, TypeError, KeyError, AttributeError):
        claim, archives = None, False
    if not isinstance(claim, str):
        raise ValidationFailed("a message names the claim that waits", field="claim")
    return _Task(delivery_place(claim), archives)


def _delay(delay: Delays, record: Mapping[str, Any], seconds: int) -> None:
    try:
        delay(record["receiptHandle"], seconds)
    except LakeSyncError as error:
        observe.failure(error, task="delay a message")  # it comes again when its queue says so


def _sweep(deliverer: Delivers) -> int:
    lags = deliverer.sweep()
    for lag in sorted(lags, key=lambda lag: -lag.oldest_ms)[:LAGS_MAX]:
        observe.destination_lag(lag.gateway, lag.destination, lag.oldest_ms / 1000, lag.claims)
    for lag in lags:
        if not lag.paused:
            observe.count(LAG, max(lag.oldest_ms, 1) / 1000, "Seconds")
    return sum(lag.claims for lag in lags)
