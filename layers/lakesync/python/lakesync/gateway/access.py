"""Who may use a gateway, and how much: users of clients, revocations, and the push quota.

Rules of access
    1. A client belongs to the user who used it first. One conditional write decides this, and it
       stays so until an administrator releases the client.
    2. A look-up is cached for `REMEMBERED_MS_MAX` at most, whatever the clock does. A client is
       never refused as another user's from the cache alone.
    3. A user or client that cannot be looked up is refused.
    4. What is noted of a client is read with its user, and is not written again if it is the same,
       or if the last contact is too recent to be worth a write.

Laws U1-U4 and U7: ``docs/spec/access.md``.

Rules of the push quota of each gateway, so that no tenant starves another
    1. Each process counts for itself, and reports to one item of the gateway after it has counted
       its share. The share is half of what was left of the window's quota, times its own part of
       all pushes, and at most a `SHARES`-th of the quota. The answer contains what all processes
       have reported.
    2. Usage that is not reported yet stays counted, in this window or a later one.
    3. No push is refused from one process's own count: the process reports first.
    4. If a quota was nearly used up in the window before, a process reports its first push, and its
       part is assumed to be unchanged. So many processes learn of each other.
    5. A push is admitted or refused before it is read, by earlier usage. So a push that exceeds a
       window's quota is admitted when its turn comes.
    6. If reports fail, pushes are admitted.

Laws Q1-Q4: ``docs/spec/quota.md``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from lakesync.core.delta import CONNECTORS_USER, check_client_id, check_own_client_id, utf8_bytes
from lakesync.errors import (
    ClientTaken,
    GatewayDeleted,
    RateLimited,
    Revoked,
    Unavailable,
    ValidationFailed,
)
from lakesync.log.read import Ages
from lakesync.ports import GATEWAY_KIND, KnownClient, Quota, Revocation, Seen, Usage

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.core.clock import Stamp
    from lakesync.log.read import Moment
    from lakesync.ports import AccessStore, QuotaStore, WallClock

# --- users and revocations ------------------------------------------------------------------------


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
    if last is None:
        return True
    passed_ms = seen.at_ms - last.at_ms
    if last.quarantined != seen.quarantined:
        return passed_ms >= REFUSALS_NOTED_MS_MIN
    return last.cursor != seen.cursor and passed_ms >= NOTED_MS_MIN


# --- the push quota -------------------------------------------------------------------------------


WINDOW_MS: Final = 5_000
"""The window in which a quota may be used unevenly: retries are repeated within such a time."""
SHARES: Final = 32
"""The largest part of a window's quota that a process counts between two reports."""
BUSY_SHARE: Final = 0.75
"""The part of a window's quota beyond which the next window is counted more closely."""
PAUSE_MS: Final = 1_000
"""How long after a failed report none is tried."""
QUOTAS_REMEMBERED_MAX: Final = 1_000
"""Gateways whose usage one process remembers: a few hundred bytes each."""
NOTHING: Final = Usage()


@dataclass(slots=True)
class _Counted:
    """What one process knows of one gateway's usage."""

    quota: Quota
    window: int = 0
    until_ms: int = 0
    """When this window ends here; by another process's clock it may have begun earlier."""
    known: Usage = NOTHING
    """Usage in this window that all processes have reported, this one included."""
    unreported: Usage = NOTHING
    """Usage that was counted here and is not reported yet."""
    own: Usage = NOTHING
    """The part of the known usage that this process reported."""
    part: float = 1
    """This process's part of all pushes in the window before, if the quota was nearly used up."""
    reports_first: bool = False
    """The quota was nearly used up in the window before, and nothing of this window is reported
    yet."""
    paused_until_ms: int = 0


class Quotas:
    """Admits pushes while their gateway has some of its quota left. One for each process.

    Cost in write units: none below a `SHARES`-th of the quota in each process, about twelve in a
    window for half of it, and five for each process if all of it is used up.
    """

    def __init__(self, store: QuotaStore, default: Quota, *, wall_clock: WallClock) -> None:
        self._store = store
        self._default = default
        self._wall_clock = wall_clock
        self._counted: dict[str, _Counted] = {}

    def check(self, gateway: str) -> None:
        """Refuse a push if its gateway has used up its quota for this window.

        Raises:
            RateLimited: it has; try again when the next window begins.
        """
        counted, now_ms = self._of(gateway)
        if counted.unreported != NOTHING and _used_up(counted):
            self._report(gateway, counted, now_ms)
        if _is_over(counted.known, counted.quota):
            raise RateLimited(
                "this gateway pushes more than its quota; push again later, or ask its operator "
                "for a larger one",
                retry_after_s=math.ceil((counted.until_ms - now_ms) / 1000),
            )

    def use(self, gateway: str, usage: Usage) -> None:
        counted, now_ms = self._of(gateway)
        counted.unreported = _sum(counted.unreported, usage)
        if counted.reports_first or _is_share(counted):
            self._report(gateway, counted, now_ms)

    def _of(self, gateway: str) -> tuple[_Counted, int]:
        now_ms = self._wall_clock()
        # The most recently used is dropped last.
        counted = self._counted.pop(gateway, None) or _Counted(self._default)
        self._counted[gateway] = counted
        if len(self._counted) > QUOTAS_REMEMBERED_MAX:
            del self._counted[next(iter(self._counted))]
        if not 0 < counted.until_ms - now_ms <= WINDOW_MS:  # it ended, or the clock stepped back
            counted.reports_first = _is_over(counted.known, counted.quota, BUSY_SHARE)
            counted.part = _own_part(counted) if counted.reports_first else 1
            counted.window, counted.known, counted.own = now_ms // WINDOW_MS, NOTHING, NOTHING
            counted.until_ms = (counted.window + 1) * WINDOW_MS
        return counted, now_ms

    def _report(self, gateway: str, counted: _Counted, now_ms: int) -> None:
        if now_ms < counted.paused_until_ms:
            return
        try:
            reported = self._store.report(gateway, counted.window, counted.unreported)
        except Unavailable:
            counted.paused_until_ms = now_ms + PAUSE_MS
            return
        if reported.window != counted.window:
            counted.window, counted.until_ms = reported.window, now_ms + WINDOW_MS
            counted.own = NOTHING
        counted.own = _sum(counted.own, counted.unreported)
        counted.known, counted.unreported, counted.reports_first = reported.usage, NOTHING, False
        own = reported.quota
        counted.quota = Quota(
            *(default if value is None else value
              for value, default in zip(own, self._default, strict=True))
        )  # fmt: skip


def _sum(one: Usage, other: Usage) -> Usage:
    return Usage(*(a + b for a, b in zip(one, other, strict=True)))


def _used_up(counted: _Counted) -> bool:
    return _is_over(_sum(counted.known, counted.unreported), counted.quota)


def _is_over(usage: Usage, quota: Quota, part: float = 1) -> bool:
    return any(
        limit and used >= part * _in_window(limit) for used, limit in zip(usage, quota, strict=True)
    )


def _is_share(counted: _Counted) -> bool:
    part = min(counted.part, _own_part(counted))
    return any(
        limit
        and used
        and used >= min(_in_window(limit) / SHARES, part * (_in_window(limit) - known) / 2)
        for used, known, limit in zip(counted.unreported, counted.known, counted.quota, strict=True)
    )


def _own_part(counted: _Counted) -> float:
    return counted.own.pushes / counted.known.pushes if counted.known.pushes else 1


def _in_window(limit: int) -> int:
    return limit * WINDOW_MS // 1000
