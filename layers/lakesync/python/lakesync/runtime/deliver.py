"""The handler of ``functions/deliver``: messages that say where claims may wait, and a sweep.

A message that could not be done with is handed back by itself: at once if only time ran out, when
enough is gathered if its destination takes more at once, later and later if that is down. The
others of a destination that is down are not tried in the same batch, so that they keep nobody
waiting.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, Protocol

from lakesync.core.claims import delivery_place
from lakesync.errors import Contention, LakeSyncError, ValidationFailed
from lakesync.runtime import observe

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lakesync.core.claims import DeliveryPlace
    from lakesync.delivery.deliver import Delivered, Lag
    from lakesync.runtime.tasks import Handler

LAG: Final = "DestinationLag"
"""How long the oldest commit has waited for a destination that is not paused. Alarmed."""
BACK_OFF_S_MAX: Final = 900
"""How long a message waits at the most before a destination that is down is tried again."""
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


class Delays(Protocol):
    """Lets a message that was received come again later."""

    def __call__(self, receipt: str, seconds: int) -> None:
        """Hide it for so long."""
        ...


def deliver_handler(deliverer: Delivers, delay: Delays, seconds: Callable[[], float]) -> Handler:
    """Give the handler of ``functions/deliver``.

    Args:
        deliverer: does the work.
        delay: lets a message come again later.
        seconds: a clock that only goes forward.
    """

    def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
        ends = seconds() + context.get_remaining_time_in_millis() / 1000 - _MARGIN_S
        try:
            if "Records" not in event:
                return {"waiting": _sweep(deliverer)}
            work = _Work(deliverer, lambda: seconds() < ends)
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


class _Work:
    """The work on one batch of messages."""

    def __init__(self, deliverer: Delivers, has_time: Callable[[], bool]) -> None:
        self._deliverer = deliverer
        self._has_time = has_time
        self._down: set[tuple[str, str]] = set()
        self._done: dict[DeliveryPlace, int | None] = {}

    def again_in_s(self, record: Mapping[str, Any]) -> int | None:
        """Handle a message; gives in how many seconds it is to come again, None if never."""
        tries = int(record.get("attributes", {}).get("ApproximateReceiveCount", 1))
        back_off_s = min(_BACK_OFF_S * 2 ** min(tries - 1, 10), BACK_OFF_S_MAX)
        try:
            place = _place_of(record["body"])
        except ValidationFailed as error:
            observe.failure(error, task="deliver")
            return BACK_OFF_S_MAX
        if place not in self._done:
            self._done[place] = self._deliver(place, back_off_s)
        return self._done[place]

    def _deliver(self, place: DeliveryPlace, back_off_s: int) -> int | None:
        destination = (place.gateway, place.destination)
        if destination in self._down:
            return back_off_s
        try:
            delivered = self._deliverer.deliver(place, self._has_time)
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
        observe.count("DeltasDelivered", delivered.deltas)
        return None if delivered.finished else min(delivered.again_s, BACK_OFF_S_MAX)


def _place_of(body: str) -> DeliveryPlace:
    try:
        claim = json.loads(body)["claim"]
    except (ValueError, TypeError, KeyError):
        claim = None
    if not isinstance(claim, str):
        raise ValidationFailed("a message names the claim that waits", field="claim")
    return delivery_place(claim)


def _delay(delay: Delays, record: Mapping[str, Any], seconds: int) -> None:
    try:
        delay(record["receiptHandle"], seconds)
    except LakeSyncError as error:
        observe.failure(error, task="delay a message")  # it comes again when its queue says so


def _sweep(deliverer: Delivers) -> int:
    lags = deliverer.sweep()
    for lag in lags:
        observe.destination_lag(lag.gateway, lag.destination, lag.oldest_ms / 1000, lag.claims)
        if not lag.paused:
            observe.count(LAG, max(lag.oldest_ms, 1) / 1000, "Seconds")
    return sum(lag.claims for lag in lags)
