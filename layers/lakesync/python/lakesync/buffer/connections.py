"""The open WebSockets in a table of their own, how far they were notified, and their tickets.

====================  ====================  ===============  =====================================
item                  pk                    sk               attributes
====================  ====================  ===============  =====================================
connection            gateway               connection id    cl us ex op d sc rl x fw fc js
notify state          gateway               ``|notify``      n w pl ow u x
ticket                ``|ticket|<digest>``  ``|ticket``      d u x
====================  ====================  ===============  =====================================

A gateway's connections are one item collection: one query reads them, and how far they were
notified. Notifying costs this query, a read unit for about ten connections, and three write units.
A connection id contains no ``|``. A ticket opens one WebSocket; it has no client, so that no reader
of connections takes it for one.

Attributes: ``cl`` client, ``d`` claims, ``ex`` when the token expires, ``fc`` frames that were
counted in the span of time ``fw``, ``js`` if its frames are JSON, ``n`` notified, ``op`` opened,
``ow`` owner of the turn, ``pl`` the last connection that there was time for, ``rl`` rules, ``sc``
scope, ``u`` until when the turn lasts or the ticket is good, ``us`` user, ``w`` wanted, ``x`` when
DynamoDB may remove it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from lakesync.buffer.item_format import check_gateway
from lakesync.buffer.items import EXISTS, MISSING, WRITTEN, Change, Check, NewItem, where
from lakesync.ports import CONNECTION_S_MAX, Connection, NotifyState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lakesync.buffer.items import Item, ItemStore, Value
    from lakesync.core.clock import Stamp

# --- the store ------------------------------------------------------------------------------------


_PAGE_ITEMS: Final = 5_000
_NOTIFY_SK: Final = "|notify"
_TICKET_SK: Final = "|ticket"


class ItemConnections:
    """`lakesync.ports.Connections` over an item store."""

    def __init__(self, items: ItemStore) -> None:
        self._items = items

    def add(self, connection: Connection) -> None:
        self._items.put(connection_item(connection))

    def get(self, gateway: str, connection_id: str) -> Connection | None:
        item = self._items.get(check_gateway(gateway), connection_id)
        return _connection_of(item) if item else None

    def rescope(self, connection: Connection) -> None:
        change = Change({"sc": connection.scope, "rl": connection.rules})
        self._items.update(check_gateway(connection.gateway), connection.id, change, WRITTEN)

    def count_frames(self, connection: Connection, window: int, frames: int) -> bool:
        change, condition = Change(add={"fc": frames}), where("fw", "=", window)
        if connection.window != window:
            change = Change({"fw": window, "fc": frames})
            condition = (*WRITTEN, (Check("fw", MISSING), Check("fw", "<", window)))
        gateway = check_gateway(connection.gateway)
        return self._items.update(gateway, connection.id, change, condition)

    def remove(self, gateway: str, connection_id: str) -> None:
        self._items.delete(check_gateway(gateway), connection_id)

    def of_gateway(self, gateway: str) -> tuple[list[Connection], NotifyState]:
        connections: list[Connection] = []
        state = NotifyState()
        for item in self._items.query_all(check_gateway(gateway)):
            if item["sk"] == _NOTIFY_SK:
                state = _state_of(item)
            else:
                connections.append(_connection_of(item))
        return connections, state

    def scan(self, place: str) -> tuple[list[Connection], str]:
        items, more = self._items.scan(place, "cl", _PAGE_ITEMS)
        return [*map(_connection_of, items)], more

    def begin(self, gateway: str, owner: str, now_ms: int, until_ms: int) -> bool:
        expires_s = until_ms // 1000 + CONNECTION_S_MAX
        change = Change({"ow": owner, "u": until_ms, "x": expires_s})
        is_free = (Check("ow", MISSING), Check("ow", "=", owner), Check("u", "<", now_ms))
        return self._items.update(check_gateway(gateway), _NOTIFY_SK, change, (is_free,))

    def leave(self, gateway: str, commit: Stamp, now_ms: int) -> bool:
        """Leave a commit to the process in charge; one more read if a later one was left."""
        in_charge = ((Check("ow", EXISTS),), (Check("u", ">=", now_ms),))
        is_later = (Check("w", MISSING), Check("w", "<", commit))
        place = check_gateway(gateway), _NOTIFY_SK
        if self._items.update(*place, Change({"w": commit}), (*in_charge, is_later)):
            return True
        item = self._items.get(*place)
        return "ow" in item and item["u"] >= now_ms and _state_of(item).wanted >= commit

    def hand_on(self, gateway: str, owner: str, state: NotifyState) -> None:
        change = Change({"n": state.notified}, remove=("ow", "u", "pl"))
        if state.place:
            change = Change({"n": state.notified, "pl": state.place}, remove=("ow", "u"))
        self._items.update(check_gateway(gateway), _NOTIFY_SK, change, where("ow", "=", owner))

    def end(self, gateway: str, owner: str, notified: Stamp) -> bool:
        place, is_mine = (check_gateway(gateway), _NOTIFY_SK), where("ow", "=", owner)
        is_last = (Check("w", MISSING), Check("w", "<=", notified))
        ended = Change({"n": notified}, remove=("ow", "u", "w", "pl"))
        if self._items.update(*place, ended, (*is_mine, is_last)):
            return True
        # After another process took over the turn, there is nothing to continue.
        return not self._items.update(*place, Change({"n": notified}, remove=("pl",)), is_mine)


# --- items ----------------------------------------------------------------------------------------


class StoredClaims(Mapping[str, Any]):
    """Stored claims, parsed on first access: only one of a group of connections needs them."""

    __slots__ = ("_read", "_text")

    def __init__(self, stored: str) -> None:
        self._text = stored
        self._read: dict[str, Any] | None = None

    def _claims(self) -> dict[str, Any]:
        if self._read is None:
            self._read = json.loads(self._text)
        return self._read

    def __getitem__(self, name: str) -> Any:
        return self._claims()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._claims())

    def __len__(self) -> int:
        return len(self._claims())


def connection_item(connection: Connection) -> NewItem:
    """Return the item of a connection."""
    attributes: dict[str, Value] = {
        "cl": connection.client_id,
        "us": connection.user,
        "ex": connection.expires_s,
        "op": connection.opened_ms,
        "d": json.dumps(dict(connection.claims), separators=(",", ":")),
        "sc": connection.scope,
        "rl": connection.rules,
        "x": connection.opened_ms // 1000 + CONNECTION_S_MAX,
    }
    if connection.is_json:
        attributes["js"] = 1
    return NewItem(check_gateway(connection.gateway), connection.id, attributes)


def _connection_of(item: Item) -> Connection:
    return Connection(
        item["pk"],
        item["sk"],
        item["cl"],
        item["us"],
        float(item["ex"]),
        item["op"],
        StoredClaims(item["d"]),
        item["sc"],
        item["rl"],
        item.get("fw", 0),
        item.get("fc", 0),
        "js" in item,
    )


def _state_of(item: Item) -> NotifyState:
    return NotifyState(item.get("n", 0), item.get("w", 0), item.get("pl", ""))


class ItemTickets:
    """`lakesync.ports.Tickets` over an item store."""

    def __init__(self, items: ItemStore) -> None:
        self._items = items

    def keep(self, digest: str, claims: Mapping[str, Any], until_ms: int) -> None:
        attributes: dict[str, Value] = {
            "d": json.dumps(dict(claims), separators=(",", ":")),
            "u": until_ms,
            "x": until_ms // 1000 + 1,
        }
        self._items.put(NewItem(*_ticket(digest), attributes))

    def take(self, digest: str, now_ms: int) -> Mapping[str, Any] | None:
        # A missing ticket has no ``u``, so the condition fails for it too.
        item = self._items.take(*_ticket(digest), where("u", ">=", now_ms))
        if item is None:
            return None
        claims: dict[str, Any] = json.loads(item["d"])
        return claims


def _ticket(digest: str) -> tuple[str, str]:
    return f"|ticket|{digest}", _TICKET_SK
