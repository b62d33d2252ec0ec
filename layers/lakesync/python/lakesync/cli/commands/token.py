"""`lakesync token`: sign a token for a user, a client or an administrator."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated, Final

import typer

from lakesync.cli.faults import UsageFault
from lakesync.cli.session import Session, command

if TYPE_CHECKING:
    from collections.abc import Iterable

ROLES: Final = ("client", "operator", "admin")
_RESERVED: Final = frozenset({"sub", "gw", "role", "iat", "exp"})


@command
def token(
    session: Session,
    *,
    user: Annotated[
        str | None, typer.Option(help="The token's user; by default the client id.")
    ] = None,
    role: Annotated[
        str, typer.Option(help="client, operator (sees metrics and the audit, no rows) or admin.")
    ] = "client",
    ttl: Annotated[str, typer.Option(help="The token's lifetime: 90s, 30m, 1h, 7d.")] = "1h",
    claim: Annotated[
        list[str] | None,
        typer.Option(
            help=(
                "A further claim, name=value; sync rules may use it. A value that is JSON is that "
                """JSON, also a list: 'carriers=["UA","AA"]'; any other is text. Repeatable."""
            )
        ),
    ] = None,
) -> None:
    """Sign a token with the stack's secret, and print only the token.

    Until it expires, its holder can act as the user, and as any client id that belongs to the user
    or that nobody has used yet. Needs AWS credentials.

    Example:
      export LAKESYNC_TOKEN=$(lakesync token --client phone-1 --ttl 1h)
      lakesync token --user ann --ttl 7d
      lakesync token --client ops --role admin --claim region=eu
    """
    from lakesync.cli.tokens import sign, ttl_s

    if role not in ROLES:
        raise UsageFault(f"--role {role[:20]!r} is none: use {' or '.join(ROLES)}")
    connection = session.connection
    seconds = ttl_s(ttl)
    now_s = int(time.time())
    claims = _claims(claim or ()) | {
        "sub": connection.client if user is None else user,
        "gw": connection.gateway,
        "role": role,
    }
    signed = sign(claims, seconds, session.aws.jwt_secret(), now_s)
    session.out.answer({"token": signed, "expires": now_s + seconds, **claims}, signed)


def _claims(pairs: Iterable[str]) -> dict[str, object]:
    claims: dict[str, object] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name or name in _RESERVED:
            raise UsageFault(f"--claim {pair[:40]!r} is none: write name=value, not one of ours")
        try:
            claims[name] = json.loads(text)
        except ValueError:
            claims[name] = text
    return claims
