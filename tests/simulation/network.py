"""The network between clients and functions, and the functions' containers.

A request is bytes. It may be lost, late, or arrive twice; its answer may be lost. A container works
on one request at a time and keeps its memory until it dies.
"""

from __future__ import annotations

import contextlib
import json
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias
from zlib import crc32

from lakesync.checkpoint.store import Checkpoints
from lakesync.client.gateway_http import error_of
from lakesync.core.clock import DRIFT_MS_MAX, stamp
from lakesync.errors import (
    ClockDrift,
    ColumnOmitted,
    Forbidden,
    LakeSyncError,
    RateLimited,
    Unavailable,
    Unreachable,
)
from lakesync.gateway.filtered_reads import Reads, resume_token_of
from lakesync.gateway.pull import PullService
from lakesync.gateway.push import PushService
from lakesync.log.read import RAISED_EVERY_MS, SEEN_APART_MS
from lakesync.wire import proto
from tests.simulation import others
from tests.simulation.history import Began
from tests.simulation.ports import (
    SimulatedBuffer,
    SimulatedChance,
    SimulatedObjects,
    SimulatedQueue,
    sleeper,
)
from tests.simulation.rulings import claims
from tests.simulation.scheduler import Event, Process
from tests.simulation.speech import JSON, PROTOBUF, Speech

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.core.messages import Pull, PullPage, Push, PushReceipt
    from lakesync.core.schema import Schemas
    from lakesync.ports import Hearer, Listening
    from tests.simulation.listening import ClientSocket
    from tests.simulation.oracle import Claims
    from tests.simulation.world import World

GATEWAY: Final = "g1"
HTTP_OK: Final = 200
CLIENT_WAITS_MS: Final = 20_000
WARM: Final = 0.6
"""How often a request meets a warm container though there could be one more."""
FUNCTION_MS_MAX: Final = 30_000
PUSH_BY_SOCKET: Final = 0.5
"""The share of clients with a socket that push over it while it is open, as browsers may."""
IMPOSTORS: Final = 0.3
"""The share of those on the way that answer a push in JSON as a gateway would, beside JavaScript
clients."""
SPEAK_JSON: Final = 0.3
"""The share of clients that speak JSON."""

Answer: TypeAlias = tuple[int, bytes]
"""HTTP status and body."""


class Request(NamedTuple):
    """What a client sends."""

    route: str
    body: bytes
    claims: Claims
    """Those of the token that it carries."""
    speech: Speech = PROTOBUF


class SimulatedTransport:
    """`lakesync.ports.Transport` of one client."""

    def __init__(self, world: World, process: Process, link: Link) -> None:
        self._world = world
        self._process = process
        self._link = link

    def push(self, push: Push) -> PushReceipt:
        socket = self._link.socket
        if self._link.pushes_by_socket and socket is not None and socket.is_open:
            return self._push_by(socket, push)
        speech = self._link.speech
        return others.read(speech.decode_receipt, self._request("push", speech.encode_push(push)))

    def pull(self, pull: Pull) -> PullPage:
        # A pull is a query, which protobuf stands for here.
        answer = self._request("pull", proto.encode_pull(pull))
        page = others.read(self._link.speech.decode_page, answer)
        self._link.cursor = max(self._link.cursor, page.cursor)
        return page

    def listen(self, hearer: Hearer) -> Listening | None:
        """Keep a WebSocket, if clients have any here."""
        return self._world.sockets.listen(self._process, self._link, hearer)

    def _push_by(self, socket: ClientSocket, push: Push) -> PushReceipt:
        world, faults = self._world, self._world.faults
        self._link.requests += 1
        world.may_crash(self._process, faults.crash_client, "before push by socket")
        receipt = socket.push(push)
        world.may_crash(self._process, faults.crash_client, "after push by socket")
        return receipt

    def _request(self, route: str, body: bytes) -> bytes:
        status, content = self.answer(route, body)
        if status != HTTP_OK:
            raise error_of(status, {}, content)
        return content

    def answer(self, route: str, body: bytes) -> Answer:
        """Send a request, and return whatever answers it; its process may die of that.

        Raises:
            Unreachable: nothing does in time.
        """
        world, faults = self._world, self._world.faults
        self._link.requests += 1
        world.may_crash(self._process, faults.crash_client, f"before {route}")
        request = Request(route, body, self._link.claims, self._link.speech)
        answer = self._link.exchange(request)
        world.may_crash(self._process, faults.crash_client, f"after {route}")
        return answer


