"""The users of a gateway: its clients, whether each is connected, and how far behind it is.

A client is noted when it pulls (`lakesync.gateway.seen`), at most every quarter of an hour, and
only if something changed. For a follower the cursor of its last request is stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakesync.core.clock import stamp_ms
from lakesync.core.delta import check_client_id
from lakesync.errors import Unavailable
from lakesync.gateway.connected import concerned

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lakesync.core.clock import Stamp
    from lakesync.gateway.delivery import Delivery
    from lakesync.ports import AccessStore, Buffer, Connection, Connections, KnownClient, Seen


@dataclass(frozen=True, slots=True)
class ClientReport:
    """One client, as its gateway knows it."""

    client_id: str
    user: str
    connections: Sequence[Connection]
    is_revoked: bool
    """It or its user is revoked."""
    behind_ms: int | None
    """How far its last noted cursor is behind the newest commit; None if that is not known, or
    nothing was read completely."""
    seen: Seen | None = None
    """What was last noted of it."""


class ClientsAdmin:
    """Shows a gateway's clients, and closes their connections.

    Args:
        access: to whom each client belongs, and who is revoked.
        buffer: the heads, and the stored state of followers.
        connections: the open connections.
        delivery: closes connections.
        cursor_of: reads a follower's cursor from its stored state.
    """

    def __init__(
        self,
        access: AccessStore,
        buffer: Buffer,
        connections: Connections,
        delivery: Delivery,
        *,
        cursor_of: Callable[[bytes], Stamp],
    ) -> None:
        self._access = access
        self._buffer = buffer
        self._connections = connections
        self._delivery = delivery
        self._cursor_of = cursor_of

    def clients(self, gateway: str, place: str, limit: int) -> tuple[list[ClientReport], str]:
        """Return some clients behind a place, and the next place, or "" if there are no more.

        Cost in read units: one for some thirty clients and 16 at the most, one for each client of
        the page that was never noted, and one for some ten connections of the gateway.
        """
        page, following = self._access.clients(gateway, place, limit)
        connected, _ = self._connections.of_gateway(gateway)
        revoked = {(each.kind, each.name) for each in self._access.revocations(gateway)}
        top = max((head.commit for head in self._buffer.heads(gateway).values()), default=0)
        reports = [
            ClientReport(
                client.client_id,
                client.user,
                concerned(connected, "client", client.client_id),
                bool(revoked & {("client", client.client_id), ("user", client.user)}),
                self._behind_ms(gateway, client, top),
                client.seen,
            )
            for client in page
        ]
        return reports, following

    def connected(self, gateway: str, client_id: str) -> list[Connection]:
        """Return the connections of a client."""
        connections, _ = self._connections.of_gateway(gateway)
        return concerned(connections, "client", check_client_id(client_id))

    def disconnect(self, gateway: str, client_id: str) -> int:
        """Close all connections of a client, which may connect again; returns their number."""
        error = Unavailable("an administrator closed this connection; connect again in a moment")
        connections = self.connected(gateway, client_id)
        self._delivery.refuse([(each, error) for each in connections])
        return len(connections)

    def _behind_ms(self, gateway: str, client: KnownClient, top: Stamp) -> int | None:
        if client.seen is not None:
            cursor = client.seen.cursor
        else:
            state = self._buffer.client_state(gateway, client.client_id)
            cursor = self._cursor_of(state) if state is not None else 0
        return max(stamp_ms(top) - stamp_ms(cursor), 0) if cursor else None
