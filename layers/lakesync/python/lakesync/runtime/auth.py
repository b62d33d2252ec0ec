"""Callers: who they are, what they may do, and how far a client has read.

The authoriser verifies a token once and API Gateway may reuse its answer, for up to the cache's
lifetime, on *every* route and for *every* gateway id. So the answer never means "allowed": it
passes on the token's claims, and each request is decided here, by its own address and at its own
time. A missing or unreadable claim is refused.

Roles: a ``client`` reads and writes rows. An ``operator`` sees how the gateway performs and who
uses it, but no rows, and changes nothing. An ``admin`` may do all of it. A route that is not named
here cannot be created. Law U6: ``docs/spec/access.md``.

Why: ``docs/adr/0002-authoriser-answers.md``.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from lakesync.core.delta import check_client_id
from lakesync.core.messages import QUARANTINED_MAX
from lakesync.errors import AuthFailed, Forbidden, LakeSyncError, ValidationFailed
from lakesync.gateway.access import check_user
from lakesync.runtime import observe

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lakesync.core.messages import Pull
    from lakesync.gateway.access import Access

    Context: TypeAlias = dict[str, str]

# --- roles of routes ------------------------------------------------------------------------------


CLIENT: Final = "client"
OPERATOR: Final = "operator"
ADMIN: Final = "admin"
ROLES: Final = (CLIENT, OPERATOR, ADMIN)

_ROWS: Final = (CLIENT, ADMIN)
_LOOKS: Final = (OPERATOR, ADMIN)
_ALL: Final = (ADMIN,)

ALLOWED: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "push": _ROWS,
        "pull": _ROWS,
        "pullByPost": _ROWS,
        "checkpoint": _ROWS,
        "metrics": _ROWS,
        "clientSchemas": _ROWS,
        "runActions": _ROWS,
        "actions": _ROWS,
        "uploadAttachment": _ROWS,
        "downloadAttachment": _ROWS,
        "connect": _ROWS,
        "ticket": _ROWS,
        "adminMetrics": _LOOKS,
        "audit": _LOOKS,
        "clients": _LOOKS,
        "access": _LOOKS,
        "schemas": _LOOKS,
        "syncRules": _LOOKS,
        "tables": _LOOKS,
        "flushing": _LOOKS,
        "registerSchema": _ALL,
        "saveSyncRules": _ALL,
        "placeTable": _ALL,
        "removeTable": _ALL,
        "changeAccess": _ALL,
        "disconnectClient": _ALL,
        "flush": _ALL,
        "saveFlushing": _ALL,
        "deleteGateway": _ALL,
        # A source's or a database's text of its last error, and of dead letters, may contain
        # values.
        "connectors": _ALL,
        "connector": _ALL,
        "registerConnector": _ALL,
        "changeConnector": _ALL,
        "removeConnector": _ALL,
        "destinations": _ALL,
        "declareDestination": _ALL,
        "changeDestination": _ALL,
        "removeDestination": _ALL,
        "flows": _ALL,
        "declareFlow": _ALL,
        "changeFlow": _ALL,
        "removeFlow": _ALL,
        "actionHandlers": _ALL,
        "registerActionHandler": _ALL,
        "removeActionHandler": _ALL,
    }
)
"""By what the API's description names each route; ``connect`` is the WebSocket's handshake."""
EVEN_DELETED: Final = frozenset({"deleteGateway", "audit"})
"""What may be asked of a gateway that was deleted: to go on, and who did it."""


# --- callers --------------------------------------------------------------------------------------


LEEWAY_S: Final = 5
"""How far the token issuer's clock and ours may differ."""
GATEWAY_ID: Final = r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}"
_GATEWAY_ID = re.compile(GATEWAY_ID)
_TIME_MAX_S: Final = 1 << 40
NO_TOKEN: Final = "send a token: Authorization: Bearer <JWT>"  # noqa: S105 - a sentence


@dataclass(frozen=True, slots=True)
class TokenClaims:
    """What a verified token says. Made by `token_claims`, and valid."""

    user: str
    """The claim ``sub``."""
    gateway: str
    role: str
    expires_s: float
    all: Mapping[str, Any]
    """Every claim of the token; sync rules may name any of them."""


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller who may use one gateway, now."""

    token: TokenClaims
    access: Access

    def speaks_for(self, client_id: str | None) -> str:
        """Return the client that a request is for: the named one, else that of the user's own name.

        Raises:
            ValidationFailed: it is not a client id that a user may have.
            ClientTaken: the client is another user's.
            Revoked: the client's access is revoked.
        """
        client_id = check_client_id(self.token.user if client_id is None else client_id)
        self.access.check_client(self.token.gateway, self.token.user, client_id)
        return client_id

    @property
    def is_administrator(self) -> bool:
        """Return whether the token's role is ``admin``."""
        return self.token.role == ADMIN

    def must_be_one_of(self, roles: Sequence[str]) -> None:
        """Refuse a caller who has none of some roles.

        Raises:
            Forbidden: the token's role is another.
        """
        if self.token.role not in roles:
            raise Forbidden(f"this route needs a token whose role is {' or '.join(roles)}")