class SchemaTransport(SimulatedTransport):
    """The same, of a gateway whose schemas say how rows are read."""

    def schemas(self) -> Schemas:
        """Fetch the schemas: from one that answers at once, if there is a network."""
        if self._world.scheduler.now_ms < self._link.down_until_ms:
            raise Unreachable("there is no network")
        return self._world.schemas_for(self._link.claims)


class Link:
    """One client's way to the gateway."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self.name = name
        self._random = world.stream(f"link {name}")
        self._others = world.stream(f"others before {name}")
        self._impostors = world.stream(f"impostors before {name}")
        self.down_until_ms = 0
        self.requests = 0
        self.claims: Claims = claims(world.stream(f"claims {name}"), name)
        """Those of its present token."""
        self.speech = JSON if world.stream(f"speech {name}").random() < SPEAK_JSON else PROTOBUF
        self.cursor = 0
        """The greatest that it was given."""
        self.socket: ClientSocket | None = None
        """The one that it has open, or had open last."""
        by_socket = world.scenario.sockets and world.stream(f"socket {name}").random()
        self.pushes_by_socket = 0 < by_socket < PUSH_BY_SOCKET
        self._stamped_again = 0
        """How often a push was refused for its clock."""

    def exchange(self, request: Request) -> Answer:
        """Send a request and wait for its answer, which somebody on the way may give.

        Raises:
            Unreachable: none came in time.
        """
        faults = self._world.faults
        if self._is_answered_by_others(faults.portal):
            self._world.scheduler.sleep(50)
            return self._said_by_others(request)
        answer = self._exchange(request)
        is_changed = self._is_answered_by_others(faults.foreign_answer)
        return self._said_by_others(request) if is_changed else answer

    def _exchange(self, request: Request) -> Answer:
        world, chance, faults = self._world, self._random.random, self._world.faults
        if world.scheduler.now_ms < self.down_until_ms:
            world.count("no network")
            world.scheduler.sleep(100)
            raise Unreachable("there is no network")
        if chance() < faults.lose_request:
            world.count("lost request")
            return self._nothing()
        answers: list[Answer] = []
        came = Event(world.scheduler)

        copied = chance() < faults.duplicate_request

        def answered(answer: Answer) -> None:
            answers.append(answer)
            if not lost:
                came.set()
            if _may_be_stamped_again(answer):
                self._stamped_again += 1
            elif copied:
                self._copy(request, int(chance() * 60_000))

        delay = 5 + chance() * 60
        if chance() < faults.slow_request:
            world.count("slow request")
            delay = chance() * 3 * CLIENT_WAITS_MS
        lost = chance() < faults.lose_answer
        world.front.take(request, int(delay), answered)
        if lost:
            world.count("lost answer")
        if not came.wait(CLIENT_WAITS_MS / 1000):
            raise Unreachable("no answer came in time")
        return answers[0]

    def _is_answered_by_others(self, share: float) -> bool:
        if not share or self._others.random() >= share:
            return False
        self._world.count("answered by others")
        return True

    def _said_by_others(self, request: Request) -> Answer:
        may_speak = self._world.scenario.javascript and request.route == "push"
        if may_speak and request.speech is JSON and self._impostors.random() < IMPOSTORS:
            self._world.count("answered by an impostor")
            return others.IMPOSTOR
        return others.saying(self._others)

    def _copy(self, request: Request, after_ms: int) -> None:
        """Deliver a request once more, unless what it holds was rightly stamped again by then.

        A copy of a push that was refused for its clock when it was sent again, after a pull had not
        found it, and that came when the clock had caught up, or one that rules refused and that
        came when there were others, would be accepted beside the edits that were stamped again: of
        an event two. No client can know of it, and
        ``docs/spec/client.md`` does not promise that the network will not do this.
        """
        world, stamped_again = self._world, self._stamped_again

        def deliver() -> None:
            if self._stamped_again != stamped_again and request.route == "push":
                push = request.speech.decode_push(request.body)
                first = min((delta.hlc for _, delta in push.deltas), default=0)
                if first <= self.cursor + stamp(DRIFT_MS_MAX):
                    return
            world.count("duplicated request")
            world.front.take(request, 0, lambda _: None)

        world.later("copy", deliver, after_ms)

    def _nothing(self) -> Answer:
        self._world.scheduler.sleep(CLIENT_WAITS_MS)
        raise Unreachable("no answer came in time")


class Container:
    """One warm function: a process with its services, working on one request at a time."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self.process = Process(name)
        self.busy = False
        clock = self._clock = world.new_clock(world.scenario.function_skew_ms)
        self._access = world.gate.access(clock)
        buffer = self._buffer = SimulatedBuffer(world, self.process)
        self._looks: list[tuple[int, int]] = []
        """When a pull had heads read, and what was settled as it began."""
        flush_queue = SimulatedQueue(world, self.process, world.flush_requests)
        self._push = PushService(
            buffer,
            wall_clock=clock,
            sleep_ms=sleeper(world, self.process),
            chance=SimulatedChance(world, self.process),
            limits=world.limits,
            on_threshold=lambda gateway: flush_queue.send(json.dumps({"gateway": gateway})),
        )
        self._random = world.stream("lanes")
        checkpoints = Checkpoints(SimulatedObjects(world, self.process))
        self._pull = PullService(
            buffer,
            wall_clock=clock,
            monotonic_ms=lambda: world.scheduler.elapsed_ms,
            limits=world.limits,
            checkpoints=checkpoints if world.scenario.retain_every_s else None,
        )

    def serve(self, request: Request) -> Answer:
        """Answer a request as the deployed function does."""
        try:
            return HTTP_OK, self._answer(request)
        except LakeSyncError as error:
            body = {
                "error": error.message, "code": error.code, "field": error.field, "requestId": "r",
            }  # fmt: skip
            return error.status, json.dumps(body).encode()

    def _answer(self, request: Request) -> bytes:
        speech = request.speech
        if request.route == "push":
            push = replace(speech.decode_push(request.body), claims=request.claims)
            return speech.encode_receipt(self.push(GATEWAY, push))
        pull = replace(proto.decode_pull(request.body), claims=request.claims)
        return speech.encode_page(self.pull(GATEWAY, pull))

    def push(self, gateway: str, push: Push) -> PushReceipt:
        world = self._world
        try:
            world.gate.passes(self._access, push.client_id)
            world.pushes.arrived(push)
            self._move()
            self.process.pushing = push
            receipt = self._push.push(gateway, push)
        except LakeSyncError as error:
            world.count(f"push answered {error.code}")
            world.pushes.said.add(error.message)
            world.note(self.process.name, "push failed: %s", error)
            raise
        finally:
            self.process.pushing = None
        world.note(self.process.name, "receipt %s", receipt)
        refusals = [item.error for item in receipt.outcomes if item.error]
        world.pushes.said.update(error.message for error in refusals)
        for code in {error.code for error in refusals}:
            world.count(f"refused: {code}")
        world.history.answered(push, receipt)
        return receipt

    def _move(self) -> None:
        """Move to another lane, as if a race had been lost."""
        world = self._world
        if self._random.random() >= world.scenario.lane_moves:
            return
        layout = world.store.config(GATEWAY).layout
        with contextlib.suppress(LakeSyncError):
            self._push._committer._lanes.lost(GATEWAY, self._random.choice(layout.shards()))
            world.count("moved to another lane")

    def pull(self, gateway: str, pull: Pull) -> PullPage:
        world = self._world
        world.gate.passes(self._access, pull.client_id)
        history = world.history
        latest = world.rulings.latest
        before = history.settled_by(world.scheduler.now_ms - RAISED_EVERY_MS)
        began = Began(
            history.settled, history.whole, latest, *world.store.void(GATEWAY), before,
            self._is_quiet(), self._seen(),
        )  # fmt: skip
        heads_read = self._buffer.heads_read
        lanes, conflicts = world.store.lanes(), world.counts["conflict: raise_head"]
        try:
            page = self._pull.pull(gateway, pull)
        except LakeSyncError as error:
            world.count(f"pull answered {error.code}")
            raise
        if world.store.lanes() != lanes or not self._is_quiet():
            began = began._replace(is_quiet=False)
        if world.counts["conflict: raise_head"] > conflicts:
            # Somebody is at a head, who may yet commit: it is not raised, as under load.
            began = began._replace(is_quiet=False)
        if self._buffer.heads_read > heads_read:
            self._looks.append((world.scheduler.elapsed_ms, began.settled))
        if page.behind_ms:
            world.count("page behind")
        if page.snapshot:
            at = resume_token_of(page.snapshot)
            is_checkpoint = at.reads is Reads.ALL_TABLES and at.of
            world.count("checkpoint page" if is_checkpoint else "snapshot page")
        eyes = world.rulings.eyes(pull.claims, began.rules)
        world.history.paged(pull, page, began, eyes)
        world.losses.paged(pull, page)
        return page

    def _is_quiet(self) -> bool:
        """Get whether the next page has to be exact, as far as its process can tell."""
        elapsed_ms = self._world.scheduler.elapsed_ms
        is_watched = any(elapsed_ms - ms < RAISED_EVERY_MS for ms, _ in self._looks[-1:])
        return self._world.store.is_quiet(self._clock(), is_watched=is_watched)

    def _seen(self) -> int:
        """Return what was settled when heads were read that have to count by now."""
        until_ms = self._world.scheduler.elapsed_ms - RAISED_EVERY_MS - SEEN_APART_MS
        return max((settled for ms, settled in self._looks if ms <= until_ms), default=0)


