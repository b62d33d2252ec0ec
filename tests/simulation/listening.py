"""Clients' ends of WebSockets: the real listener over a simulated socket, and a mere listener."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosedError, InvalidStatus
from websockets.http11 import Response

from lakesync.client.websocket_listener import OPEN_S_MAX, SocketListener
from lakesync.errors import Unreachable
from lakesync.wire import proto
from lakesync.wire.proto import Tag
from tests.simulation.history import bugs_are_raised
from tests.simulation.scheduler import Event

if TYPE_CHECKING:
    from lakesync.core.messages import PullPage, Push, PushReceipt
    from lakesync.ports import Hearer
    from tests.simulation.network import Link
    from tests.simulation.oracle import Claims
    from tests.simulation.scheduler import Process, Task
    from tests.simulation.world import World

ANSWER_S_MAX: Final = 20.0
OK: Final = 200
FOR_EVER_S: Final = 10_000_000
STALE: Final = 0.2
"""How often a token that is fetched has expired already: a cache gave it."""


class Tokens:
    """A client's tokens, as `lakesync.client.gateway_http.Token`."""

    def __init__(self, world: World, link: Link) -> None:
        self._world = world
        self._link = link
        self._random = world.stream(f"tokens {link.name}")
        self.claims: Claims | None = None

    def forget(self) -> None:
        """Fetch another one the next time."""
        self.claims = None

    def give(self) -> str:
        """Fetch a token, unless one is known."""
        if self.claims is None:
            life_s = self._world.scenario.token_s or FOR_EVER_S
            if self._world.faults.crash_client and self._random.random() < STALE:
                self._world.count("stale token")
                life_s = -10
            now_s = self._world.scheduler.now_ms // 1000
            # A client that was reinstalled under another name is still its user's.
            named = {"sub": self._link.name, "exp": now_s + life_s}
            self.claims = {**self._link.claims, **named}
        return "token"


class ClientSocket:
    """One WebSocket, as `websockets.sync.client.ClientConnection`."""

    def __init__(self, world: World, link: Link) -> None:
        self._world = world
        self._link = link
        self._news = Event(world.scheduler)
        self._frames: deque[str] = deque()
        self._answers: dict[int, tuple[Tag, bytes]] = {}
        self._asked = 0x10000
        self.name = ""
        self.is_open = False

    # --- the other side ---------------------------------------------------------------------------

    def arrive(self, frame: str) -> None:
        """Take a frame; answers to pushes go to who pushed."""
        if self._world.scheduler.now_ms < self._link.down_until_ms:
            self._world.count("frame without network")
            return
        tag, body = proto.decode_frame(frame)
        if tag is Tag.PUSH:
            self._answers[proto.answered_id_of(tag, body)] = (tag, body)
        elif tag is Tag.REFUSAL and proto.decode_refusal(body).request_id > 0xFFFF:
            self._answers[proto.decode_refusal(body).request_id] = (tag, body)
        else:
            self._frames.append(frame)
        self._news.set()

    def ended(self) -> None:
        self.is_open = False
        self._news.set()

    # --- the client's -----------------------------------------------------------------------------

    def recv(self, timeout: float) -> str:
        until_ms = self._world.scheduler.now_ms + 1000 * timeout
        while not self._frames:
            if not self.is_open:
                raise ConnectionClosedError(None, None)
            self._news.clear()
            left_ms = until_ms - self._world.scheduler.now_ms
            if left_ms < 1:
                raise TimeoutError
            self._news.wait(left_ms / 1000)
        return self._frames.popleft()

    def send(self, frame: str) -> None:
        if not self.is_open:
            raise ConnectionClosedError(None, None)
        if self._world.scheduler.now_ms >= self._link.down_until_ms:
            self._world.sockets.send(self.name, frame)

    def close(self) -> None:
        self._world.sockets.end(self.name)

    def push(self, push: Push) -> PushReceipt:
        """Push over it, as a browser may.

        Raises:
            Unreachable: no answer came, or it died meanwhile.
            LakeSyncError: the push was refused.
        """
        self._asked += 1
        asked = self._asked
        self._world.count("push by socket")
        self.send(proto.encode_push_frame(push, asked))
        until_ms = self._world.scheduler.now_ms + 1000 * ANSWER_S_MAX
        while asked not in self._answers:
            left_ms = until_ms - self._world.scheduler.now_ms
            if not self.is_open or left_ms < 1:
                self._world.count("push by socket without an answer")
                raise Unreachable("no answer came over the socket")
            self._news.clear()
            self._news.wait(left_ms / 1000)
        tag, body = self._answers.pop(asked)
        if tag is Tag.REFUSAL:
            raise proto.decode_refusal(body).error
        return proto.decode_receipt(body)


