"""Single-use tickets for handshakes, for clients that can set neither header nor sub-protocol.

A ticket is part of an address, which may be logged and read: that is why it is good for one
handshake within half a minute, and stored as a digest. It is not the token, and no token can be
derived from it; the connection is bound by the claims and the expiry of the token that requested
it.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from typing import TYPE_CHECKING, Final

from lakesync.errors import AuthFailed
from lakesync.runtime.auth import token_claims

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.ports import Tickets, WallClock
    from lakesync.runtime.auth import TokenClaims

TICKET_S_MAX: Final = 30
"""How long a ticket is good for: a handshake follows at once."""
_RANDOM_BYTES: Final = 32
_TICKET: Final = re.compile(r"[A-Za-z0-9_-]{43}")
"""As `_RANDOM_BYTES` are written."""


class SocketTickets:
    """Issues tickets and redeems them.

    Args:
        tickets: remembers them.
        wall_clock: the time.
        random_text: gives URL-safe text of as many random bytes.
    """

    def __init__(
        self,
        tickets: Tickets,
        *,
        wall_clock: WallClock,
        random_text: Callable[[int], str] = secrets.token_urlsafe,
    ) -> None:
        self._tickets = tickets
        self._wall_clock = wall_clock
        self._random_text = random_text

    def issue(self, claims: TokenClaims) -> str:
        """Return a ticket by which one WebSocket can be opened with a token's claims."""
        ticket = self._random_text(_RANDOM_BYTES)
        until_ms = self._wall_clock() + TICKET_S_MAX * 1000
        self._tickets.keep(_digest(ticket), claims.all, until_ms)
        return ticket

    def redeem(self, ticket: str) -> TokenClaims:
        """Return the claims that a ticket was issued for, once.

        Raises:
            AuthFailed: it is invalid, was redeemed, or has expired; the message does not state
                which.
        """
        if _TICKET.fullmatch(ticket):
            claims = self._tickets.take(_digest(ticket), self._wall_clock())
            if claims is not None:
                return token_claims(claims)
        raise AuthFailed(
            "this ticket is unknown, used or expired: fetch a new one for each handshake"
        )


def _digest(ticket: str) -> str:
    return hashlib.sha256(ticket.encode()).hexdigest()
