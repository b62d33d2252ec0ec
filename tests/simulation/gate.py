"""Who is let in, asked in every process: a stranger tries each client, and ghosts are revoked.

Nothing here takes time or changes what clients do, so a seed is the same run with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lakesync.buffer.admission import ItemAccess
from lakesync.buffer.memory_items import MemoryItemStore
from lakesync.errors import ClientTaken, Revoked
from lakesync.gateway.access import Access, AccessAdmin
from tests.simulation.history import Violation

if TYPE_CHECKING:
    from lakesync.ports import WallClock
    from tests.simulation.world import World

GATEWAY: Final = "gw"
CONNECTED: Final = "g1"
"""The gateway whose ghosts keep WebSockets; its clients are their own users'."""
STRANGER: Final = "stranger"
GHOSTS: Final = 3
MINUTE_MS: Final = 60_000


class Gate:
    """What is stored of users and clients, and what each process makes of it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._random = world.stream("gate")
        self._store = ItemAccess(MemoryItemStore())
        self._admin = AccessAdmin(self._store, wall_clock=lambda: world.scheduler.elapsed_ms)
        self._changed: dict[tuple[str, str], tuple[int, bool]] = {}
        """Of users and clients: when they were last revoked or restored, and which of it."""

    def access(self, clock: WallClock) -> Access:
        scheduler = self._world.scheduler
        return Access(self._store, wall_clock=clock, monotonic_ms=lambda: scheduler.elapsed_ms)

    def passes(self, access: Access, client_id: str) -> None:
        """Let a client in, and nobody else under its name; and look at the ghosts."""
        if not self._lets_in(access, f"user of {client_id}", client_id):
            raise Violation("a client has one user", f"{client_id} is kept out")
        if self._lets_in(access, STRANGER, client_id):
            raise Violation("a client has one user", f"a stranger is {client_id}")
        ghost = f"ghost{self._random.randrange(GHOSTS)}"
        names = (("user", ghost), ("client", ghost))
        changes = [self._changed.get(name, (-MINUTE_MS, False)) for name in names]
        now_ms = self._world.scheduler.elapsed_ms
        if all(now_ms - at_ms >= MINUTE_MS for at_ms, _ in changes):
            wanted = not any(is_revoked for _, is_revoked in changes)
            self._world.count("ghost let in" if wanted else "ghost kept out")
            if self._lets_in(access, ghost, ghost) != wanted:
                outcome = "kept out" if wanted else "let in"
                raise Violation("revoked within a minute", f"{ghost} is {outcome}, {changes}")
        else:
            self._lets_in(access, ghost, ghost)
        if self._random.random() < 0.1:
            self._change(*names[self._random.randrange(2)], now_ms)

    def _change(self, kind: str, name: str, now_ms: int) -> None:
        revokes = not self._changed.get((kind, name), (0, False))[1]
        for gateway in (GATEWAY, CONNECTED):
            if revokes:
                self._admin.revoke(gateway, kind, name, by="ops")
            else:
                self._admin.restore(gateway, kind, name)
        if revokes:
            self._world.sockets.notifier.revoked(kind, name)
        self._changed[kind, name] = (now_ms, revokes)

    def is_revoked(self, name: str, since_ms: int) -> bool:
        """Get whether a ghost has been revoked for so long that every process knows, and acts."""
        changes = [self._changed.get((kind, name), (0, False)) for kind in ("user", "client")]
        now_ms = self._world.scheduler.elapsed_ms
        return any(revoked and now_ms - at_ms > MINUTE_MS + since_ms for at_ms, revoked in changes)

    def _lets_in(self, access: Access, user: str, client_id: str) -> bool:
        try:
            access.check_user(GATEWAY, user)
            access.check_client(GATEWAY, user, client_id)
        except (ClientTaken, Revoked):
            return False
        return True
