"""A transport without a network, for tests: to a gateway in the same process, with faults.

::

    transport = MemoryTransport("g1", push_service, pull_service)
    transport.faults.append(Fault.LOSE_ANSWER)   # happens to the next request

Requests and answers are encoded and decoded as on the wire, as over a network.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, Protocol, TypeVar

from lakesync.errors import NotFound, Unreachable
from lakesync.wire import jsonish, proto

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lakesync.core.messages import (
        ActionAnswers,
        ActionDescription,
        ActionPush,
        Pull,
        PullPage,
        Push,
        PushReceipt,
    )

A = TypeVar("A")


class Pushes(Protocol):
    def push(self, gateway: str, push: Push) -> PushReceipt: ...


class Pulls(Protocol):
    def pull(self, gateway: str, pull: Pull) -> PullPage: ...


class Acts(Protocol):
    def run_actions(self, gateway: str, push: ActionPush) -> ActionAnswers: ...

    def discover_actions(self, gateway: str) -> dict[str, list[ActionDescription]]: ...


class Fault(Enum):
    """What a network does to a request."""

    NONE = "none"
    LOSE_REQUEST = "lose request"
    """The gateway never hears of it."""
    LOSE_ANSWER = "lose answer"
    """The gateway did it; the client never hears."""
    DUPLICATE = "duplicate"
    """The gateway hears it twice; the client hears the second answer."""
    DELAY = "delay"
    """The client stops waiting; the gateway receives it before the next request that arrives."""


class MemoryTransport:
    """`lakesync.ports.Transport` to services in the same process.

    ``faults`` are applied to the next requests, in order; none once they are used up.
    """

    def __init__(
        self,
        gateway: str,
        pushes: Pushes,
        pulls: Pulls,
        faults: Iterable[Fault] = (),
        actions: Acts | None = None,
    ) -> None:
        self._gateway = gateway
        self._pushes = pushes
        self._pulls = pulls
        self._actions = actions
        self._delayed: list[Callable[[], object]] = []
        self.faults = deque(faults)

    def push(self, push: Push) -> PushReceipt:
        """Hand deltas over."""
        body = proto.encode_push(push)
        answer = self._send(lambda: self._pushes.push(self._gateway, proto.decode_push(body)))
        return proto.decode_receipt(proto.encode_receipt(answer))

    def pull(self, pull: Pull) -> PullPage:
        """Fetch the next page."""
        body = proto.encode_pull(pull)

        def deliver() -> PullPage:
            # Over HTTP the address names the source.
            asked = replace(proto.decode_pull(body), source=pull.source)
            return self._pulls.pull(self._gateway, asked)

        answer = self._send(deliver)
        return proto.decode_page(proto.encode_page(answer))

    def run_actions(self, push: ActionPush) -> ActionAnswers:
        """Have actions run."""
        body = jsonish.encode_action_push(push)
        acts = self._acts()
        answer = self._send(
            lambda: acts.run_actions(self._gateway, jsonish.decode_action_push(body))
        )
        return jsonish.decode_answers(jsonish.encode_answers(answer))

    def discover_actions(self) -> dict[str, list[ActionDescription]]:
        """Ask which actions there are."""
        acts = self._acts()
        answer = self._send(lambda: acts.discover_actions(self._gateway))
        return jsonish.decode_discovery(jsonish.encode_discovery(answer))

    def _acts(self) -> Acts:
        if self._actions is None:
            raise NotFound("this gateway runs no actions")
        return self._actions

    def _send(self, deliver: Callable[[], A]) -> A:
        fault = self.faults.popleft() if self.faults else Fault.NONE
        if fault is Fault.LOSE_REQUEST:
            raise Unreachable("the request was lost; try again")
        if fault is Fault.DELAY:
            self._delayed.append(deliver)
            raise Unreachable("the request took too long; try again")
        delayed, self._delayed = self._delayed, []
        for late in delayed:
            late()
        answer = deliver()
        if fault is Fault.LOSE_ANSWER:
            raise Unreachable("the answer was lost; try again")
        return deliver() if fault is Fault.DUPLICATE else answer
