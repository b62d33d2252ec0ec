"""Delivers to declared destinations: what a message names, and what a sweep discovers.

A message says where something may wait; the claims show what does. A destination that is paused or
down keeps its claims: nothing is lost, no other waits, and no push is delayed.
Laws D7-D11: ``docs/spec/delivery.md``.

Waiting batches of a table are written now, or once enough is gathered (law D15). Batches that are
too large for a function are delivered by a Spark job instead. Function and job ask this module
before each write of a table, so the waiting batches decide who makes the next write. Two that ask
at different moments may both begin: the second one to write notices the other's write, and begins
again (law D17).

The history of a destination with an archive is moved into it, once a day, in small steps. A message
says which table may have old history. The marks of the database and of its archive show what is
old. So a lost message costs a day, and a repeated one nothing. Law P15: ``docs/spec/databases.md``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from lakesync.adapters.copying import archive_table
from lakesync.core.clock import stamp, stamp_ms
from lakesync.core.deliveries import (
    DELIVERIES,
    FILL,
    DeliveryPlace,
    FillClaim,
    Pace,
    announcement,
    claimed_last,
    delivery_place,
    parse_claim,
)
from lakesync.delivery.table_context import TableContext
from lakesync.delivery.table_delivery import TableDelivery
from lakesync.errors import Contention, LakeSyncError, ValidationFailed
from lakesync.ports import DeliveryState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from lakesync.adapters.copying import Copied
    from lakesync.adapters.database import DestinationDatabase
    from lakesync.adapters.history_archive import HistoryArchive
    from lakesync.core.clock import Stamp
    from lakesync.core.deliveries import Batch
    from lakesync.core.destinations import Destination
    from lakesync.delivery.table_context import ReadBatch
    from lakesync.ports import Buffer, DeliveryStates, ObjectStore, Queue, WallClock

    OpenDatabase = Callable[[str, Destination], DestinationDatabase]
    OpenArchive = Callable[[str, Destination], HistoryArchive]

# --- deliveries -----------------------------------------------------------------------------------


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
        queue: where more work is announced.
        open_database: gives the database of a gateway's destination, not connected yet.
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
        table_delivery: Callable[[TableContext], TableDelivery] = TableDelivery,
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
        context = TableContext(
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
        table = self._table_delivery(context)
        try:
            finished = table.work(has_time)
            if table.is_handed_over:
                return Delivered(table.deltas)
            letters = database.dead_letters(place.table).unwrap()
            self._note(context, len(letters), self._wrote_ms(place, context, table))
        except Contention:
            raise  # a transient state: it is done in a moment
        except LakeSyncError as error:
            self._note_failure(place, error, self._wrote_ms(place, context, table))
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

    def _wrote_ms(self, place: DeliveryPlace, context: TableContext, table: TableDelivery) -> int:
        """Return when the table was last written to; a failed write counts too."""
        if not context.destination.pace.gather_ms:
            return 0
        if table.has_written:
            return self._wall_clock()
        return state_of(self._buffer, place).wrote_ms

    def _note(self, context: TableContext, dead_letters: int, wrote_ms: int) -> None:
        place, now_ms = context.place, self._wall_clock()
        archived = state_of(self._buffer, place).archived if context.destination.archive else 0
        state = DeliveryState(context.mark(), dead_letters, "", now_ms, wrote_ms, archived)
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


# --- when waiting batches are written -------------------------------------------------------------


def next_write_in_ms(
    states: DeliveryStates,
    objects: ObjectStore,
    place: DeliveryPlace,
    pace: Pace,
    now_ms: int,
) -> int | None:
    """Return the time until a table is written; None if nothing waits for it.

    Fillings and requests of an administrator are not gathered.
    """
    if not pace.gather_ms:
        return 0
    keys = objects.list_objects(place.prefix)
    state = state_of(states, place)
    if not keys:
        return 0 if state.error else None
    wait_ms = state.wrote_ms + pace.gather_ms - now_ms
    if wait_ms <= 0 or not all(map(claimed_last, keys)):
        return 0
    return 0 if _deltas(objects, keys) >= pace.deltas else wait_ms


def state_of(states: DeliveryStates, place: DeliveryPlace) -> DeliveryState:
    """Return the state of a table's delivery; the initial state if none is stored."""
    noted = states.delivery_states(place.gateway, place.destination)
    return noted.get(place.table, DeliveryState())


def _deltas(objects: ObjectStore, keys: list[str]) -> int:
    """Return the number of deltas of claims; 0 for a malformed claim, or one just applied."""
    deltas = 0
    for key in keys:
        try:
            deltas += parse_claim(key, objects.get_object(key)).deltas
        except LakeSyncError:
            continue
    return deltas


# --- batches for a Spark job ----------------------------------------------------------------------


LARGE_DELTAS_MAX: Final = 2_000_000
"""Deltas of one write by the job, unless one batch has more."""
LARGE_PACE: Final = Pace(deltas=LARGE_DELTAS_MAX)
"""How the job takes batches: it does not gather, as its work is always large."""


