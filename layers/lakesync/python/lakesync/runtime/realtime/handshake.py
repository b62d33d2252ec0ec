"""Where a handshake carries its token: in the sub-protocols, or the address if allowed.

A ticket may stand in the address in its place.

The only header of a WebSocket that a browser can set is the list of sub-protocols: ``lakesync.v1``
and ``bearer.`` followed by the token. The first of them is chosen; the other is never repeated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lakesync.core.messages import BEARER, SUB_PROTOCOL
from lakesync.errors import AuthFailed, ValidationFailed

if TYPE_CHECKING:
    from collections.abc import Mapping

NO_SOCKET_TOKEN: Final = (
    "offer the sub-protocols lakesync.v1 and bearer.<JWT>, or fetch a ticket for the address"  # noqa: S105
)


def offered(event: Mapping[str, Any]) -> list[str]:
    """Return the sub-protocols that a handshake offers."""
    headers = event.get("headers") or {}
    text = next(
        (value for name, value in headers.items() if name.lower() == "sec-websocket-protocol"), ""
    )
    return [word.strip() for word in str(text).split(",") if word.strip()]


def socket_token(event: Mapping[str, Any], *, in_query: bool) -> str:
    """Return the token of a handshake.

    Args:
        event: the handshake, as API Gateway passes it.
        in_query: a token in the address is accepted too.

    Raises:
        AuthFailed: there is none.
    """
    for word in offered(event):
        if word.startswith(BEARER):
            return word.removeprefix(BEARER)
    token = query(event).get("token")
    if in_query and token:
        return token
    raise AuthFailed(NO_SOCKET_TOKEN)


def socket_ticket(event: Mapping[str, Any]) -> str:
    """Return the ticket of a handshake that offers no token; "" if there is none."""
    if any(word.startswith(BEARER) for word in offered(event)):
        return ""
    return query(event).get("ticket", "")


def query(event: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the parameters of a handshake's address."""
    return event.get("queryStringParameters") or {}


def chosen(event: Mapping[str, Any]) -> dict[str, str]:
    """Return the headers that name the sub-protocol chosen.

    Raises:
        ValidationFailed: it offers some, and this is none of them.
    """
    words = offered(event)
    if not words:
        return {}
    if SUB_PROTOCOL not in words:
        raise ValidationFailed(f"offer the sub-protocol {SUB_PROTOCOL}")
    return {"Sec-WebSocket-Protocol": SUB_PROTOCOL}
