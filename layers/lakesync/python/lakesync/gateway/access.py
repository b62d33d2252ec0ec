"""To which user each client belongs, and who is revoked.

Rules of this module
    1. A client belongs to the user who used it first. One conditional write decides this, and it
       stays so until an administrator releases the client.
    2. A look-up is cached for `REMEMBERED_MS_MAX` at most, whatever the clock does. A client is
       never refused as another user's from the cache alone.
    3. A user or client that cannot be looked up is refused.
    4. What is noted of a client is read with its user, and is not written again if it is the same,
       or if the last contact is too recent to be worth a write.

Laws U1-U4 and U7: ``docs/spec/access.md``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from lakesync.core.delta import CONNECTORS_USER, check_client_id, check_own_client_id
from lakesync.core.values import utf8_bytes
from lakesync.errors import ClientTaken, GatewayDeleted, Revoked, ValidationFailed
from lakesync.log.read import Ages
from lakesync.ports import GATEWAY_KIND, KnownClient, Revocation, Seen

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.core.clock import Stamp
    from lakesync.log.read import Moment
    from lakesync.ports import AccessStore, WallClock

KINDS: Final = ("user", "client")
REMEMBERED_MS_MAX: Final = 50_000
"""How long a look-up is cached. A revocation takes effect within a minute, even if a request is in
flight or the clock is being corrected."""
CLIENTS_REMEMBERED_MAX: Final = 20_000
"""Clients whose user one process caches: about 5 MB."""
GATEWAYS_REMEMBERED_MAX: Final = 64
"""Gateways whose revocations one process caches; each may take 1 MB."""
REVOCATIONS_MAX: Final = 5_000
"""Revoked users and clients of one gateway: each process reads all of them each minute.
Users who left permanently are removed from the identity provider, and need not be listed."""
USER_BYTES_MAX: Final = 255
"""Length of a user's name, the token's ``sub``: as long as OpenID Connect allows."""


def check_user(user: str) -> str:
    """Return a user's name if it is text of 1 to `USER_BYTES_MAX` bytes, and not the gateway's own.

    Raises:
        ValidationFailed: it is not.
    """
    if not 0 < utf8_bytes(user, "user") <= USER_BYTES_MAX:
        raise ValidationFailed(f"a user is text of 1 to {USER_BYTES_MAX} bytes", field="user")
    if user == CONNECTORS_USER:
        raise ValidationFailed(f"{user} is the user of connectors; choose another", field="user")
    return user


class Access:
    """Admits users and their clients. One for each process; one request at a time.

    Cost: half a read unit for each client and a read unit for each gateway, each at most once in
    `REMEMBERED_MS_MAX` of a process; a write unit when a client is first used or noted.

    Args:
        store: the store of users, clients and revocations.
        wall_clock: the time.
        monotonic_ms: a clock that never steps, but may stop while the process is frozen; the wall
            clock if left out.
    """

    def __init__(
        self,
        store: AccessStore,
        *,
        wall_clock: WallClock,
        monotonic_ms: Callable[[], int] | None = None,
    ) -> None:
        self._store = store
        self._ages = Ages(wall_clock, monotonic_ms)
        self._clients: dict[tuple[str, str], tuple[Moment, KnownClient]] = {}
        self._revoked: dict[str, tuple[Moment, frozenset[tuple[str, str]]]] = {}

    def check_user(self, gateway: str, user: str, *, even_deleted: bool = False) -> None:
        """Refuse a revoked user, and every user once the gateway was deleted.

        Args:
            gateway: whose.
            user: the user.
            even_deleted: admit users of a deleted gateway: a deletion may have to be continued.

        Raises:
            Revoked: the user is revoked.
            GatewayDeleted: the gateway was deleted.
        """
        revoked = self._revoked_of(gateway)
        if (GATEWAY_KIND, gateway) in revoked and not even_deleted:
            raise GatewayDeleted(GatewayDeleted.ANSWER)
        if ("user", user) in revoked:
            raise Revoked("this user is revoked at the gateway; ask its administrator")

    def check_client(self, gateway: str, user: str, client_id: str) -> None:
        """Refuse a client that is revoked or another user's; bind it if it is unbound.

        Raises:
            ValidationFailed: the client id is one of the gateway's own.
            Revoked: the client is revoked.
            ClientTaken: it belongs to another user.
        """
        check_own_client_id(client_id)
        self.check_not_revoked(gateway, client_id)
        remembered = self._remembered(gateway, client_id)
        if remembered is not None and remembered.user == user:
            return
        read_at = self._ages.now()
        stored = self._store.client(gateway, client_id)
        if stored is None:
            stored = KnownClient(client_id, self._store.bind(gateway, client_id, user))
        if stored.user != user:
            raise ClientTaken(
                "this client id belongs to another user: make a client with an id of its own, or "
                "let the gateway's administrator release it",
                field="clientId",
            )
        self._clients.pop((gateway, client_id), None)  # the most recently read is dropped last
        self._clients[gateway, client_id] = (read_at, stored)
        while len(self._clients) > CLIENTS_REMEMBERED_MAX:
            del self._clients[next(iter(self._clients))]

    def note(
        self, gateway: str, client_id: str, cursor: Stamp, quarantined: int | None = None
    ) -> None:
        """Note the progress of a client that was admitted, unless that is noted already.

        It costs a write unit, and is done when it is worth one (`lakesync.gateway.access`).
        """
        remembered = self._clients.get((gateway, client_id))
        if remembered is None:
            return
        read_at, client = remembered
        seen = Seen(self._ages.now()[0], cursor, quarantined)
        if is_worth_noting(client.seen, seen):
            # Cached first: a failed write is not repeated with every pull.
            self._clients[gateway, client_id] = (read_at, replace(client, seen=seen))
            self._store.note(gateway, client_id, seen)

    def check_not_revoked(self, gateway: str, client_id: str) -> None:
        """Refuse a revoked client, to whichever user it belongs.

        Raises:
            Revoked: the client is revoked.
        """
        if ("client", client_id) in self._revoked_of(gateway):
            raise Revoked("this client is revoked at the gateway; ask its administrator")

    def _remembered(self, gateway: str, client_id: str) -> KnownClient | None:
        known = self._clients.get((gateway, client_id))
        return known[1] if known and self._is_current(known[0]) else None

    def _revoked_of(self, gateway: str) -> frozenset[tuple[str, str]]:
        known = self._revoked.get(gateway)
        if known and self._is_current(known[0]):
            return known[1]
        read_at = self._ages.now()
        revoked = frozenset((each.kind, each.name) for each in self._store.revocations(gateway))
        self._revoked.pop(gateway, None)
        self._revoked[gateway] = (read_at, revoked)
        while len(self._revoked) > GATEWAYS_REMEMBERED_MAX:
            del self._revoked[next(iter(self._revoked))]
        return revoked

    def _is_current(self, read_at: Moment) -> bool:
        return self._ages.is_within(REMEMBERED_MS_MAX, read_at)


class AccessAdmin:
    """Shows and changes who is admitted."""

    def __init__(self, store: AccessStore, *, wall_clock: WallClock) -> None:
        self._store = store
        self._wall_clock = wall_clock

    def revocations(self, gateway: str) -> list[Revocation]:
        """Return all revocations."""
        return self._store.revocations(gateway)

    def user_of(self, gateway: str, client_id: str) -> str | None:
        """Return the user to whom a client belongs; None if it is unbound."""
        client = self._store.client(gateway, check_client_id(client_id))
        return client.user if client else None

    def revoke(self, gateway: str, kind: str, name: str, *, by: str) -> None:
        """Revoke a user or a client, in force within a minute. Idempotent.

        Raises:
            ValidationFailed: there is no such kind or name; the user is the caller; or there are
                `REVOCATIONS_MAX` already.
        """
        _check(kind, name)
        if (kind, name) == ("user", by):
            raise ValidationFailed("nobody can revoke themselves: use another token", field=kind)
        revoked = {(each.kind, each.name) for each in self._store.revocations(gateway)}
        if len(revoked - {(kind, name)}) >= REVOCATIONS_MAX:
            raise ValidationFailed(
                f"at most {REVOCATIONS_MAX} users and clients of a gateway can be revoked: remove "
                "the user from the identity provider, and restore those whose tokens have expired",
                field=kind,
            )
        self._store.revoke(gateway, Revocation(kind, name, self._wall_clock(), by))

    def restore(self, gateway: str, kind: str, name: str) -> None:
        """Let a user or a client in again, within a minute. Idempotent.

        Raises:
            ValidationFailed: there is no such kind or name.
        """
        _check(kind, name)
        self._store.restore(gateway, kind, name)

    def release(self, gateway: str, client_id: str) -> None:
        """Take a client from its user, so that the next user of it has it. Idempotent.

        Its former user may use it for another minute where a process has it cached.
        """
        self._store.release(gateway, check_client_id(client_id))


def _check(kind: str, name: str) -> None:
    if kind not in KINDS:
        raise ValidationFailed(f"say user or client, not {kind[:20]!r}", field="kind")
    if kind == "user":
        check_user(name)
    else:
        check_client_id(name)


# --- when a contact is worth a write --------------------------------------------------------------


NOTED_MS_MIN: Final = 900_000
"""The shortest time between two notes of a client that keeps reading: four write units an hour."""
REFUSALS_NOTED_MS_MIN: Final = 60_000
"""The same if the number of its quarantined edits changed."""


def is_worth_noting(last: Seen | None, seen: Seen) -> bool:
    """Return whether to note the state of a client.

    Args:
        last: the noted state.
        seen: the present state.
    """
    if last is None:
        return True
    passed_ms = seen.at_ms - last.at_ms
    if last.quarantined != seen.quarantined:
        return passed_ms >= REFUSALS_NOTED_MS_MIN
    return last.cursor != seen.cursor and passed_ms >= NOTED_MS_MIN
