"""Who is connected: which connections may be served, which the sweep closes, and what is shown.

A connection has a reason why it may no longer be served, or a scope, which others may share. The
sweep closes those that may no longer be served, and removes dead ones.

Administrators are shown each client, whether it is connected, and how far behind it is. A client is
noted when it pulls (`lakesync.gateway.access`), at most every quarter of an hour, and only if
something changed. For a follower the cursor of its last request is stored.
Laws T6, T9: ``docs/spec/realtime.md``.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple

from lakesync.core.clock import stamp_ms
from lakesync.core.delta import check_client_id
from lakesync.core.messages import PullPage
from lakesync.core.rules import rules_to_json
from lakesync.core.visibility import Viewer, digest_of
from lakesync.errors import AuthFailed, GatewayDeleted, RateLimited, Revoked, Unavailable
from lakesync.ports import CONNECTION_S_MAX, GATEWAY_KIND
from lakesync.wire.records import decode_records

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lakesync.core.clock import Stamp
    from lakesync.core.config import GatewayConfig
    from lakesync.errors import LakeSyncError
    from lakesync.gateway.access import Access
    from lakesync.gateway.frame_sending import FrameSender
    from lakesync.ports import (
        AccessStore,
        Buffer,
        Connection,
        Connections,
        KnownClient,
        Seen,
        WallClock,
    )

# --- the state of a connection --------------------------------------------------------------------


CLIENT_CONNECTIONS_MAX: Final = 10
"""Connections of one client: tabs and processes that share its file."""
GATEWAY_CONNECTIONS_MAX: Final = 100_000
"""Connections of one gateway: as many as one process can notify within its turn."""
_COME_AGAIN_S: Final = 120
_CLIENT_HAS_MANY: Final = (
    f"this client keeps more than {CLIENT_CONNECTIONS_MAX} connections: close some, or give each "
    "device a client id of its own"
)
_GATEWAY_IS_FULL: Final = (
    f"the gateway keeps {GATEWAY_CONNECTIONS_MAX:,} connections already: pull instead"
)


@dataclass(frozen=True, slots=True)
class Group:
    """Connections that see the same rows."""

    scope: str
    """The text of their scope."""
    claims: Mapping[str, object]
    connections: list[Connection] = field(default_factory=list)


def refusal_of(connection: Connection, access: Access, now_s: float) -> LakeSyncError | None:
    """Return the reason why a connection may no longer be served; None if it may."""
    if now_s > connection.expires_s:
        return AuthFailed("the token has expired; get a fresh one and connect again")
    try:
        access.check_user(connection.gateway, connection.user)
        access.check_not_revoked(connection.gateway, connection.client_id)
    except (Revoked, GatewayDeleted) as error:
        return error
    return None


def concerned(connections: Sequence[Connection], kind: str, name: str) -> list[Connection]:
    """Return the connections of a user, of a client, or, if its gateway was deleted, all."""
    if kind == GATEWAY_KIND:
        return list(connections)
    return [
        each for each in connections if name == (each.user if kind == "user" else each.client_id)
    ]


class Classified(NamedTuple):
    allowed: list[Connection]
    refused: list[tuple[Connection, LakeSyncError]]
    """Those that may no longer be served, with the reasons."""
    dead: list[Connection]
    """Those that API Gateway has ended, whether it reported that or not."""


def classified(connections: Sequence[Connection], access: Access, now_s: float) -> Classified:
    """Return which of a gateway's connections may be served, which may not, and which are gone."""
    allowed, refused = [], []
    oldest_ms = 1000 * (now_s - CONNECTION_S_MAX)
    living = [each for each in connections if each.opened_ms >= oldest_ms]
    dead = []
    if len(living) < len(connections):
        dead = [each for each in connections if each.opened_ms < oldest_ms]
    surplus = surplus_of(living)
    for connection in living:
        error = refusal_of(connection, access, now_s) or surplus.get(connection.id)
        if error is None:
            allowed.append(connection)
        else:
            refused.append((connection, error))
    return Classified(allowed, refused, dead)


def surplus_of(connections: Sequence[Connection]) -> dict[str, LakeSyncError]:
    """Return those of a gateway's connections that exceed a limit, with the reasons.

    For a client they are the oldest ones, whose other side may be gone; for a gateway the newest.
    """
    surplus: dict[str, LakeSyncError] = {}
    times = Counter(connection.client_id for connection in connections)
    for client_id in [name for name, count in times.items() if count > CLIENT_CONNECTIONS_MAX]:
        own = sorted(
            (one for one in connections if one.client_id == client_id), key=_opened, reverse=True
        )
        surplus |= _refused(own[CLIENT_CONNECTIONS_MAX:], _CLIENT_HAS_MANY)
    if len(connections) - len(surplus) > GATEWAY_CONNECTIONS_MAX:
        left = sorted((one for one in connections if one.id not in surplus), key=_opened)
        surplus |= _refused(left[GATEWAY_CONNECTIONS_MAX:], _GATEWAY_IS_FULL)
    return surplus


