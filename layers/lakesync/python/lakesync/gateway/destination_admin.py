"""Administration of a gateway's destinations: declare, show, pause, fill again, remove.

A declaration is saved first, and then delivery is woken. If the wake-up is lost, the next message
or the sweep notices the declaration. Laws D7-D12: ``docs/spec/delivery.md``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from lakesync.core.clock import stamp_ms
from lakesync.core.deliveries import (
    DELIVERIES,
    DELIVERIES_FAILED,
    FILL,
    RETRY,
    DeliveryPlace,
    FillClaim,
    announcement,
    claimed_last,
    delivery_place,
)
from lakesync.core.destinations import DESTINATIONS_MAX
from lakesync.errors import Conflict, Contention, DestinationRefused, Fault, NotFound

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lakesync.core.config import GatewayConfig
    from lakesync.core.destinations import Destination, Destinations
    from lakesync.ports import Buffer, DeliveryState, ObjectStore, Queue, WallClock

    AsksDatabase = Callable[[str, str, str], None]
    """Asks the database of a gateway's secret: the gateway, the kind, the secret."""
    ReadsDestination = Callable[[GatewayConfig], Destination]
    """Returns a declared destination, by the configuration that it must fit."""

_TRIES_MAX: Final = 10


@dataclass(frozen=True, slots=True)
class DestinationReport:
    destination: Destination
    waiting: int
    """Claims that wait for it."""
    filling: int
    """Tables that are being filled, or wait to be."""
    lag_ms: int
    """How long the oldest commit in a waiting claim has waited; 0 if none waits."""
    set_aside: Mapping[str, str]
    """Claims that can never succeed, each with its reason."""
    tables: Mapping[str, DeliveryState]

    @property
    def state(self) -> str:
        if self.destination.paused:
            return "paused"
        if any(state.error for state in self.tables.values()):
            return "failing"
        if self.filling:
            return "filling"
        return "behind" if self.waiting else "current"