def is_large(
    destination: Destination,
    state: DeliveryState,
    table: str,
    batches: Iterable[Batch],
    deltas_min: int,
) -> bool:
    """Return whether the waiting batches of a table of a destination are the job's work.

    Where filters decide, rows are read from the buffer instead of deltas: this is the function's
    work, however many there are. So is the next try after a failure: what the job cannot do,
    perhaps for lack of a permission, continues as it would without the job.

    Args:
        state: the result of the last work on the table.
        deltas_min: from how many deltas on; 0 for never.
    """
    if not deltas_min or state.error:
        return False
    if destination.kind != "bigquery" or destination.is_filtered(table):
        return False
    return sum(batch.deltas for batch in batches) >= deltas_min


@dataclass(frozen=True, slots=True)
class JobRuns:
    """How the function hands over what is too large for it: by a run of the job."""

    deltas_min: int
    start: Callable[[], None]
    """Starts a run, if none is running."""

    def take(self, context: TableContext, batches: Sequence[Batch]) -> bool:
        """Have a run take the waiting batches, if they are large; tell whether they are."""
        if not self.deltas_min or context.destination.kind != "bigquery":
            return False  # nothing is read for tables that this does not concern
        state = state_of(context.buffer, context.place)
        if not is_large(context.destination, state, context.table, batches, self.deltas_min):
            return False
        self.start()
        return True


def large_places(buffer: Buffer, objects: ObjectStore, deltas_min: int) -> list[DeliveryPlace]:
    """Return the tables with so many waiting deltas that they are the job's work, and nothing else.

    A table that has to be filled, or with rows to be erased or retried, is the function's first.
    """
    waiting: dict[DeliveryPlace, list[str]] = {}
    for key in objects.list_objects(DELIVERIES):
        try:
            waiting.setdefault(delivery_place(key), []).append(key)
        except ValidationFailed:
            continue  # not a claim of ours
    return [
        place
        for place, keys in waiting.items()
        if place.table and _is_job_s(buffer, objects, place, keys, deltas_min)
    ]


def _is_job_s(
    buffer: Buffer,
    objects: ObjectStore,
    place: DeliveryPlace,
    keys: Sequence[str],
    deltas_min: int,
) -> bool:
    destination = buffer.destinations(place.gateway).by_name.get(place.destination)
    if destination is None or destination.paused or destination.kind != "bigquery":
        return False
    if not destination.wants(place.table) or not all(map(claimed_last, keys)):
        return False
    batches = []
    for key in keys:
        try:
            batches.append(parse_claim(key, objects.get_object(key)))
        except LakeSyncError:
            continue  # applied meanwhile, or malformed, which the work on the table handles
    return is_large(destination, state_of(buffer, place), place.table, batches, deltas_min)


# --- the history's archive ------------------------------------------------------------------------


STEP_DELTAS: Final = 20_000
"""Deltas of one step, which takes seconds: between steps a function checks its time."""
_DAY_MS: Final = 86_400_000


class Archiver:
    """Moves old history into archives. Any number may run at once.

    Args:
        queue: where the work on a table is announced.
        open_database: gives the database of a gateway's destination.
    """

    def __init__(
        self,
        buffer: Buffer,
        queue: Queue,
        *,
        open_database: OpenDatabase,
        open_archive: OpenArchive,
        wall_clock: WallClock,
    ) -> None:
        self._buffer = buffer
        self._queue = queue
        self._open_database = open_database
        self._open_archive = open_archive
        self._wall_clock = wall_clock

    def announce(self) -> int:
        """Announce every table of a destination that has an archive; returns their number."""
        count = 0
        for gateway in self._buffer.gateways():
            declared = self._buffer.destinations(gateway).by_name
            for one in declared.values():
                if one.archive is None or one.paused:
                    continue
                for table in self._buffer.delivery_states(gateway, one.name):
                    place = DeliveryPlace(gateway, one.name, table)
                    self._queue.send(announcement(place.prefix, archive=True))
                    count += 1
        return count

    def archive(
        self, place: DeliveryPlace, has_time: Callable[[], bool] = lambda: True
    ) -> Delivered:
        """Move a table's old history; not finished if time ran out. Idempotent, and safe to kill.

        Raises:
            LakeSyncError: the database or the bucket refused; what was moved stays moved.
        """
        moved = 0
        while one := self._declared(place):
            if not has_time():
                return Delivered(moved, finished=False)
            step = self._step(place, one)
            moved += step.deltas
            self._note(place, step.until)
            if not step.deltas:
                break
        return Delivered(moved)

    def _note(self, place: DeliveryPlace, archived: Stamp) -> None:
        before = state_of(self._buffer, place)
        if before.archived != archived:
            state = replace(before, archived=archived)
            self._buffer.save_delivery_state(place.gateway, place.destination, place.table, state)

    def _step(self, place: DeliveryPlace, destination: Destination) -> Copied:
        assert destination.archive  # noqa: S101 - asked for those alone
        until = stamp(self._wall_clock() - destination.archive.after_days * _DAY_MS)
        database = self._open_database(place.gateway, destination)
        try:
            with self._open_archive(place.gateway, destination) as archive:
                moved = archive_table(
                    database, archive, place.table, until=until, deltas_max=STEP_DELTAS
                )
                return moved.unwrap()
        finally:
            database.close()

    def _declared(self, place: DeliveryPlace) -> Destination | None:
        """Return the present declaration, if it has an archive and is not paused."""
        one = self._buffer.destinations(place.gateway).by_name.get(place.destination)
        is_due = one is not None and one.archive is not None and not one.paused
        return one if is_due and one and one.wants(place.table) else None
