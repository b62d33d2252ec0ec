"""Removes data for good: single rows, or a whole gateway. No value of them stays stored.

The rows of an erasure must have been deleted before, in the ordinary way, so that every device
drops them. The steps, in this order; after a crash between any two of them, they are repeated:

    1. the deletions are flushed      until then it waits: a flush needs the log
    2. a checkpoint is built          behind the deletions, if the gateway has any
    3. all others are removed         their manifests first; a client that reads one begins again
    4. the log is trimmed             up to the deletions; cursors below are void
    5. staged batches are removed     of the rows' tables, once they are delivered

Work that was in flight at the begin may still write what it had read: a build its chunk, a flush
its batch. So the erasure is complete only after it was repeated `QUIET_MS` later. Law E5:
``docs/spec/erasure.md``.

A gateway is deleted in these steps; after a crash between any two of them, they are repeated:

    1. the configuration says so      from here nothing is committed, read or flushed: every commit
                                      is conditional on a head, and this moves all of them
    2. everybody is revoked           from a minute later every request is refused on entry
    3. its items are removed          except the tombstone, which keeps 1 and 2 in force
    4. its objects are removed        claims first, so that no run of the lake's job begins with one
    5. what is left is counted

Work that was in flight during step 1 and is conditional on no head may write after 3 and 4: a flush
its batch, a build its checkpoint, a request its client. So the count is a proof only from
`QUIET_MS` later on; before, the deletion may have to be repeated. Laws E1-E3:
``docs/spec/erasure.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from lakesync.checkpoint import store as names
from lakesync.core.clock import VISIBLE_MS_MAX, stamp_ms
from lakesync.core.config import GatewayConfig
from lakesync.core.deliveries import (
    CLAIMS_FAILED,
    DELIVERIES_FAILED,
    DeliveryPlace,
    announcement,
    deliveries_of,
    delivery_place,
    erasure_name,
    erasure_to_json,
)
from lakesync.errors import Conflict, NotFound
from lakesync.log.read import ReadBarrier
from lakesync.maintenance.checkpoint_upkeep import Builder, BuildReport
from lakesync.maintenance.horizons import Trimmer
from lakesync.ports import GATEWAY_KIND, Revocation
from lakesync.wire.records import decode_row_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from lakesync.checkpoint.store import Checkpoints
    from lakesync.core.clock import Stamp
    from lakesync.core.destinations import Destinations
    from lakesync.log.declare import Declare
    from lakesync.ports import (
        AccessStore,
        Buffer,
        GatewayItems,
        ObjectStore,
        Queue,
        RowKey,
        WallClock,
    )

# --- rows -----------------------------------------------------------------------------------------


ROWS_MAX: Final = 1_000
"""Rows that one call erases."""
_BUILDS_MAX: Final = 3
"""Builds of one call: an earlier one may have to be finished first."""


@dataclass(frozen=True, slots=True)
class ErasureReport:
    waits_for: str = ""
    """What has to happen first; empty once it is done."""
    ready_ms: int = 0
    """When to call again, if that is known."""
    checkpoints: int = 0
    """Objects of checkpoints that were removed."""


class Eraser:
    """Erases rows of gateways. Any number may run at once."""

    def __init__(
        self,
        buffer: Buffer,
        objects: ObjectStore,
        checkpoints: Checkpoints,
        *,
        wall_clock: WallClock,
    ) -> None:
        self._buffer = buffer
        self._objects = objects
        self._checkpoints = checkpoints
        self._wall_clock = wall_clock
        self._barrier = ReadBarrier(buffer)
        self._builder = Builder(buffer, objects, checkpoints, wall_clock=wall_clock)
        self._trimmer = Trimmer(buffer, wall_clock=wall_clock, keep_ms=0)

    def erase(self, gateway: str, rows: Sequence[RowKey]) -> ErasureReport:
        """Erase deleted rows as far as possible now. Idempotent, and safe to kill.

        Cost: the gateway's log is trimmed, so every client that is behind begins with a checkpoint.

        Args:
            rows: at most `ROWS_MAX` rows that were deleted, or never existed.

        Raises:
            Conflict: a row has values; delete it first.
            LakeSyncError: a store refused; what was removed stays removed.
        """
        deleted = self._deleted_at(gateway, rows)
        log = self._barrier.raise_heads(gateway)
        # A forgotten row has no commit any more: the whole log must be trimmed.
        until = deleted or max((head.last_logged for head in log.heads.values()), default=0)
        if self._buffer.flush_state(gateway).watermark < until:
            return ErasureReport("flush")
        ready_ms = stamp_ms(until) + VISIBLE_MS_MAX + 1
        if self._wall_clock() < ready_ms:
            return ErasureReport("time", ready_ms)
        covered, removed = None, 0
        if self._checkpoints.ids(gateway):
            built = self._build(gateway, until)
            covered = built.since
            if covered < until:
                return ErasureReport("checkpoint")
            removed = self._remove_checkpoints(gateway, built.checkpoint)
        report = self._trimmer.trim(gateway, covered=covered)
        is_left = report.horizon < until or not report.finished or self._is_logged(gateway, until)
        return ErasureReport("later commits" if is_left else "", checkpoints=removed)

    def _deleted_at(self, gateway: str, rows: Sequence[RowKey]) -> Stamp:
        """Return the last commit of the rows; 0 if any has left no state."""
        stored = self._buffer.rows(gateway, rows)
        for (table, row_id), row in stored.items():
            if decode_row_state(row.state).columns:
                raise Conflict(
                    f"the row {row_id} of {table} still has values: delete it first", field="row"
                )
        if len(stored) < len(set(rows)):
            return 0
        return max(row.commit for row in stored.values())

    def _build(self, gateway: str, until: Stamp) -> BuildReport:
        """Build checkpoints until one begins behind a stamp, at most a few times."""
        report = BuildReport()
        for _ in range(_BUILDS_MAX):
            report = self._builder.build(gateway)
            if report.since >= until:
                break
        return report

    def _remove_checkpoints(self, gateway: str, kept: str) -> int:
        """Remove all objects of every checkpoint but one; returns how many."""
        chunks = names.chunks_prefix(gateway)
        others = [name for name in self._checkpoints.ids(gateway) if name != kept]
        doomed = [names.manifest_key(gateway, name) for name in others]
        for key in self._objects.list_objects(chunks):
            checkpoint = key[len(chunks) :].partition("/")[0]
            if names.is_checkpoint_id(checkpoint) and checkpoint != kept:
                doomed.append(key)
        for key in doomed:
            self._objects.delete_object(key)
        return len(doomed)

    def _is_logged(self, gateway: str, until: Stamp) -> bool:
        """Return whether an entry is left up to a stamp: it may share an item with a later one."""
        heads = self._buffer.all_heads(gateway)
        return any(
            (head.recent and head.recent[0].stamp <= until)
            or self._buffer.entries(gateway, lane, 0, until, 1).entries
            for lane, head in heads.items()
        )


# --- a gateway ------------------------------------------------------------------------------------


QUIET_MS: Final = 16 * 60_000
"""After this time nothing that began before is in flight: a Lambda function, and an address signed
for an attachment, live for 15 minutes."""
OBJECT_KINDS: Final = (
    "claims", "claims-failed", "deliveries", "deliveries-failed", "staging", "checkpoints",
    "connectors", "attachments",
)  # fmt: skip
"""Prefixes of the bucket that hold objects by gateway."""


@dataclass(frozen=True, slots=True)
class DeletionReport:
    """The progress of a gateway's deletion."""

    deleted_ms: int
    """When it was deleted: nothing was accepted after."""
    final_ms: int
    """From this time on the count is a proof."""
    left: Mapping[str, int]
    """By kind, what is left; empty while ``finished`` is false. A large number is a lower bound."""
    finished: bool = True
    """False if time ran out; call it again."""

    @property
    def is_gone(self) -> bool:
        return self.finished and not any(self.left.values())