def _refused(connections: Sequence[Connection], why: str) -> dict[str, LakeSyncError]:
    return {one.id: RateLimited(why, retry_after_s=_COME_AGAIN_S) for one in connections}


def _opened(connection: Connection) -> tuple[int, str]:
    return connection.opened_ms, connection.id


def rules_digest(config: GatewayConfig) -> str:
    """Return a digest of all that decides besides claims: the rules, and the logged columns."""
    return digest_of([rules_to_json(config.rules), config.logged.generation])


def scope_text(config: GatewayConfig, claims: Mapping[str, object]) -> str:
    return Viewer(config.rules, claims, config.logged.generation).scope().text()


def scoped(connection: Connection, config: GatewayConfig, rules: str) -> Connection:
    scope = digest_of(scope_text(config, connection.claims))
    return replace(connection, scope=scope, rules=rules)


def poke_at(top: Stamp, epoch: str, scope: str) -> PullPage:
    """Return the page that asks a group's readers to pull.

    By its scope they see whether other rules decide now, so that not all of them read again at the
    same moment.
    """
    return PullPage((), 0, top, has_more=True, epoch=epoch, scope=scope)


def writers_of(records: Sequence[bytes]) -> set[str]:
    """Return the clients whose deltas a page holds."""
    return {delta.client_id for run in records for delta in decode_records(run)}


# --- the sweep ------------------------------------------------------------------------------------


class ConnectionSweep:
    """Examines the connections of all gateways. One for each process; one call at a time."""

    def __init__(
        self, connections: Connections, sender: FrameSender, access: Access, wall_clock: WallClock
    ) -> None:
        self._connections = connections
        self._sender = sender
        self._access = access
        self._wall_clock = wall_clock
        self._place = ""
        """Where the sweep continues, as the last one had no time for the rest."""

    def sweep(self, has_time: Callable[[], bool]) -> int:
        """Close or remove connections that may no longer be served; returns how many.

        A sweep that runs out of time continues from there the next time.
        """
        over = 0
        gathered: list[Connection] = []
        while True:
            some, self._place = self._connections.scan(self._place)
            gathered += some
            is_last = not self._place or not has_time()
            # A gateway's connections are consecutive, and may continue in the next part.
            last = "" if is_last else gathered[-1].gateway if gathered else ""
            for gateway, of_gateway in groupby(gathered, key=lambda each: each.gateway):
                if gateway != last:
                    over += self._sweep_gateway(list(of_gateway), has_time)
            if is_last:
                return over
            gathered = [each for each in gathered if each.gateway == last]

    def _sweep_gateway(self, connections: list[Connection], has_time: Callable[[], bool]) -> int:
        now_s = self._wall_clock() / 1000
        _, refused, dead = classified(connections, self._access, now_s)
        forgotten = self._sender.forget(dead, has_time)
        return forgotten + self._sender.refuse(refused, has_time)


# --- clients, for administrators ------------------------------------------------------------------


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
        cursor_of: reads a follower's cursor from its stored state.
    """

    def __init__(
        self,
        access: AccessStore,
        buffer: Buffer,
        connections: Connections,
        sender: FrameSender,
        *,
        cursor_of: Callable[[bytes], Stamp],
    ) -> None:
        self._access = access
        self._buffer = buffer
        self._connections = connections
        self._sender = sender
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
        connections, _ = self._connections.of_gateway(gateway)
        return concerned(connections, "client", check_client_id(client_id))

    def disconnect(self, gateway: str, client_id: str) -> int:
        """Close all connections of a client, which may connect again; returns their number."""
        error = Unavailable("an administrator closed this connection; connect again in a moment")
        connections = self.connected(gateway, client_id)
        self._sender.refuse([(each, error) for each in connections])
        return len(connections)

    def _behind_ms(self, gateway: str, client: KnownClient, top: Stamp) -> int | None:
        if client.seen is not None:
            cursor = client.seen.cursor
        else:
            state = self._buffer.client_state(gateway, client.client_id)
            cursor = self._cursor_of(state) if state is not None else 0
        return max(stamp_ms(top) - stamp_ms(cursor), 0) if cursor else None
