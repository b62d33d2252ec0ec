"""Faults in what is told over WebSockets, and in what clients make of it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lakesync.core.messages import PullPage
from lakesync.gateway import broadcast, connected
from lakesync.gateway.broadcast import Broadcaster, BroadcastPages
from lakesync.gateway.connected import refusal_of
from lakesync.runtime import websocket_frames
from tests.simulation.deliberate.registry import Replaced, deliberate
from tests.simulation.themes import RULES, SOCKETS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lakesync.core.clock import Stamp
    from lakesync.errors import LakeSyncError
    from lakesync.gateway.access import Access
    from lakesync.gateway.connected import Group
    from lakesync.log.read import FinalLog
    from lakesync.ports import Connection

RULED = {**SOCKETS, **RULES, "token_s": 0}
LASTING = {**SOCKETS, "token_s": 0, "storms": 0}


@deliberate("a broadcast moves the cursor over a gap", SOCKETS)
def cursor_over_a_gap() -> list[Replaced]:
    def follows(self: PullPage, cursor: Stamp) -> bool:
        return self.previous is not None and cursor < self.first

    return [(PullPage, "follows", follows)]


@deliberate("all connections are sent what the first of them may see", RULED)
def decided_by_anothers_scope() -> list[Replaced]:
    real = BroadcastPages._groups

    def groups(
        self: BroadcastPages, log: FinalLog, connections: Iterable[Connection]
    ) -> tuple[list[Group], list[Connection], set[str]]:
        real_groups, rescoped, moved = real(self, log, connections)
        same = [replace(real_groups[0], connections=group.connections) for group in real_groups]
        return same, rescoped, moved

    return [(BroadcastPages, "_groups", groups)]


@deliberate("what a client wrote is broadcast to it", SOCKETS)
def echo_to_the_sender() -> list[Replaced]:
    return [(broadcast, "writers_of", lambda records: {"nobody"} if records else set())]


@deliberate("a connection outlives its token", SOCKETS)
def tokens_never_expire() -> list[Replaced]:
    def refused(connection: Connection, access: Access, now_s: float) -> LakeSyncError | None:
        del now_s
        return refusal_of(connection, access, 0)

    return [(connected, "refusal_of", refused), (websocket_frames, "refusal_of", refused)]


@deliberate("who is revoked goes on listening", LASTING)
def who_is_revoked_listens() -> list[Replaced]:
    def refused(connection: Connection, access: Access, now_s: float) -> LakeSyncError | None:
        del access
        anybody: Any = _Anybody()
        return refusal_of(connection, anybody, now_s)

    return [(connected, "refusal_of", refused), (Broadcaster, "close_revoked", lambda *_: True)]


@deliberate("a group that once saw nothing new is taken to have seen nothing since", RULED)
def quiet_for_ever() -> list[Replaced]:
    real = BroadcastPages._page

    def page(self: BroadcastPages, log: FinalLog, group: Group, since: Stamp) -> PullPage | None:
        for key, quiet in self._quiet.items():
            self._quiet[key] = quiet._replace(until=since)
        return real(self, log, group, since)

    return [(BroadcastPages, "_page", page)]


class _Anybody:
    """Lets everybody in."""

    def check_user(self, gateway: str, user: str) -> None:
        """Let a user in."""

    def check_not_revoked(self, gateway: str, client_id: str) -> None:
        """Let a client in."""
