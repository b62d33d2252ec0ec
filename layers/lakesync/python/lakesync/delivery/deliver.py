"""Delivers to declared destinations: what a message names, and what a sweep discovers.

A message says where something may wait; the claims show what does. A destination that is paused or
down keeps its claims: nothing is lost, no other waits, and no push is delayed.
Laws D7-D11: ``docs/spec/delivery.md``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from lakesync.core.claims import (
    DELIVERIES,
    FILL,
    DeliveryPlace,
    FillClaim,
    announcement,
    claimed_last,
    delivery_place,
)
from lakesync.core.clock import stamp_ms
from lakesync.delivery.desk import Desk
from lakesync.delivery.gathering import next_write_in_ms, state_of
from lakesync.delivery.table import TableDelivery
from lakesync.errors import Contention, LakeSyncError, ValidationFailed
from lakesync.ports import DeliveryState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lakesync.adapters.objects.archive import HistoryArchive
    from lakesync.adapters.row_images import DestinationDatabase
    from lakesync.core.destinations import Destination
    from lakesync.delivery.desk import ReadBatch
    from lakesync.ports import Buffer, ObjectStore, Queue, WallClock

    OpenDatabase = Callable[[str, Destination], DestinationDatabase]
    OpenArchive = Callable[[str, Destination], HistoryArchive]

_ERROR_CHARACTERS_MAX: Final = 300


@dataclass(frozen=True, slots=True)
class Delivered:
    """The result of the work on one place."""

    deltas: int = 0
    finished: bool = True
    """False if time ran out, or waiting batches are still being gathered."""
    again_s: int = 0
    """After how many seconds to continue, if it is not finished."""


class Lag(NamedTuple):
    """The claims that wait for one destination."""

    gateway: str
    destination: str
    claims: int
    oldest_ms: int
    """How long the oldest commit in a waiting claim has waited."""
    paused: bool


class Deliverer:
    """Applies the claims of destinations. Any number may run at once.

    Args:
        buffer: declarations, rows, and delivery states.
        objects: claims and batches.
        queue: where more work is announced.
        read_batch: reads a batch's object.
        open_database: gives the database of a gateway's destination, not connected yet.
        wall_clock: the time.
        table_delivery: gives the work on one table.
        open_archive: gives the archive of a destination that has one.
    """

    def __init__(
        self,
        buffer: Buffer,
        objects: ObjectStore,
        queue: Queue,
        *,
        read_batch: ReadBatch,
        open_database: OpenDatabase,
        wall_clock: WallClock,
        table_delivery: Callable[[Desk], TableDelivery] = TableDelivery,
        open_archive: OpenArchive | None = None,
    ) -> None:
        self._buffer = buffer
        self._objects = objects
        self._queue = queue
        self._read_batch = read_batch
        self._open_database = open_database
        self._wall_clock = wall_clock
        self._table_delivery = table_delivery
        self._open_archive = open_archive

    def deliver(
        self, place: DeliveryPlace, has_time: Callable[[], bool] = lambda: True
    ) -> Delivered:
        """Work on one table of a destination, or announce the work on all of them.

        Args:
            place: where claims may be.
            has_time: called before each step; False ends the call there.

        Raises:
            LakeSyncError: a store or the destination refused; what was done stays done.
        """
        destination = self._buffer.destinations(place.gateway).by_name.get(place.destination)
        if destination is None or (place.table and not destination.wants(place.table)):
            self._clear(place)
            return Delivered()
        if destination.paused:
            return Delivered()
        if not place.table:
            self._announce_tables(place, destination)
            return Delivered()
        return self._deliver(place, destination, has_time)

    def sweep(self) -> list[Lag]:
        """Announce everything that waits, even if its announcement was lost; give the lags."""
        waiting: dict[tuple[str, str], list[str]] = {}
        for key in self._objects.list_objects(DELIVERIES):
            try:
                waiting.setdefault(delivery_place(key)[:2], []).append(key)
            except ValidationFailed:
                continue  # not a claim of ours
        return [self._swept(*pair, keys) for pair, keys in waiting.items()]

    def _swept(self, gateway: str, name: str, keys: list[str]) -> Lag:
        destination = self._buffer.destinations(gateway).by_name.get(name)
        paused = destination is not None and destination.paused
        if not paused:
            prefix = DeliveryPlace(gateway, name).prefix
            self._queue.send(announcement(prefix))
        return Lag(gateway, name, len(keys), lag_ms(keys, self._wall_clock()), paused)

    def _deliver(
        self, place: DeliveryPlace, destination: Destination, has_time: Callable[[], bool]
    ) -> Delivered:
        wait_ms = next_write_in_ms(
            self._buffer, self._objects, place, destination.pace, self._wall_clock()
        )
        if wait_ms is None:
            return Delivered()
        if wait_ms:
            return Delivered(finished=False, again_s=-(-wait_ms // 1000))
        database = self._opened(place, destination)
        desk = Desk(
            self._buffer,
            self._objects,
            self._read_batch,
            database,
            place.gateway,
            destination,
            place.table,
            self._wall_clock,
            self._open_archive,
        )
        table = self._table_delivery(desk)
        try:
            finished = table.work(has_time)
            if table.is_handed_over:
                return Delivered(table.deltas)
            letters = database.dead_letters(place.table).unwrap()
            self._note(desk, len(letters), self._wrote_ms(place, desk, table))
        except Contention:
            raise  # a transient state: it is done in a moment
        except LakeSyncError as error:
            self._note_failure(place, error, self._wrote_ms(place, desk, table))
            raise
        finally:
            database.close()
        return Delivered(table.deltas, finished)

    def _opened(self, place: DeliveryPlace, destination: Destination) -> DestinationDatabase:
        """Open the database; a failure to open, such as a missing secret, is noted too."""
        try:
            return self._open_database(place.gateway, destination)
        except LakeSyncError as error:
            self._note_failure(place, error, state_of(self._buffer, place).wrote_ms)
            raise

    def _announce_tables(self, place: DeliveryPlace, destination: Destination) -> None:
        """Announce each table with waiting claims; request fillings, if all is to be filled.

        The claim that requests this is removed last, so that a repeat follows if this is killed.
        """
        everything = place.prefix + FILL
        keys = self._objects.list_objects(place.prefix)
        tables = {delivery_place(key).table for key in keys} - {""}
        if everything in keys:
            config = self._buffer.config(place.gateway)
            known = {*config.schemas, *config.tables, *self._buffer.flushed_tables(place.gateway)}
            wanted = {table for table in known if destination.wants(table)}
            body = FillClaim().to_json().encode()
            for table in sorted(wanted):
                key = place._replace(table=table).prefix + FILL
                self._objects.put_object(key, body, "application/json")
            tables |= wanted
        self._announce(place, tables)
        if everything in keys:
            self._objects.delete_object(everything)

    def _announce(self, place: DeliveryPlace, tables: Iterable[str]) -> None:
        for table in sorted(tables):
            prefix = place._replace(table=table).prefix
            self._queue.send(announcement(prefix))

    def _clear(self, place: DeliveryPlace) -> None:
        """Remove the claims of a destination that no longer exists, or never wants the table."""
        for key in self._objects.list_objects(place.prefix):
            self._objects.delete_object(key)
        states = self._buffer.delivery_states(place.gateway, place.destination)
        for table in [place.table] if place.table else states:
            self._buffer.save_delivery_state(place.gateway, place.destination, table, None)

    def _wrote_ms(self, place: DeliveryPlace, desk: Desk, table: TableDelivery) -> int:
        """Return when the table was last written to; a failed write counts too."""
        if not desk.destination.pace.gather_ms:
            return 0
        if table.has_written:
            return self._wall_clock()
        return state_of(self._buffer, place).wrote_ms

    def _note(self, desk: Desk, dead_letters: int, wrote_ms: int) -> None:
        place, now_ms = desk.place, self._wall_clock()
        archived = state_of(self._buffer, place).archived if desk.destination.archive else 0
        state = DeliveryState(desk.mark(), dead_letters, "", now_ms, wrote_ms, archived)
        self._buffer.save_delivery_state(place.gateway, place.destination, place.table, state)

    def _note_failure(self, place: DeliveryPlace, error: LakeSyncError, wrote_ms: int) -> None:
        before = state_of(self._buffer, place)
        message = f"{error.code}: {error.message}"[:_ERROR_CHARACTERS_MAX]
        now_ms = self._wall_clock()
        state = replace(before, error=message, at_ms=now_ms, wrote_ms=wrote_ms)
        self._buffer.save_delivery_state(place.gateway, place.destination, place.table, state)


def lag_ms(keys: Iterable[str], now_ms: int) -> int:
    """Return how long the oldest commit in a claim has waited; 0 without any."""
    lasts = [last for key in keys if (last := claimed_last(key))]
    return max(0, now_ms - stamp_ms(min(lasts))) if lasts else 0
