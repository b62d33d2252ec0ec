"""Deletion of a gateway: everything that is stored of it is removed permanently.

The steps, in this order; after a crash between any two of them, they are repeated:

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

from lakesync.core.config import GatewayConfig
from lakesync.errors import NotFound
from lakesync.ports import GATEWAY_KIND, Revocation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from lakesync.log.declare import Declare
    from lakesync.ports import AccessStore, Buffer, GatewayItems, ObjectStore, WallClock

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
        """Return whether nothing is left."""
        return self.finished and not any(self.left.values())


class Deleter:
    """Deletes gateways. Any number may run at once, also on the same gateway.

    Args:
        buffer: lists the gateway's tables.
        items: all that is stored of it, except objects.
        access: revokes everybody.
        objects: its batches and checkpoints.
        declare: puts a configuration in force.
        wall_clock: the time.
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
            by: the user who requests it.
            has_time: called before every few removals; False ends the call there.

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
