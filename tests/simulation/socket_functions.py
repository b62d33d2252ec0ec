"""The functions behind WebSockets, each in a process of its own, and what they meet there."""

from __future__ import annotations

import json
from itertools import chain, repeat
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from lakesync.gateway.broadcast import TURN_MS_MAX, Broadcaster
from lakesync.gateway.connected import ConnectionSweep
from lakesync.gateway.frame_sending import FrameSender
from lakesync.gateway.pull import PullService
from lakesync.runtime.websocket_frames import FrameService, notify_handler
from lakesync.runtime.websockets import connect_handler, disconnect_handler
from tests.simulation.history import Began
from tests.simulation.network import GATEWAY, HTTP_OK, Answer, Container, Request
from tests.simulation.ports import Gate, SimulatedBuffer
from tests.simulation.scheduler import Process

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.ports import FrameResult
    from tests.simulation.world import World

READS: Final = {"get", "of_gateway", "scan"}
"""What of `lakesync.ports.Connections` writes nothing."""


class SocketFunctions(Container):
    """One warm function of the WebSockets: it shakes hands, or answers frames."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        connections: Any = SimulatedConnections(world, self.process)
        self._connect = connect_handler(
            connections, SimulatedBuffer(world, self.process), self._access, self._clock
        )
        self._disconnect = disconnect_handler(connections)
        nothing: Any = SimpleNamespace(check=lambda _: None, use=lambda *_: None)
        pages: Any = SimpleNamespace(push=self.push, pull=self._heartbeat)
        sockets = SimulatedSockets(world, self.process)
        # No simulated client asks for actions over its socket.
        self._frames = FrameService(
            pages, pages, nothing, self._access, connections, sockets, nothing
        )

    def serve(self, request: Request) -> Answer:
        event = json.loads(request.body)
        if request.route == "frames":
            try:
                self._frames.answer(event, self._clock() / 1000)
            except Exception as error:  # noqa: BLE001 - as the function does
                self._world.note(self.process.name, "%r", error)
            return HTTP_OK, b""
        handler = self._connect if request.route == "connect" else self._disconnect
        return int(handler(event, None)["statusCode"]), b""

    def _heartbeat(self, gateway: str, pull: Any) -> Any:
        """Answer a pull that no sync asked for, and whose page nobody applies."""
        behind_ms = self._world.history.behind_ms
        before = behind_ms[pull.client_id]
        page = self.pull(gateway, pull)
        behind_ms[pull.client_id] = before
        return page


class Notifying:
    """One warm process of ``functions/notify``."""

    def __init__(self, world: World, name: str) -> None:
        self.process = Process(name)
        self.busy = False
        clock = world.new_clock(world.scenario.function_skew_ms)
        connections: Any = SimulatedConnections(world, self.process)
        self._sockets = SimulatedSockets(world, self.process)
        buffer: Any = SimulatedBuffer(world, self.process)
        access = world.gate.access(clock)
        delivery = OneByOne(
            self._sockets,
            connections,
            seconds=lambda: world.scheduler.now_ms / 1000,
            sleep_s=lambda seconds: world.scheduler.sleep(1000 * seconds),
        )
        broadcaster = Broadcaster(
            PullService(buffer, wall_clock=clock, limits=world.limits),
            connections,
            delivery,
            access=access,
            wall_clock=clock,
        )
        sweep = ConnectionSweep(connections, delivery, access, clock)
        self._handler = notify_handler(broadcaster, sweep)

    def handle(self, event: dict[str, Any], looks: int) -> dict[str, object]:
        """Do what an event asks for, with time for so many looks at the clock."""
        self._sockets.begin()
        left_ms = chain(repeat(TURN_MS_MAX, looks), repeat(0))
        time = SimpleNamespace(get_remaining_time_in_millis=lambda: next(left_ms))
        answer: dict[str, object] = self._handler(event, time)
        return answer


class OneByOne(FrameSender):
    """Sends frames one after the other: between any two of them others may run, or it may die."""

    def _run(self, work: Callable[[], None], times: int, is_last: object = None) -> None:
        del times, is_last
        work()


class SimulatedConnections:
    """`lakesync.ports.Connections` as one process meets them."""

    def __init__(self, world: World, process: Process) -> None:
        self._connections = world.sockets.connections
        self._gate = Gate(world, process)

    def __getattr__(self, name: str) -> Any:
        act, writes = getattr(self._connections, name), name not in READS

        def call(*arguments: Any) -> Any:
            return self._gate.call(name, lambda: act(*arguments), writes=writes)

        self.__dict__[name] = call
        return call


class SimulatedSockets:
    """`lakesync.ports.Sockets` as one process meets them."""

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._gate = Gate(world, process)
        self.begin()

    def begin(self) -> None:
        """Note what is true as a call begins."""
        world = self._world
        history, void = world.history, world.store.void(GATEWAY)
        self._began = Began(
            history.settled, history.whole, world.rulings.latest, *void,
            restores=world.counts["restored"],
        )  # fmt: skip

    def send(self, connection_id: str, frame: str) -> FrameResult:
        sockets, began = self._world.sockets, self._began
        return self._gate.call(
            "post", lambda: sockets.post(connection_id, frame, began), writes=True
        )

    def close(self, connection_id: str) -> None:
        sockets = self._world.sockets
        self._gate.call("close", lambda: sockets.end(connection_id), writes=True)
