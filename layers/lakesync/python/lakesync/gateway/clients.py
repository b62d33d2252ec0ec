"""Who uses a gateway: its clients, whether each is connected, and how far behind it is.

Nothing is written for it: a pull of a current client leaves no trace, so how far one is behind is
known of followers alone, whose cursor is stored; one that is connected is told of every commit.
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
    from lakesync.ports import AccessStore, Buffer, Connection, Connections


@dataclass(frozen=True, slots=True)
class ClientReport:
    """One client, as far as its gateway knows it."""

    client_id: str
    user: str
    connections: Sequence[Connection]
    is_revoked: bool
    """It is shut out, or its user is."""
    behind_ms: int | None
    """How far the cursor it last came with is behind the newest commit; None if it is not known."""


class ClientsAdmin:
    """Shows a gateway's clients, and closes their connections.

    Args:
        access: whose each client is, and who is shut out.
        buffer: the heads, and what is remembered of followers.
        connections: who is connected.
        delivery: closes connections.
        cursor_of: reads a follower's cursor out of what is remembered of it.
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
        """Give some clients behind a place, and the next place, or "" if there are no more.

        Cost in read units: one for some thirty clients and 16 at the most, one for each client of
        the page, and one for some ten connections of the gateway.
        """
        page, following = self._access.clients(gateway, place, limit)
        connected, _ = self._connections.of_gateway(gateway)
        revoked = {(each.kind, each.name) for each in self._access.revocations(gateway)}
        top = max((head.commit for head in self._buffer.heads(gateway).values()), default=0)
        reports = [
            ClientReport(
                client_id,
                user,
                concerned(connected, "client", client_id),
                bool(revoked & {("client", client_id), ("user", user)}),
                self._behind_ms(gateway, client_id, top),
            )
            for client_id, user in page
        ]
        return reports, following

    def connected(self, gateway: str, client_id: str) -> list[Connection]:
        """Give the connections of a client."""
        connections, _ = self._connections.of_gateway(gateway)
        return concerned(connections, "client", check_client_id(client_id))

    def disconnect(self, gateway: str, client_id: str) -> int:
        """Close all connections of a client, which may connect again; gives how many they were."""
        error = Unavailable("an administrator closed this connection; connect again in a moment")
        connections = self.connected(gateway, client_id)
        self._delivery.refuse([(each, error) for each in connections])
        return len(connections)

    def _behind_ms(self, gateway: str, client_id: str, top: Stamp) -> int | None:
        state = self._buffer.client_state(gateway, client_id)
        cursor = self._cursor_of(state) if state is not None else 0
        return max(stamp_ms(top) - stamp_ms(cursor), 0) if cursor else None