class DestinationAdmin:
    """Changes and shows a gateway's destinations; the queue wakes delivery."""

    def __init__(
        self,
        buffer: Buffer,
        objects: ObjectStore,
        queue: Queue,
        *,
        wall_clock: WallClock,
        asks: AsksDatabase | None = None,
    ) -> None:
        self._buffer = buffer
        self._objects = objects
        self._queue = queue
        self._wall_clock = wall_clock
        self._asks = asks

    def check(self, gateway: str, reads: ReadsDestination, *, asks: bool = True) -> Destination:
        """Read a declaration, and ask its database, without saving it.

        Raises:
            DestinationRefused: it has faults; names every one.
            Conflict: it conflicts with another destination, or one that was just removed.
            ValidationFailed: its secret cannot be read, or the database refuses or is unreachable.
        """
        config = self._buffer.config(gateway)
        config.check_not_deleted()
        wanted = reads(config)
        self._check_fits(gateway, self._buffer.destinations(gateway), wanted)
        if asks:
            self.ask(gateway, wanted)
        return wanted

    def ask(self, gateway: str, destination: Destination) -> None:
        """Have a destination's database answer, and its archive; nothing is made there.

        Raises:
            ValidationFailed: its secret cannot be read, or it refuses or is unreachable.
        """
        if self._asks is not None:
            self._asks(gateway, destination.kind, destination.secret)
            if destination.archive is not None:
                self._asks(gateway, destination.archive.kind, destination.archive.secret)

    def declare(
        self, gateway: str, name: str, reads: ReadsDestination, *, asks: bool = True
    ) -> Destination:
        """Declare a destination, and have it filled. Idempotent.

        Raises:
            DestinationRefused: the declaration has faults; names every one.
            Conflict: it conflicts with another destination, or one that was just removed.
            ValidationFailed: its secret cannot be read, or the database refuses or is unreachable.
        """
        asks = asks and self.declared(gateway, name) is None
        checked = self.check(gateway, reads, asks=asks)
        wanted = replace(checked, declared_ms=self._wall_clock())

        def declared(before: Destinations) -> Destinations:
            self._check_fits(gateway, before, wanted)
            return before if name in before.by_name else before.with_one(wanted)

        one = self._change(gateway, declared).by_name[name]
        if not one.fill_asked:
            self._ask_for_filling(DeliveryPlace(gateway, name))
            self._change(gateway, lambda before: _with_filling_asked(before, one))
        return one

    def declared(self, gateway: str, name: str) -> Destination | None:
        """Return the declaration of a destination; None if there is none."""
        return self._buffer.destinations(gateway).by_name.get(name)

    def reports(self, gateway: str) -> list[DestinationReport]:
        declared = self._buffer.destinations(gateway).by_name
        return [self._report(gateway, declared[name]) for name in sorted(declared)]

    def set_paused(self, gateway: str, name: str, *, paused: bool) -> Destination:
        """Stop delivering to a destination, or continue where it stopped. Idempotent.

        Raises:
            NotFound: there is no such destination.
        """

        def changed(before: Destinations) -> Destinations:
            one = self._known(before, name)
            return before if one.paused is paused else before.with_one(replace(one, paused=paused))

        after = self._change(gateway, changed)
        if not paused:
            self._wake(DeliveryPlace(gateway, name).prefix)
        return after.by_name[name]

    def backfill(self, gateway: str, name: str) -> None:
        """Have a destination filled again. Idempotent.

        Raises:
            NotFound: there is no such destination.
        """
        self._known(self._buffer.destinations(gateway), name)
        self._ask_for_filling(DeliveryPlace(gateway, name))

    def retry(self, gateway: str, name: str) -> int:
        """Have dead letters and failed claims retried; returns the number of tables.

        Raises:
            NotFound: there is no such destination.
        """
        self._known(self._buffer.destinations(gateway), name)
        place = DeliveryPlace(gateway, name)
        failed = self._failed(place)
        states = self._buffer.delivery_states(gateway, name)
        tables = {table for table, state in states.items() if state.dead_letters}
        for table in tables:
            key = place._replace(table=table).prefix + RETRY
            self._objects.put_object(key, b"{}", "application/json")
        for key in failed:
            # Written before it is deleted: a claim that exists twice is applied once.
            body = json.loads(self._objects.get_object(key))["claim"]
            claim = DELIVERIES + key.removeprefix(DELIVERIES_FAILED)
            self._objects.put_object(claim, body.encode(), "application/json")
            self._objects.delete_object(key)
            tables.add(delivery_place(claim).table)
        self._wake(place.prefix)
        return len(tables)

    def remove(self, gateway: str, name: str) -> None:
        """Deliver no more to a destination, whose tables stay as they are. Idempotent.

        Raises:
            NotFound: there is no such destination.
        """
        now_ms = self._wall_clock()
        self._change(gateway, lambda now: now.without(self._known(now, name).name, now_ms))
        self._wake(DeliveryPlace(gateway, name).prefix)

    def _change(self, gateway: str, change: Callable[[Destinations], Destinations]) -> Destinations:
        for _ in range(_TRIES_MAX):
            self._buffer.config(gateway).check_not_deleted()
            before = self._buffer.destinations(gateway)
            after = change(before)
            if after is before or self._buffer.save_destinations(gateway, after):
                return after
        raise Contention("others are changing the destinations right now; try again")

    def _check_fits(self, gateway: str, before: Destinations, wanted: Destination) -> None:
        one = before.by_name.get(wanted.name)
        if one is not None and one.declares_as(wanted):
            return
        if one is not None:
            raise Conflict(
                f"the destination {wanted.name} is declared differently; remove it first, as other "
                "rows are another filling",
                field="name",
            )
        if not wanted.lake:
            self._check_not_in_lake(gateway, before, wanted)
        if len(before.by_name) >= DESTINATIONS_MAX:
            raise Conflict(f"a gateway may have {DESTINATIONS_MAX} destinations; remove one first")
        for other in before.by_name.values():
            if shared := other.secrets & wanted.secrets:
                at = "secret" if wanted.secret in shared else "archive.secret"
                message = f"the destination {other.name} is there already; give each one of its own"
                raise DestinationRefused(f"{at}: {message}", faults=[Fault(at, message)])
        if wait_ms := before.quiet_in_ms(wanted.secret, self._wall_clock()):
            seconds = -(-wait_ms // 1000)
            raise Contention(
                "a destination with this secret was removed a moment ago, and somebody may still "
                f"write there; add it in {seconds} s",
                retry_after_s=seconds,
            )

    def _check_not_in_lake(self, gateway: str, before: Destinations, wanted: Destination) -> None:
        """Refuse to take a table out of the lake: readers would see an old state of it."""
        flushed = sorted(
            table for table in self._buffer.flushed_tables(gateway)
            if wanted.wants(table) and before.in_lake(table)
        )  # fmt: skip
        if flushed:
            raise Conflict(
                f"{flushed[0]} is in the lake already ({len(flushed)} of the tables are): only "
                "tables that were never flushed can have a database in the lake's place; name "
                "those, or leave lake out",
                field="lake",
            )

    def without_lake(self, gateway: str) -> list[str]:
        """Return the tables that do not go to the lake; `EVERY_TABLE` alone for all."""
        return sorted(self._buffer.destinations(gateway).no_lake)

    def _known(self, destinations: Destinations, name: str) -> Destination:
        one = destinations.by_name.get(name)
        if one is None:
            raise NotFound(f"there is no destination {name[:40]}", field="name")
        return one

    def _report(self, gateway: str, destination: Destination) -> DestinationReport:
        place = DeliveryPlace(gateway, destination.name)
        keys = self._objects.list_objects(place.prefix)
        lasts = [last for key in keys if (last := claimed_last(key))]
        lag_ms = max(0, self._wall_clock() - stamp_ms(min(lasts))) if lasts else 0
        failed = {
            key.removeprefix(DELIVERIES_FAILED): json.loads(self._objects.get_object(key))["reason"]
            for key in self._failed(place)
        }
        states = self._buffer.delivery_states(gateway, destination.name)
        filling = sum(key.endswith(f"/{FILL}") for key in keys)
        return DestinationReport(destination, len(lasts), filling, lag_ms, failed, states)

    def _failed(self, place: DeliveryPlace) -> list[str]:
        prefix = DELIVERIES_FAILED + place.prefix.removeprefix(DELIVERIES)
        return self._objects.list_objects(prefix)

    def _ask_for_filling(self, place: DeliveryPlace) -> None:
        body = FillClaim().to_json().encode()
        self._objects.put_object(place.prefix + FILL, body, "application/json")
        self._wake(place.prefix)

    def _wake(self, prefix: str) -> None:
        self._queue.send(announcement(prefix))


def _with_filling_asked(before: Destinations, one: Destination) -> Destinations:
    """Note that a destination's filling was requested, if its declaration is still the same."""
    now = before.by_name.get(one.name)
    if now is None or now.declared_ms != one.declared_ms or now.fill_asked:
        return before
    return before.with_one(replace(now, fill_asked=True))
