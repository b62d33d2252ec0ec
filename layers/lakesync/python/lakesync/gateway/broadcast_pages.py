"""The page of a commit for each connection: one for each group, decided by its own claims.

The page is made by the same code as a pull's. One that is too large, or would take too long to
decide, becomes a poke: its reader pulls. Laws T1-T4: ``docs/spec/realtime.md``.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from lakesync.core.messages import Pull, PullPage
from lakesync.errors import CursorExpired
from lakesync.gateway.connected import (
    Group,
    poke_at,
    rules_digest,
    scope_text,
    scoped,
    writers_of,
)
from lakesync.gateway.delivery import Outgoing
from lakesync.wire.frames import FRAME_DELTA_BYTES_MAX, encode_broadcast

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lakesync.core.clock import Stamp
    from lakesync.gateway.pull import PullService
    from lakesync.log.final_log import FinalLog
    from lakesync.ports import Connection, WallClock

BROADCAST_DELTAS_MAX: Final = 1_000
"""Deltas of one broadcast; a pull reads more of them in pages."""
DECIDE_MS_MAX: Final = 5_000
"""How long the decisions for the groups of one broadcast may take; the others are poked."""
SCOPES_REMEMBERED_MAX: Final = 50_000
"""Groups without visible news of which one process remembers since when: about 200 bytes each."""


class _Quiet(NamedTuple):
    """The span in which a group saw nothing new."""

    since: Stamp
    until: Stamp


class Decided(NamedTuple):
    """The frames to send, and the connections whose rules changed."""

    outgoing: list[Outgoing]
    rescoped: list[Connection]
    """With their present scope."""


class BroadcastPages:
    """Decides what connections are sent. One for each process; one call at a time.

    Args:
        pulls: reads the log.
        wall_clock: the clock.
    """

    def __init__(self, pulls: PullService, *, wall_clock: WallClock) -> None:
        self._pulls = pulls
        self._wall_clock = wall_clock
        self._quiet: OrderedDict[tuple[str, str], _Quiet] = OrderedDict()

    def decide(self, log: FinalLog, connections: Iterable[Connection], since: Stamp) -> Decided:
        """Get what is sent to connections that have all up to a stamp; 0 if that is not known."""
        groups, rescoped, moved = self._groups(log, connections)
        ends_ms = self._wall_clock() + DECIDE_MS_MAX
        outgoing: list[Outgoing] = []
        for group in groups:
            page = None
            if since and self._wall_clock() < ends_ms:
                page = self._page(log, group, since)
            outgoing += self._frames(log, group, page, moved)
        return Decided(outgoing, rescoped)

    def _groups(
        self, log: FinalLog, connections: Iterable[Connection]
    ) -> tuple[list[Group], list[Connection], set[str]]:
        """Group connections by what they see.

        Gives also the connections that were grouped by earlier rules, and the names of those among
        them that see something else now.
        """
        groups: dict[str, Group] = {}
        rescoped: list[Connection] = []
        moved: set[str] = set()
        rules = rules_digest(log.config)
        for connection in connections:
            current = connection
            if connection.rules != rules:
                current = scoped(connection, log.config, rules)
                rescoped.append(current)
                if connection.scope not in {"", current.scope}:
                    moved.add(connection.id)
            group = groups.get(current.scope)
            if group is None:
                scope = scope_text(log.config, current.claims)
                group = groups[current.scope] = Group(scope, current.claims)
            group.connections.append(current)
        return list(groups.values()), rescoped, moved

    def _page(self, log: FinalLog, group: Group, since: Stamp) -> PullPage | None:
        """Return what a group sees of the log behind a stamp; None if it has to pull."""
        pull = Pull(
            "",
            since,
            BROADCAST_DELTAS_MAX,
            log.epoch,
            claims=group.claims,
            removes=True,
            scope=group.scope,
            bytes_max=FRAME_DELTA_BYTES_MAX,
        )
        try:
            page = self._pulls.page_of(log, pull)
        except CursorExpired:
            return None
        size = sum(map(len, page.records))
        if page.has_more or page.snapshot or page.resync or size > FRAME_DELTA_BYTES_MAX:
            return None
        key = (log.gateway, group.scope)
        quiet = self._quiet.pop(key, None)
        previous = quiet.since if quiet and quiet.until == since else since
        self._quiet[key] = _Quiet(page.cursor if page.count else previous, page.cursor)
        while len(self._quiet) > SCOPES_REMEMBERED_MAX:
            self._quiet.popitem(last=False)
        schema_version = log.config.schema_version
        return replace(page, previous=previous, schema_version=schema_version)

    def _frames(
        self, log: FinalLog, group: Group, page: PullPage | None, moved: set[str]
    ) -> list[Outgoing]:
        """Return what is sent to each connection of a group."""
        poke = poke_at(log.top, log.epoch, group.scope)
        if page is None:
            return [Outgoing(connection, poke, poke) for connection in group.connections]
        outgoing = [
            Outgoing(connection, poke, poke)
            for connection in group.connections
            if connection.id in moved
        ]
        if not page.count:
            return outgoing
        writers = writers_of(page.records)
        frame = encode_broadcast(page)
        for connection in group.connections:
            if connection.id in moved or writers == {connection.client_id}:
                continue
            is_writer = connection.client_id in writers
            outgoing.append(Outgoing(connection, poke if is_writer else frame, poke))
        return outgoing