class Front:
    """What stands before the functions: gives each request a container of its own."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._pools: dict[str, list[Any]] = defaultdict(list)
        self._made = 0
        self._random = world.stream("front")
        self.serving = 0

    def take(self, request: Request, after_ms: int, answered: Callable[[Answer], None]) -> None:
        self.serving += 1
        self._world.later("arrival", lambda: self._begin(request, answered), after_ms)

    def _begin(self, request: Request, answered: Callable[[Answer], None]) -> None:
        world, route = self._world, request.route
        if world.upkeep.is_down:
            self.serving -= 1
            answered(_refusal(Unavailable("the gateway is being restored")))
            return
        if route == "push" and self._is_blocked(request):
            world.count("firewall")
            self.serving -= 1
            answered(others.saying(world.stream("firewall")))
            return
        container = self._free(route)
        if container is None:
            world.count("too many requests")
            self.serving -= 1
            answered(_refusal(RateLimited("too many requests; slow down")))
            return
        container.busy = True
        finished = False

        def work() -> None:
            nonlocal finished
            answer = container.serve(request)
            container.busy = False
            finished = True
            self.serving -= 1
            answered(answer)

        def died() -> None:
            if not finished and container.busy:
                container.busy = False
                self.serving -= 1
                answered(_refusal(Unavailable("the function did not answer")))

        process = container.process
        process.on_kill = [died]
        world.scheduler.spawn(process, f"{process.name} {route}", work)

        def time_out() -> None:
            if not finished:
                world.crash(process, "took too long")

        world.later("time-out", time_out, FUNCTION_MS_MAX)

    def _is_blocked(self, request: Request) -> bool:
        """Return whether a firewall takes offence at one of a push's edits, whatever its stamp."""
        share = self._world.scenario.firewall
        if not share or self._world.is_calm:
            return False
        try:
            deltas = request.speech.decode_push(request.body).deltas
        except (ValueError, LakeSyncError):
            return False  # it is no push
        texts = (repr((delta.table, delta.row_id, delta.columns)).encode() for _, delta in deltas)
        return any(crc32(text) % 1_000 < 1_000 * share for text in texts)

    def stop(self) -> None:
        """End all containers; requests that come later get new ones."""
        for pool in self._pools.values():
            for container in pool:
                self._world.scheduler.kill(container.process)
            pool.clear()

    def _free(self, route: str) -> Any:
        pool = self._pools[route]
        pool[:] = [one for one in pool if one.process.alive]
        free = [one for one in pool if not one.busy]
        full = len(pool) >= self._world.scenario.functions
        if free and (full or self._random.random() < WARM):
            return self._random.choice(free)
        if full:
            return None
        self._made += 1
        world, name = self._world, f"{route}#{self._made}"
        is_http = route in {"push", "pull"}
        pool.append(Container(world, name) if is_http else world.sockets.container(name))
        return pool[-1]


def _may_be_stamped_again(answer: Answer) -> bool:
    """Return whether a push was refused for its clock, or by rules, and told so."""
    status, body = answer
    return status == HTTP_OK and any(
        error.code.encode() in body for error in (ClockDrift, Forbidden, ColumnOmitted)
    )


def _refusal(error: LakeSyncError) -> Answer:
    return error.status, json.dumps({"message": error.message}).encode()
