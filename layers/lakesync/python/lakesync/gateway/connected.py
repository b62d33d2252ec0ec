"""The state of a connection: why it may no longer be served, and which ones share its scope."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from lakesync.core.messages import PullPage
from lakesync.core.rules import rules_to_json
from lakesync.core.scope import digest_of
from lakesync.core.visibility import Viewer
from lakesync.errors import AuthFailed, GatewayDeleted, RateLimited, Revoked
from lakesync.ports import CONNECTION_S_MAX, GATEWAY_KIND
from lakesync.wire.frames import encode_broadcast
from lakesync.wire.records import decode_records

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lakesync.core.clock import Stamp
    from lakesync.core.config import GatewayConfig
    from lakesync.errors import LakeSyncError
    from lakesync.gateway.access import Access
    from lakesync.ports import Connection


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
    """A gateway's connections, classified."""

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
    """Return the text of the scope that claims have under the rules in force."""
    return Viewer(config.rules, claims, config.logged.generation).scope().text()


def scoped(connection: Connection, config: GatewayConfig, rules: str) -> Connection:
    """Return a connection with its scope under the rules in force."""
    scope = digest_of(scope_text(config, connection.claims))
    return replace(connection, scope=scope, rules=rules)


def poke_at(top: Stamp, epoch: str, scope: str) -> str:
    """Return the frame that asks a group's readers to pull.

    By its scope they see whether other rules decide now, so that not all of them read again at the
    same moment.
    """
    return encode_broadcast(PullPage((), 0, top, has_more=True, epoch=epoch, scope=scope))


def writers_of(records: Sequence[bytes]) -> set[str]:
    """Return the clients whose deltas a page holds."""
    return {delta.client_id for run in records for delta in decode_records(run)}
