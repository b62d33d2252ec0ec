"""What is known of a connection: why it may no longer be served, and with whom it sees the same."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from lakesync.core.messages import PullPage
from lakesync.core.rules import rules_to_json
from lakesync.core.scope import digest_of
from lakesync.core.visibility import Viewer
from lakesync.errors import AuthFailed, GatewayDeleted, Revoked
from lakesync.wire.frames import encode_broadcast
from lakesync.wire.records import decode_records

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lakesync.core.clock import Stamp
    from lakesync.core.config import GatewayConfig
    from lakesync.errors import LakeSyncError
    from lakesync.gateway.access import Access
    from lakesync.ports import Connection


@dataclass(frozen=True, slots=True)
class Group:
    """Connections that see the same rows."""

    scope: str
    """The text of their scope."""
    claims: Mapping[str, object]
    connections: list[Connection] = field(default_factory=list)


def refusal_of(connection: Connection, access: Access, now_s: float) -> LakeSyncError | None:
    """Give why a connection may not be served any longer; None if it may."""
    if now_s > connection.expires_s:
        return AuthFailed("the token has expired; get a fresh one and connect again")
    try:
        access.check_user(connection.gateway, connection.user)
        access.check_not_revoked(connection.gateway, connection.client_id)
    except (Revoked, GatewayDeleted) as error:
        return error
    return None


def rules_digest(config: GatewayConfig) -> str:
    """Give a digest of all that decides, but for claims: the rules, and what of rows is logged."""
    return digest_of([rules_to_json(config.rules), config.logged.generation])


def scope_text(config: GatewayConfig, claims: Mapping[str, object]) -> str:
    """Give the text of the scope that claims have under the rules in force."""
    return Viewer(config.rules, claims, config.logged.generation).scope().text()


def scoped(connection: Connection, config: GatewayConfig, rules: str) -> Connection:
    """Give a connection with its scope under the rules in force."""
    scope = digest_of(scope_text(config, connection.claims))
    return replace(connection, scope=scope, rules=rules)


def poke_at(top: Stamp) -> str:
    """Give the frame that tells a reader to pull."""
    return encode_broadcast(PullPage((), 0, top, has_more=True))


def writers_of(records: Sequence[bytes]) -> set[str]:
    """Give the clients whose deltas a page holds."""
    return {delta.client_id for run in records for delta in decode_records(run)}