class Deleter:
    """Deletes gateways. Any number may run at once, also on the same gateway.

    Args:
        items: all that is stored of it, except objects.
    """

    def __init__(
        self,
        buffer: Buffer,
        items: GatewayItems,
        access: AccessStore,
        objects: ObjectStore,
        declare: Declare,
        *,
        wall_clock: WallClock,
    ) -> None:
        self._buffer = buffer
        self._items = items
        self._access = access
        self._objects = objects
        self._declare = declare
        self._wall_clock = wall_clock

    def delete(
        self, gateway: str, *, by: str, has_time: Callable[[], bool] = lambda: True
    ) -> DeletionReport:
        """Delete a gateway, or continue, and count what is left. Idempotent, and safe to kill.

        Args:
            gateway: whose id is never used again.

        Raises:
            NotFound: nothing is stored under that name.
            LakeSyncError: a store refused; what was removed stays removed.
        """
        self._check_exists(gateway)
        tables = self._buffer.flushed_tables(gateway)
        config = self._declare(gateway, lambda config: self._deleted(config, tables))
        self._revoke_everybody(gateway, by)
        finished = self._items.remove(gateway, config.tables, has_time) and all(
            self._remove_objects(key, has_time) for kind in OBJECT_KINDS
            for key in self._objects.list_objects(_prefix(kind, gateway))
        )  # fmt: skip
        left = self._left(gateway, config.tables) if finished else {}
        return DeletionReport(
            config.deleted_ms, config.deleted_ms + QUIET_MS, MappingProxyType(left), finished
        )

    def _check_exists(self, gateway: str) -> None:
        config = self._buffer.config(gateway)
        if not config.version and not any(self._left(gateway, ()).values()):
            raise NotFound(f"there is no gateway {gateway}", field="gateway")

    def _deleted(self, config: GatewayConfig, flushed: Iterable[str]) -> GatewayConfig:
        """Return the configuration of a deleted gateway: only the names of its tables."""
        if config.deleted_ms:
            return config
        names = sorted({*config.tables, *config.schemas, *flushed})
        tables: Mapping[str, frozenset[str]] = {name: frozenset() for name in names}
        return GatewayConfig(tables=MappingProxyType(tables), deleted_ms=self._wall_clock())

    def _revoke_everybody(self, gateway: str, by: str) -> None:
        if not any(each.kind == GATEWAY_KIND for each in self._access.revocations(gateway)):
            now_ms = self._wall_clock()
            self._access.revoke(gateway, Revocation(GATEWAY_KIND, gateway, now_ms, by))

    def _remove_objects(self, key: str, has_time: Callable[[], bool]) -> bool:
        if not has_time():
            return False
        self._objects.delete_object(key)
        return True

    def _left(self, gateway: str, tables: Iterable[str]) -> dict[str, int]:
        objects = {
            kind: len(self._objects.list_objects(_prefix(kind, gateway))) for kind in OBJECT_KINDS
        }
        return {**self._items.count(gateway, tables), **objects}


