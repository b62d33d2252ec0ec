"""API Gateway's WebSockets, and the functions behind them: what is open, and what goes over it.

The handlers, the broadcaster, the delivery and the stream's records are the real ones. API Gateway
itself is simulated: it loses frames, brings them late, twice and out of order, and ends connections
whenever it likes. Every frame is held against what may be sent to its connection.
"""

from __future__ import annotations

import json
import traceback
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from lakesync.buffer.connections import ItemConnections
from lakesync.buffer.memory_items import MemoryItemStore
from lakesync.gateway.broadcast import TURN_MS_MAX
from lakesync.ports import FrameResult
from lakesync.wire import proto
from lakesync.wire.proto import Tag
from tests.simulation.history import Violation
from tests.simulation.listening import Ghost, SimulatedListener
from tests.simulation.network import HTTP_OK, Request
from tests.simulation.notifier import Notifier
from tests.simulation.socket_functions import SocketFunctions

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.errors import LakeSyncError
    from lakesync.ports import Hearer, Listening
    from tests.simulation.history import Began
    from tests.simulation.network import Answer, Link
    from tests.simulation.oracle import Claims
    from tests.simulation.scheduler import Process
    from tests.simulation.world import World

IDLE_MS_MAX: Final = 600_000
"""API Gateway closes what is silent for so long."""
LIFE_MS_MAX: Final = 7_200_000
REPORTED: Final = 0.7
"""How often the functions are told that a connection is over."""
SWEPT_EVERY_MS: Final = 300_000
MEASURES: Final = ("count", "usage", "publish")


class Peer(Protocol):
    """A connection's other end."""

    def arrive(self, frame: str) -> None: ...

    def ended(self) -> None:
        """Hear that the connection is over."""
        ...


class Socket(NamedTuple):
    """One open WebSocket, as API Gateway knows it."""

    id: str
    client_id: str
    claims: Claims
    opened_ms: int
    peer: Peer

    @property
    def context(self) -> dict[str, Any]:
        """What API Gateway tells functions of it."""
        return {
            "connectionId": self.id,
            "requestId": self.id,
            "authorizer": {"claims": json.dumps(self.claims)},
        }


