"""Broadcasts: what a commit changes is sent to the gateway's connections, group by group.

Rules of this module
    1. A broadcast is a page of the log by the same code as a pull's, with the group's claims, from
       where the connections were last notified up to the read barrier. It names the stamp behind
       which it holds all that its reader sees, and the first commit that it holds; only who stands
       between the two may apply it.
    2. What is too large, or would take too long to decide, is a poke: its reader pulls.
    3. Nobody is sent what he wrote himself. His own pull brings it, behind his push.
    4. Nothing depends on any of it: a broadcast may be lost, late, doubled or out of order.
    5. A connection whose token has expired, or whose user or client is shut out, is sent nothing
       but why, and is closed.

Laws T1-T6: ``docs/spec/realtime.md``.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple

from lakesync.core.messages import Pull, PullPage
from lakesync.errors import CursorExpired, GatewayDeleted, Revoked
from lakesync.gateway.connected import (
    Group,
    concerned,
    poke_at,
    rules_digest,
    scope_text,
    scoped,
    told_apart,
    writers_of,
)
from lakesync.gateway.delivery import Delivery, Outgoing
from lakesync.ports import GATEWAY_KIND
from lakesync.wire.frames import FRAME_DELTA_BYTES_MAX, encode_broadcast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lakesync.core.clock import Stamp
    from lakesync.errors import LakeSyncError
    from lakesync.gateway.access import Access
    from lakesync.gateway.pull import PullService
    from lakesync.log.read_barrier import FinalLog
    from lakesync.ports import Connection, Connections, WallClock

BROADCAST_DELTAS_MAX: Final = 1_000
"""Deltas of one broadcast: more are for a pull, which reads them in pages."""
DECIDE_MS_MAX: Final = 5_000
"""How long the groups of one broadcast may take to decide; the others are poked."""
TURN_MS_MAX: Final = 60_000
"""How long one process may notify a gateway before another may take over: what Lambda lets it."""
REFUSED_MAX: Final = 1_000
"""Connections that are closed behind one broadcast: they take three requests each."""
SCOPES_REMEMBERED_MAX: Final = 50_000
"""Groups of which one process remembers since when they saw nothing new: some 200 bytes each."""


class _Quiet(NamedTuple):
    """Since when, and up to where, a group saw nothing new."""

    since: Stamp
    until: Stamp


class Broadcaster:
    """Notifies the connections of any gateway. One for each process; one call at a time.

    Args:
        pulls: reads the log.
        connections: who is connected.
        delivery: sends frames.
        access: knows who is shut out.
        wall_clock: the clock.
    """

    def __init__(
        self,
        pulls: PullService,
        connections: Connections,
        delivery: Delivery,
        *,
        access: Access,
        wall_clock: WallClock,
    ) -> None:
        self._pulls = pulls
        self._connections = connections
        self._delivery = delivery
        self._access = access
        self._wall_clock = wall_clock
        self._done: dict[str, Stamp] = {}
        self._quiet: OrderedDict[tuple[str, str], _Quiet] = OrderedDict()

    def notify(
        self, gateway: str, commit: Stamp, owner: str, *, rules_changed: bool = False
    ) -> None:
        """Send what became visible up to a commit, or later. Safe to repeat.

        Args:
            gateway: whose.
            commit: the commit.
            owner: who asks; the same name, if it is asked again after a crash.
            rules_changed: other rules may decide, though no commit is new.

        Raises:
            Unavailable: something could not be reached; the same call may succeed in a moment.
        """
        if not rules_changed and self._done.get(gateway, 0) >= commit:
            return
        connections, state = self._connections.of_gateway(gateway)
        if not connections or (not rules_changed and state.notified >= commit):
            return
        now_ms = self._wall_clock()
        while not self._connections.begin(gateway, owner, now_ms, now_ms + TURN_MS_MAX):
            if self._connections.leave(gateway, commit, self._wall_clock()):
                return
        notified = state.notified
        while True:
            try:
                notified = self._broadcast(
                    gateway, max(commit, state.wanted), connections, notified
                )
            finally:
                is_over = self._connections.end(gateway, owner, notified)
            if is_over:
                self._done[gateway] = notified
                return
            connections, state = self._connections.of_gateway(gateway)

    def shut_out(self, gateway: str, kind: str, name: str) -> None:
        """Close the connections of a user, of a client or of a whole gateway. Safe to repeat."""
        connections, _ = self._connections.of_gateway(gateway)
        error: LakeSyncError = Revoked(f"this {kind} is shut out of the gateway")
        if kind == GATEWAY_KIND:
            error = GatewayDeleted(GatewayDeleted.ANSWER)
        self._delivery.refuse([(each, error) for each in concerned(connections, kind, name)])

    def sweep(self, has_time: Callable[[], bool]) -> int:
        """Close what may not be served any longer, of all gateways; gives how many."""
        place, closed = "", 0
        gathered: list[Connection] = []
        while True:
            some, place = self._connections.scan(place)
            gathered += some
            is_over = not place or not has_time()
            # A gateway's connections come one after the other, and may go on in the next part.
            last = "" if is_over else gathered[-1].gateway if gathered else ""
            for gateway, of_gateway in groupby(gathered, key=lambda each: each.gateway):
                if gateway != last:
                    now_s = self._wall_clock() / 1000
                    _, refused = told_apart(list(of_gateway), self._access, now_s)
                    self._delivery.refuse(refused)
                    closed += len(refused)
            if is_over:
                return closed
            gathered = [each for each in gathered if each.gateway == last]

    def _broadcast(
        self, gateway: str, commit: Stamp, connections: list[Connection], since: Stamp
    ) -> Stamp:
        """Send what is new to all connections; gives up to where it was."""
        log = self._pulls.final_log(gateway, since, commit)
        allowed, refused = told_apart(connections, self._access, self._wall_clock() / 1000)
        groups, rescoped = self._groups(log, allowed)
        ends_ms = self._wall_clock() + DECIDE_MS_MAX
        outgoing: list[Outgoing] = []
        for group in groups:
            page = None
            if since and self._wall_clock() < ends_ms:
                page = self._page(log, group, since)
            outgoing += self._frames(log, group, page, rescoped)
        self._delivery.send(gateway, outgoing)
        self._delivery.refuse(refused[:REFUSED_MAX])  # the others are seen again, or swept
        return max(log.top, since)

    def _groups(
        self, log: FinalLog, connections: Iterable[Connection]
    ) -> tuple[list[Group], set[str]]:
        """Sort connections by what they see; gives those too for whom other rules decide now."""
        groups: dict[str, Group] = {}
        rescoped: set[str] = set()
        rules = rules_digest(log.config)
        for connection in connections:
            current = connection
            if connection.rules != rules:
                current = scoped(connection, log.config, rules)
                self._connections.rescope(current)
                if connection.scope not in {"", current.scope}:
                    rescoped.add(connection.id)
            group = groups.get(current.scope)
            if group is None:
                scope = scope_text(log.config, current.claims)
                group = groups[current.scope] = Group(scope, current.claims)
            group.connections.append(current)
        return list(groups.values()), rescoped

    def _page(self, log: FinalLog, group: Group, since: Stamp) -> PullPage | None:
        """Give what a group sees of the log behind a stamp; None if it has to pull that."""
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
        self, log: FinalLog, group: Group, page: PullPage | None, rescoped: set[str]
    ) -> list[Outgoing]:
        """Give what is sent to each connection of a group."""
        poke = poke_at(log.top)
        if page is None:
            return [Outgoing(connection, poke, poke) for connection in group.connections]
        outgoing = [
            Outgoing(connection, poke, poke)
            for connection in group.connections
            if connection.id in rescoped
        ]
        if not page.count:
            return outgoing
        writers = writers_of(page.records)
        frame = encode_broadcast(page)
        for connection in group.connections:
            if connection.id in rescoped or writers == {connection.client_id}:
                continue
            is_writer = connection.client_id in writers
            outgoing.append(Outgoing(connection, poke if is_writer else frame, poke))
        return outgoing
