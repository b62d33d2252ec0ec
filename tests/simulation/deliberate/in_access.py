"""Faults in who is let in."""

from __future__ import annotations

from typing import Any

from lakesync.buffer.admission import ItemAccess
from lakesync.gateway.access import Access
from tests.simulation.deliberate.registry import Replaced, deliberate


@deliberate("a client is whoever's used it last")
def last_user_wins() -> list[Replaced]:
    def client(self: Any, gateway: str, client_id: str) -> None:
        del self, gateway, client_id

    def bind(self: Any, gateway: str, client_id: str, user: str) -> str:
        del self, gateway, client_id
        return user

    return [(ItemAccess, "client", client), (ItemAccess, "bind", bind)]


@deliberate("a client that was let in once is not asked for its user again")
def any_user_once_known() -> list[Replaced]:
    real = Access.check_client

    def check_client(self: Access, gateway: str, user: str, client_id: str) -> None:
        if (gateway, client_id) not in self._clients:
            real(self, gateway, user, client_id)

    return [(Access, "check_client", check_client)]


@deliberate("what a process looked up is remembered for as long as it lives")
def remembered_for_ever() -> list[Replaced]:
    return [(Access, "_is_current", lambda *_: True)]


@deliberate("a user who is revoked is refused only under clients that are")
def users_are_not_revoked() -> list[Replaced]:
    return [(Access, "check_user", lambda *_: None)]