def token_claims(payload: Mapping[str, Any]) -> TokenClaims:
    """Make claims of a verified token's payload, or of the authoriser's copy of it.

    Raises:
        AuthFailed: a required claim is missing or of another type.
    """
    user, gateway = payload.get("sub"), payload.get("gw")
    expires, role = payload.get("exp", -1), payload.get("role", CLIENT)
    if not isinstance(user, str) or not isinstance(gateway, str):
        raise AuthFailed("the token needs the claims sub and gw, both text")
    try:
        check_user(user)
    except ValidationFailed as exc:
        raise AuthFailed(f"the token's sub is not a valid user: {exc}") from exc
    if not is_gateway(gateway):
        raise AuthFailed("the token's gw is not a gateway id: letters, digits, _ and -, at most 64")
    if not is_time(expires):
        raise AuthFailed("the token needs the claim exp, a number of seconds since 1970")
    if role not in ROLES:
        raise AuthFailed(f"the token's role must be one of {', '.join(ROLES)}")
    return TokenClaims(user, gateway, role, float(expires), MappingProxyType(dict(payload)))


def is_gateway(value: Any) -> bool:
    """Return whether a value is a gateway id."""
    return isinstance(value, str) and _GATEWAY_ID.fullmatch(value) is not None


def is_time(value: Any) -> bool:
    """Return whether a claim is a number of seconds since 1970, within reason."""
    # A bool is an int to Python; NaN is in no range.
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and 0 <= value <= _TIME_MAX_S


def check_expiry(claims: TokenClaims, now_s: float) -> None:
    """Refuse a token whose time is over.

    Raises:
        AuthFailed: it expired more than `LEEWAY_S` ago.
    """
    if now_s > claims.expires_s + LEEWAY_S:
        raise AuthFailed("the token has expired; get a fresh one")


def verified(claims: TokenClaims) -> Context:
    """Return the authoriser's answer for a good token.

    Raises:
        AuthFailed: a claim is NaN or infinite, which JSON cannot represent.
    """
    try:
        return {"claims": json.dumps(dict(claims.all), separators=(",", ":"), allow_nan=False)}
    except ValueError as exc:
        raise AuthFailed("the token's claims are not JSON") from exc


def refused(error: AuthFailed) -> Context:
    """Return the authoriser's answer for a bad token: the message that the function will return."""
    return {"refused": error.message}


def claims_of(context: object) -> TokenClaims:
    """Return the claims that the authoriser's answer hands on.

    Raises:
        AuthFailed: there is no answer, or it refuses.
    """
    if not isinstance(context, dict):
        raise AuthFailed(NO_TOKEN)
    if "refused" in context:
        raise AuthFailed(str(context["refused"]))
    try:
        payload = json.loads(context["claims"])
    except (KeyError, TypeError, ValueError) as exc:
        raise AuthFailed(NO_TOKEN) from exc
    if not isinstance(payload, dict):
        raise AuthFailed(NO_TOKEN)
    return token_claims(payload)


def caller_of(
    context: object, gateway: str, now_s: float, access: Access, *, even_deleted: bool = False
) -> Caller:
    """Decide one request by the authoriser's answer, its gateway, the time, and revocations.

    Args:
        context: the answer, as passed on by API Gateway; anything else is refused.
        gateway: the id in the request's path.
        now_s: seconds since 1970.
        access: admits users and clients.
        even_deleted: admit them even if the gateway was deleted.

    Raises:
        AuthFailed: there is no answer, or it refuses, or the token has expired since.
        Forbidden: the token is for another gateway.
        Revoked: its user's access is revoked.
        GatewayDeleted: the gateway was deleted.
    """
    claims = claims_of(context)
    check_expiry(claims, now_s)
    if claims.gateway != gateway:
        raise Forbidden("the token is for another gateway; its gw must equal the id in the path")
    access.check_user(gateway, claims.user, even_deleted=even_deleted)
    return Caller(claims, access)


# --- what pulls reveal ----------------------------------------------------------------------------


def noted(access: Access, gateway: str, pull: Pull) -> None:
    """Note how far a client has read and what it has in quarantine; its answer never waits on it.

    A follower's cursor is moved by receipts too, and is stored elsewhere; a source has none.
    """
    if not pull.own_cursor or pull.source:
        return
    quarantined = None if pull.quarantined is None else min(pull.quarantined, QUARANTINED_MAX)
    cursor = 0 if pull.snapshot else pull.since
    try:
        access.note(gateway, pull.client_id, cursor, quarantined)
    except LakeSyncError as error:
        observe.failure(error, route="noting")
