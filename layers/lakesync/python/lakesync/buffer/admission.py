"""What decides whether a caller is admitted, over an item store: users, revocations, quotas.

Users, revocations and quotas are items beside the buffer's own, in the same table. A client is one
item: its user, written once, and what was last noted of it, which is read with the user at no extra
cost (``nc`` the cursor, ``nq`` the quarantined edits, ``na`` when). All revocations of a gateway
are in one item collection, so that one query reads them: a read unit for about thirty. Of usage and
quotas there is one item for each gateway.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lakesync.buffer import item_format
from lakesync.buffer.items import EXISTS, MISSING, NEVER_WRITTEN, Change, Check, NewItem, where
from lakesync.errors import Contention, Unavailable
from lakesync.ports import KnownClient, Quota, Revocation, Seen, Usage, WindowUsage

if TYPE_CHECKING:
    from lakesync.buffer.items import Item, ItemStore, Value

# --- users and revocations ------------------------------------------------------------------------


class ItemAccess:
    """`lakesync.ports.AccessStore` over an item store."""

    def __init__(self, items: ItemStore) -> None:
        self._items = items

    def client(self, gateway: str, client_id: str) -> KnownClient | None:
        item = self._items.get(*_client(gateway, client_id), consistent=False)
        return _known(item) if item else None

    def note(self, gateway: str, client_id: str, seen: Seen) -> None:
        change = Change({"na": seen.at_ms, "nc": seen.cursor}, remove=("nq",))
        if seen.quarantined is not None:
            change = Change({**change.put, "nq": seen.quarantined})
        is_later = (Check("na", MISSING), Check("na", "<", seen.at_ms))
        self._items.update(*_client(gateway, client_id), change, ((Check("us", EXISTS),), is_later))

    def bind(self, gateway: str, client_id: str, user: str) -> str:
        # Idempotent: if a try's answer was lost, what it wrote is this user's.
        if self._items.update(*_client(gateway, client_id), Change({"us": user}), NEVER_WRITTEN):
            return user
        item = self._items.get(*_client(gateway, client_id))
        if not item:
            raise Contention("the client is being released; try again in a moment")
        return str(item["us"])

    def release(self, gateway: str, client_id: str) -> None:
        self._items.delete(*_client(gateway, client_id))

    def clients(self, gateway: str, place: str, limit: int) -> tuple[list[KnownClient], str]:
        """Return some clients; a read unit for about thirty, and at least 16 in total."""
        first, after = (int(place[0], 16), place[1:]) if place else (0, "")
        clients: list[KnownClient] = []
        for part, pk in enumerate(item_format.user_pks(gateway)[first:], start=first):
            has_more = True
            while has_more:
                if len(clients) == limit:
                    return clients, f"{part:x}{after}"
                items, after = self._items.query(pk, after, limit - len(clients))
                clients += map(_known, items)
                has_more = bool(after)
        return clients, ""

    def revocations(self, gateway: str) -> list[Revocation]:
        return [*map(_revocation, self._items.query_all(item_format.revoked_pk(gateway)))]

    def revoke(self, gateway: str, revocation: Revocation) -> None:
        attributes: dict[str, Value] = {"ms": revocation.at_ms, "ad": revocation.by}
        place = _revoked(gateway, revocation.kind, revocation.name)
        self._items.put(NewItem(*place, attributes))

    def restore(self, gateway: str, kind: str, name: str) -> None:
        self._items.delete(*_revoked(gateway, kind, name))


def _client(gateway: str, client_id: str) -> tuple[str, str]:
    return item_format.user_pk(gateway, client_id), client_id


def _revoked(gateway: str, kind: str, name: str) -> tuple[str, str]:
    return item_format.revoked_pk(gateway), item_format.revoked_sk(kind, name)


def _known(item: Item) -> KnownClient:
    seen = Seen(item["na"], item["nc"], item.get("nq")) if "na" in item else None
    return KnownClient(item["sk"], item["us"], seen)


def _revocation(item: Item) -> Revocation:
    kind, _, name = item["sk"].partition("|")
    return Revocation(kind, name, item["ms"], item["ad"])


# --- quotas ---------------------------------------------------------------------------------------


WINDOWS_AHEAD_MAX: Final = 12
"""Windows by which another process's clock may be ahead. A window further ahead was written by a
wrong clock, and is begun again: else nothing would be admitted until that time."""
_USED: Final = ("np", "nd", "nb")
_MAY: Final = ("qp", "qd", "qb")
_TRIES: Final = 3


class ItemQuotas:
    """`lakesync.ports.QuotaStore` over an item store."""

    def __init__(self, items: ItemStore) -> None:
        self._items = items

    def report(self, gateway: str, window: int, usage: Usage) -> WindowUsage:
        place, most = _quota_place(gateway), window + WINDOWS_AHEAD_MAX
        used = dict(zip(_USED, usage, strict=True))
        is_on = (*where("w", ">=", window), *where("w", "<=", most))
        is_over = ((Check("w", MISSING), Check("w", "<", window), Check("w", ">", most)),)
        for _ in range(_TRIES):
            item = self._items.updated(*place, Change(add=used), is_on)
            item = item or self._items.updated(*place, Change({"w": window, **used}), is_over)
            if item is not None:
                now_used = Usage(*(item[name] for name in _USED))
                return WindowUsage(item["w"], now_used, _quota(item))
        raise Unavailable("reports of what is used crossed; nothing was added")

    def quota(self, gateway: str) -> Quota:
        return _quota(self._items.get(*_quota_place(gateway)))

    def set_quota(self, gateway: str, quota: Quota) -> None:
        limits = dict(zip(_MAY, quota, strict=True))
        kept = {name: limit for name, limit in limits.items() if limit is not None}
        gone = [name for name in limits if name not in kept]
        self._items.update(*_quota_place(gateway), Change(kept, remove=gone))


def _quota_place(gateway: str) -> tuple[str, str]:
    return item_format.quota_pk(gateway), item_format.QUOTA


def _quota(item: Item) -> Quota:
    return Quota(*(item.get(name) for name in _MAY))
