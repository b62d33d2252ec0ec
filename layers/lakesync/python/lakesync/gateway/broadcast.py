"""Broadcasts: the changes of a commit are sent to the gateway's connections, group by group.

Rules of this module
    1. A broadcast is a page of the log, made by the same code as a pull's, with the group's claims,
       from the last notified stamp up to the read barrier. It names the stamp behind which it
       contains everything that its reader sees, and its first commit. Only a reader whose cursor is
       between the two may apply it.
    2. A broadcast that is too large, or would take too long to decide, becomes a poke: its reader
       pulls. One that is too large as JSON alone is a poke to who reads JSON.
    3. A client is not sent its own writes. Its next pull returns them, after its push.
    4. Nothing depends on broadcasts: one may be lost, late, repeated or out of order.
    5. A connection whose token has expired, or whose user or client is revoked, is sent only the
       reason, and is closed.
    6. Connections are served in the order of their ids. A process that runs out of time records the
       last one that it served; the next process begins with those behind it, by a poke.

Laws T1-T6, T8: ``docs/spec/realtime.md``.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Final, NamedTuple

from lakesync.core.messages import Pull, PullPage
from lakesync.errors import BodyTooLarge, CursorExpired, GatewayDeleted, LakeSyncError, Revoked
from lakesync.gateway.connected import (
    Group,
    classified,
    concerned,
    poke_at,
    rules_digest,
    scope_text,
    scoped,
    writers_of,
)
from lakesync.gateway.frame_sending import Outgoing, always, frames_in
from lakesync.ports import GATEWAY_KIND, NotifyState
from lakesync.wire.proto import FRAME_DELTA_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lakesync.core.clock import Stamp
    from lakesync.gateway.access import Access
    from lakesync.gateway.frame_sending import FrameSender
    from lakesync.gateway.pull import PullService
    from lakesync.log.read import FinalLog
    from lakesync.ports import Connection, Connections, WallClock

# --- turns ----------------------------------------------------------------------------------------


TURN_MS_MAX: Final = 60_000
"""How long one process may notify a gateway before another may take over: Lambda's time limit."""
REFUSED_MAX: Final = 1_000
"""Connections that are closed after one broadcast: each takes three requests."""
RESCOPED_MAX: Final = 5_000
"""Connections whose scope is stored after one broadcast; that of the others is computed again."""


class _Round(NamedTuple):
    state: NotifyState
    is_whole: bool
    """All connections were served."""


