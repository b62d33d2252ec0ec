"""`lakesync secret`: the secret with which a tenant signs tokens for its own gateway alone."""

from __future__ import annotations

from lakesync.cli.session import Session, command


@command
def secret(session: Session) -> None:
    """Print the gateway's own secret, for a tenant who signs the tokens of its users itself.

    A token that is signed with it (HS256) is good for this gateway and no other. It is made from
    the stack's secret, and holds as long as that; how one is taken out of force is in
    docs/operations.md.

    Example:
      lakesync secret --gateway acme
    """
    from lakesync.core.gateway_secret import gateway_secret

    gateway = session.connection.gateway
    generation = session.aws.generation(gateway)
    own = gateway_secret(session.aws.jwt_secret(), gateway, generation)
    session.out.answer({"gateway": gateway, "secret": own, "generation": generation}, own)
