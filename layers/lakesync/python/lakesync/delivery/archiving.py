"""Moves the history of destinations with an archive into it, once a day, in small steps.

A message says which table may have old history. The marks of the database and of its archive show
what is old. So a lost message costs a day, and a repeated one nothing. Law P15:
``docs/spec/databases.md``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from lakesync.adapters.archiving import archive_table
from lakesync.core.claims import DeliveryPlace, announcement
from lakesync.core.clock import stamp
from lakesync.delivery.deliver import Delivered
from lakesync.delivery.gathering import state_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.adapters.copying import Copied
    from lakesync.core.clock import Stamp
    from lakesync.core.destinations import Destination
    from lakesync.delivery.deliver import OpenArchive, OpenDatabase
    from lakesync.ports import Buffer, Queue, WallClock

STEP_DELTAS: Final = 20_000
"""Deltas of one step, which takes seconds: between steps a function checks its time."""
_DAY_MS: Final = 86_400_000


class Archiver:
    """Moves old history into archives. Any number may run at once.

    Args:
        buffer: the declarations, and the delivered tables.
        queue: where the work on a table is announced.
        open_database: gives the database of a gateway's destination.
        open_archive: gives its archive.
        wall_clock: the time.
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

        Args:
            place: the table at its destination.
            has_time: called before each step; False ends the call there.

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
        """Note for people how far the archive is."""
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