class Broadcaster:
    """Notifies the connections of any gateway. One for each process; one call at a time."""

    def __init__(
        self,
        pulls: PullService,
        connections: Connections,
        sender: FrameSender,
        *,
        access: Access,
        wall_clock: WallClock,
    ) -> None:
        self._pulls = pulls
        self._pages = BroadcastPages(pulls, wall_clock=wall_clock)
        self._connections = connections
        self._sender = sender
        self._access = access
        self._wall_clock = wall_clock
        self._done: dict[str, Stamp] = {}

    def notify(
        self,
        gateway: str,
        commit: Stamp,
        owner: str,
        has_time: Callable[[], bool] = always,
        *,
        rules_changed: bool = False,
    ) -> bool:
        """Send what became visible up to a commit, or later. Idempotent.

        Args:
            owner: the caller; the same name if it is called again after a crash.
            rules_changed: the rules changed, though no commit is new.

        Returns:
            Whether all were served; else the next call, for any commit, continues with the rest.

        Raises:
            Unavailable: something could not be reached; the same call may succeed in a moment.
        """
        if not rules_changed and self._done.get(gateway, 0) >= commit:
            return True
        connections, state = self._connections.of_gateway(gateway)
        is_notified = state.notified >= max(commit, state.wanted) and not state.place
        if not connections or (is_notified and not rules_changed):
            return True
        while not self._began(gateway, owner):
            if self._connections.leave(gateway, commit, self._wall_clock()):
                return True
        while True:
            commit = max(commit, state.wanted)
            made = _Round(state, is_whole=False)
            try:
                if has_time():
                    made = self._broadcast(gateway, commit, connections, state, has_time)
            finally:
                if not made.is_whole:
                    self._connections.hand_on(gateway, owner, made.state)
            if not made.is_whole:
                return False
            if self._connections.end(gateway, owner, made.state.notified):
                self._done[gateway] = made.state.notified
                return True
            connections, state = self._connections.of_gateway(gateway)

    def drain(self) -> None:
        """Wait for the frames under way, before the process may be stopped."""
        self._sender.drain()

    def close_revoked(
        self, gateway: str, kind: str, name: str, has_time: Callable[[], bool] = always
    ) -> bool:
        """Close the connections of a revoked user or client, or of a deleted gateway. Idempotent.

        Returns:
            Whether there was time for all of them.
        """
        connections, _ = self._connections.of_gateway(gateway)
        error: LakeSyncError = Revoked(f"this {kind} is revoked at the gateway")
        if kind == GATEWAY_KIND:
            error = GatewayDeleted(GatewayDeleted.ANSWER)
        revoked = concerned(connections, kind, name)
        refused = self._sender.refuse([(each, error) for each in revoked], has_time)
        return refused == len(revoked)

    def _began(self, gateway: str, owner: str) -> bool:
        now_ms = self._wall_clock()
        return self._connections.begin(gateway, owner, now_ms, now_ms + TURN_MS_MAX)

    def _broadcast(
        self,
        gateway: str,
        commit: Stamp,
        connections: list[Connection],
        state: NotifyState,
        has_time: Callable[[], bool],
    ) -> _Round:
        """Send what is new to all connections, first to those that the last broadcast missed."""
        since, place = state.notified, state.place
        log = self._pulls.final_log(gateway, since, commit)
        allowed, refused, _ = classified(connections, self._access, self._wall_clock() / 1000)
        passed_by = self._pages.decide(log, (one for one in allowed if place and one.id > place), 0)
        waiting = [one for one in allowed if not place or one.id <= place]
        decided = self._pages.decide(log, waiting, since)
        late, fresh = _by_id(passed_by.outgoing), _by_id(decided.outgoing)
        rescoped = passed_by.rescoped + decided.rescoped
        sent = self._sender.send(late + fresh, has_time)
        self._sender.refuse(
            refused[:REFUSED_MAX], has_time
        )  # the others are handled by the next broadcast, or the sweep
        self._sender.side_by_side(self._rescope, rescoped[:RESCOPED_MAX], has_time)
        top = max(log.top, since)
        if sent == len(late) + len(fresh):
            return _Round(NotifyState(top), is_whole=True)
        if sent > len(late):
            place = fresh[sent - len(late) - 1].connection.id
            return _Round(NotifyState(top, place=place), is_whole=False)
        if sent:
            place = late[sent - 1].connection.id if sent < len(late) else ""
        return _Round(NotifyState(since, place=place), is_whole=False)

    def _rescope(self, connection: Connection) -> None:
        """Store the scope of a connection, if possible now: else the next broadcast does."""
        try:
            self._connections.rescope(connection)
        except LakeSyncError:
            return


def _by_id(outgoing: list[Outgoing]) -> list[Outgoing]:
    return sorted(outgoing, key=lambda each: each.connection.id)


# --- the page of each group -----------------------------------------------------------------------


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
    """Decides what connections are sent. One for each process; one call at a time."""

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
        written = cache(partial(_written, page, poke_at(log.top, log.epoch, group.scope)))
        writers = writers_of(page.records) if page else set()
        outgoing: list[Outgoing] = []
        for connection in group.connections:
            is_poked = page is None or connection.id in moved
            if not is_poked and writers <= {connection.client_id}:
                continue  # its own writes, or none
            frame, poke = written(connection.is_json)
            if is_poked or connection.client_id in writers:
                frame = poke
            outgoing.append(Outgoing(connection, frame, poke))
        return outgoing


def _written(page: PullPage | None, poke: PullPage, is_json: bool) -> tuple[str, str]:  # noqa: FBT001 - what `cache` keys
    """Return the frames of a page and of a poke, in one encoding; a poke where no page fits."""
    frames = frames_in(is_json=is_json)
    poke_frame = frames.encode_broadcast(poke)
    try:
        return frames.encode_broadcast(page) if page else poke_frame, poke_frame
    except BodyTooLarge:
        return poke_frame, poke_frame