class SimulatedListener(SocketListener):
    """The real listener, as a task of its client's process, over a simulated socket."""

    def __init__(self, world: World, process: Process, link: Link, hearer: Hearer) -> None:
        self._world = world
        self._process = process
        self._link = link
        self._tokens = Tokens(world, link)
        super().__init__(
            "wss://simulated",
            hearer,
            self._tokens,  # type: ignore[arg-type]
            chance=world.stream(f"listener {link.name}").random,
            monotonic_s=lambda: world.scheduler.now_ms / 1000,
            network=None,
        )
        self._stopped = Event(world.scheduler)  # type: ignore[assignment]
        process.on_kill.append(self._abandoned)
        world.scheduler.spawn(process, f"{link.name} socket", self._run)

    def stop(self) -> None:
        """Let it be; it ends with its process."""

    def _abandoned(self) -> None:
        if self._socket is not None:
            self._world.sockets.abandon(self._socket.name)

    def _open(self) -> ClientSocket:
        world, scheduler = self._world, self._world.scheduler
        self._tokens.give()
        claims = self._tokens.claims
        assert claims is not None
        if scheduler.now_ms < self._link.down_until_ms:
            scheduler.sleep(100)
            raise OSError("there is no network")
        socket = ClientSocket(world, self._link)
        answer, came = 0, Event(scheduler)

        def shaken(status: int, name: str) -> None:
            nonlocal answer
            answer, socket.name, socket.is_open = status, name, status == OK
            came.set()
            if not self._process.alive:
                world.sockets.abandon(name)

        world.sockets.connect(self._hearer.client_id, claims, socket, shaken)
        if not came.wait(OPEN_S_MAX):
            world.count("handshake without an answer")
            raise TimeoutError("no handshake in time")
        if answer != OK:
            world.count(f"handshake: HTTP {answer}")
            raise InvalidStatus(Response(answer, "", Headers()))
        self._link.socket = socket
        return socket

    def _bring(self, page: PullPage) -> None:
        with bugs_are_raised():
            super()._bring(page)
        self._world.count("heard")


class Ghost:
    """Whoever listens and does nothing else; it is revoked and restored."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._name = name
        self._random = world.stream(f"ghost socket {name}")

    def open(self) -> None:
        """Connect, and again whenever that is over."""
        world = self._world
        life_s = world.scenario.token_s or FOR_EVER_S
        exp = world.scheduler.now_ms // 1000 + life_s
        claims = {"sub": self._name, "gw": "g1", "exp": exp}

        def shaken(status: int, _: str) -> None:
            if status != OK:
                self.ended()

        world.sockets.connect(self._name, claims, self, shaken)

    def arrive(self, frame: str) -> None:
        """Take a frame; a refusal that closes ends it."""
        del frame
        self._world.count("ghost heard")

    def ended(self) -> None:
        """Come again after a while."""
        self._world.later("ghost", self.open, int(5_000 + self._random.random() * 60_000))


class TaskLock:
    """`threading.RLock` among tasks."""

    def __init__(self, world: World) -> None:
        self._scheduler = world.scheduler
        self._owner: Task | None = None
        self._depth = 0
        self._free = Event(world.scheduler)

    def __enter__(self) -> bool:
        task = self._scheduler.current()
        while self._owner not in {None, task}:
            self._free.clear()
            self._free.wait()
        self._owner = task
        self._depth += 1
        return True

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._owner = None
            self._free.set()