class Sockets:
    """Every open WebSocket, and the processes that are there for them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._random = world.stream("sockets")
        self.connections = ItemConnections(MemoryItemStore())
        self._open: dict[str, Socket] = {}
        self._used_ms: dict[str, int] = {}
        """When a frame last went over each."""
        self.notifier = Notifier(world)

    def plan(self) -> None:
        world, scenario = self._world, self._world.scenario
        if not scenario.sockets:
            return
        for _ in range(scenario.storms):
            world.later("storm", self._storm, int(self._random.random() * scenario.span_ms))
        world.every(SWEPT_EVERY_MS, self.notifier.sweep)
        if scenario.ghosts:
            Ghost(world, "ghost0").open()

    # --- who takes part ---------------------------------------------------------------------------

    def listen(self, process: Process, link: Link, hearer: Hearer) -> Listening | None:
        """Keep a client's WebSocket open, if clients have any in this scenario."""
        if not self._world.scenario.sockets:
            return None
        return SimulatedListener(self._world, process, link, hearer)

    def container(self, name: str) -> SocketFunctions:
        return SocketFunctions(self._world, name)

    def stop(self) -> None:
        """End all processes: the buffer is put back."""
        self.notifier.stop()

    def observed(self) -> list[tuple[str, Callable[..., None]]]:
        """Return what takes the place of logs and metrics: a bug is a finding."""

        def bug(error: BaseException, **_: str) -> None:
            raise Violation(type(error).__name__, "".join(traceback.format_exception(error)))

        def failure(error: LakeSyncError, **_: str) -> None:
            self._world.count(f"sockets: {error.code}")

        def silent(*_: object, **__: object) -> None:
            """Neither log nor measure."""

        return [("bug", bug), ("failure", failure), *((name, silent) for name in MEASURES)]

    # --- connections ------------------------------------------------------------------------------

    def connect(
        self, client_id: str, claims: Claims, peer: Peer, answered: Callable[[int, str], None]
    ) -> None:
        """Shake hands; ``answered`` hears the status, and the connection's name."""
        world = self._world
        socket = Socket(f"s{world.number()}", client_id, claims, world.scheduler.now_ms, peer)

        def shaken(answer: Answer) -> None:
            status, _ = answer
            if status == HTTP_OK:
                world.count("socket opened")
                self._open[socket.id] = socket
                self._touch(socket)
                world.later("idle", partial(self._is_idle, socket), IDLE_MS_MAX)
                world.later("old", partial(self.end, socket.id), LIFE_MS_MAX)
            answered(status, socket.id)

        self._ask("connect", socket, shaken)

    def send(self, name: str, frame: str) -> None:
        """Carry a client's frame to the functions, or lose it with its connection."""
        socket = self._open.get(name)
        if socket is None or self._breaks(name):
            return
        self._touch(socket)
        if frame == proto.KEEP_ALIVE:
            self._world.count("keep-alive")
            answered = partial(self._arrive, socket, proto.KEEP_ALIVE_ANSWER)
            self._world.later("keep-alive", answered, int(5 + self._random.random() * 60))
            return
        self._ask("frames", socket, lambda _: None, frame)

    def end(self, name: str) -> None:
        """End a connection; the functions are told, mostly."""
        socket = self._open.pop(name, None)
        if socket is None:
            return
        self._world.count("socket ended")
        socket.peer.ended()
        if self._random.random() < REPORTED:
            self._ask("disconnect", socket, lambda _: None)

    def abandon(self, name: str) -> None:
        """Note that a client is there no more: API Gateway may take a while to find out."""
        if self._random.random() < 0.5:
            self.end(name)

    def _ask(
        self, route: str, socket: Socket, answered: Callable[[Answer], None], body: str = ""
    ) -> None:
        event = {
            "requestContext": socket.context | {"routeKey": f"${route}"},
            "queryStringParameters": {"clientId": socket.client_id},
            "body": body,
        }
        request = Request(route, json.dumps(event).encode(), socket.claims)
        delay_ms = 5 + self._random.random() * 60
        self._world.front.take(request, int(delay_ms), answered)

    def _touch(self, socket: Socket) -> None:
        self._used_ms[socket.id] = self._world.scheduler.now_ms

    def _is_idle(self, socket: Socket) -> None:
        if socket.id not in self._open:
            return
        left_ms = self._used_ms[socket.id] + IDLE_MS_MAX - self._world.scheduler.now_ms
        if left_ms <= 0:
            self._world.count("idle socket ended")
            self.end(socket.id)
        else:
            self._world.later("idle", partial(self._is_idle, socket), left_ms)

    def _storm(self) -> None:
        """End every connection at once, so that all come again."""
        self._world.count("reconnect storm")
        for name in list(self._open):
            self.end(name)

    def _breaks(self, name: str) -> bool:
        if self._random.random() >= self._world.faults.broken_socket:
            return False
        self._world.count("socket broke under a frame")
        self.end(name)
        return True

    # --- frames to clients ------------------------------------------------------------------------

    def post(self, name: str, frame: str, began: Began) -> FrameResult:
        """Send a frame to a connection, as API Gateway does."""
        world, chance, faults = self._world, self._random.random, self._world.faults
        socket = self._open.get(name)
        if socket is None:
            return FrameResult.GONE
        self._check(socket, frame, began)
        if chance() < faults.slow_reader:
            world.count("reader was slow")
            return FrameResult.BUSY
        if self._breaks(name):
            return FrameResult.GONE
        self._touch(socket)
        if chance() < faults.lose_frame:
            world.count("lost frame")
            return FrameResult.SENT
        times = 1
        if chance() < faults.double_frame:
            world.count("doubled frame")
            times = 2
        for _ in range(times):
            delay_ms = 5 + chance() * 60
            if chance() < faults.late_frame:
                world.count("late frame")
                delay_ms = chance() * 120_000
            world.later("frame", partial(self._arrive, socket, frame), int(delay_ms))
        return FrameResult.SENT

    def _arrive(self, socket: Socket, frame: str) -> None:
        if socket.id in self._open:
            socket.peer.arrive(frame)

    def _check(self, socket: Socket, frame: str, began: Began) -> None:
        """Hold a frame against what its connection may be sent."""
        world = self._world
        tag, body = proto.decode_frame(frame)
        if tag is Tag.REFUSAL:
            return
        clocks_ms = 2 * world.scenario.function_skew_ms + 1_000
        # A process that began while the connection had its right goes on for a turn at the most.
        late_ms = world.scheduler.now_ms - 1000 * socket.claims["exp"]
        if late_ms > TURN_MS_MAX + clocks_ms:
            raise Violation("a connection ends with its right", f"{socket}: {late_ms} ms too late")
        if world.gate.is_revoked(socket.claims["sub"], TURN_MS_MAX):
            raise Violation("a connection ends with its right", f"{socket} is revoked")
        if tag is Tag.BROADCAST:
            page = proto.decode_page(body)
            world.count("poke" if page.is_poke else "broadcast")
            if began.restores < world.counts["restored"]:
                # It was on its way when its sender died, and is of a log that is no more.
                world.count("broadcast of a lost log")
                return
            eyes = world.rulings.eyes(socket.claims, began.rules)
            world.history.broadcast(socket.client_id, page, began, eyes)
