"""Whether there is a gateway of a name: a command that finds nothing says so if there is none.

A gateway comes into being with the first commit, or with the first declaration: a schema, sync
rules, a destination, a connector, an action handler, a revocation, a quota. What only reads it
leaves nothing behind, except for the user of each client, so clients prove nothing. It is asked for
only where a command has found nothing, or is about to change something: it costs a request or two.
The gateway of a stack file is there from the stack's start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lakesync.errors import Forbidden, GatewayDeleted, NotFound

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lakesync.cli.session import Session

_DECLARED: Final = (
    ("/admin/destinations/", "destinations"),
    ("/admin/connectors/", ""),
    ("/admin/actions/", "handlers"),
    ("/admin/access/", "revoked"),
)
"""What may be declared before the first commit: each route, and the list in its answer."""
_NO_PROOF: Final = frozenset({"clients", "users", "flush"})
"""Items that a gateway's readers leave, whatever its name."""


def must_exist(session: Session, *proofs: object) -> None:
    """Refuse a gateway that does not exist, by asking it, unless there is a proof of it.

    Args:
        session: of the command.
        proofs: what the command has read of the gateway; any of it that is not empty is a proof.

    Raises:
        NotFound: nothing was ever pushed to it or declared for it.
        LakeSyncError: it could not be asked.
    """
    if _is_taken_for_granted(session, proofs) or _is_known(session):
        return
    raise _none(session)


def must_exist_in_stack(session: Session, *proofs: object) -> None:
    """Do the same with AWS credentials, by what the stack's table holds.

    Raises:
        NotFound: the table and its quota hold nothing of the gateway.
        LakeSyncError: the table could not be read.
    """
    if _is_taken_for_granted(session, proofs):
        return
    from lakesync.buffer.removal import DynamoItems

    aws, gateway = session.aws, session.connection.gateway
    table = aws.output("BufferTable")
    if aws.buffer(table).config(gateway).version:
        return
    counts = DynamoItems(table, aws.dynamo()).count(gateway, ())
    if not any(number for kind, number in counts.items() if kind not in _NO_PROOF):
        raise _none(session)


def _is_taken_for_granted(session: Session, proofs: Iterable[object]) -> bool:
    gateway, own = session.connection.gateway, session.connection.own_gateway
    return gateway == own or any(proofs)


def _is_known(session: Session) -> bool:
    gateway = session.connection.gateway
    try:
        metrics = session.ask("GET", f"/admin/metrics/{gateway}")
    except GatewayDeleted:
        return True  # it was
    except Forbidden:
        return _is_known_to_clients(session)
    if _holds(metrics):
        return True
    try:
        return any(_listed(session.ask("GET", path + gateway), of) for path, of in _DECLARED)
    except Forbidden:  # an operator's token; a commit or a configuration is all that it sees
        return False


def _is_known_to_clients(session: Session) -> bool:
    return _holds(session.ask("GET", f"/sync/{session.connection.gateway}/metrics"))


def _holds(metrics: dict[str, Any]) -> bool:
    """Return whether metrics are of a gateway with a commit or a configuration.

    Where rules keep anything from the caller, there is a configuration, and its version is left
    out.
    """
    return metrics["headHlc"] != "0" or bool(metrics.get("configVersion", True))


def _listed(answer: Any, name: str) -> Any:
    return answer[name] if name else answer


def _none(session: Session) -> NotFound:
    return NotFound(
        f"there is no gateway {session.connection.gateway}: nothing was ever pushed to it or "
        "declared for it; check the name (--gateway, LAKESYNC_GATEWAY)",
        field="gateway",
    )