def _prefix(kind: str, gateway: str) -> str:
    return f"{kind}/{gateway}/"


# --- destinations ---------------------------------------------------------------------------------


def ask_destinations(
    declared: Destinations,
    objects: ObjectStore,
    queue: Queue,
    gateway: str,
    table: str,
    row_ids: Sequence[str],
) -> list[str]:
    """Ask each destination of the table; returns their names. Idempotent, and safe to kill."""
    names = [one.name for one in declared.wanting(table)]
    body = erasure_to_json(row_ids).encode()
    for name in names:
        place = DeliveryPlace(gateway, name, table)
        objects.put_object(place.prefix + erasure_name(row_ids), body, "application/json")
        queue.send(announcement(place.prefix))
    return names


def undelivered(objects: ObjectStore, gateway: str, table: str) -> list[str]:
    """Return the destinations with waiting claims of a table, erasures included, in order."""
    places = map(delivery_place, objects.list_objects(deliveries_of(gateway)))
    return sorted({place.destination for place in places if place.table in {table, ""}})


def set_aside(objects: ObjectStore, gateway: str, table: str) -> list[str]:
    """Return the claims of a table that failed permanently: they still need its batches."""
    lake = objects.list_objects(f"{CLAIMS_FAILED}{gateway}/{table}/")
    others = objects.list_objects(f"{DELIVERIES_FAILED}{gateway}/")
    return [*lake, *(key for key in others if key.split("/")[3:-1] == [table])]
