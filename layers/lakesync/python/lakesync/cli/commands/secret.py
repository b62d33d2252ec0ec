"""`lakesync secret`: the secret with which a tenant signs tokens for its own gateway only."""

from __future__ import annotations

from lakesync.cli.session import Session, command


@command
def secret(session: Session) -> None:
    """Print the gateway's own secret, with which a tenant can sign tokens for its users.

    A token that is signed with it (HS256) is valid for this gateway only. The secret is derived
    from the stack's secret and is valid as long as that; docs/operations.md describes how to
    revoke it. Needs AWS credentials.

    Example:
      lakesync secret --gateway acme
    """
    from lakesync.core.gateway_secret import gateway_secret

    gateway = session.connection.gateway
    generation = session.aws.generation(gateway)
    own = gateway_secret(session.aws.jwt_secret(), gateway, generation)
    session.out.answer({"gateway": gateway, "secret": own, "generation": generation}, own)
