"""How a client reaches a `MemoryGateway`, and is told of changes by it."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from lakesync.client import MemoryTransport
from lakesync.client.transport.answers import connector_types_in
from lakesync.testing.memory_attachments import CarriesInMemory

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lakesync.core.actions import ActionAnswers, ActionDescription, ActionPush
    from lakesync.core.messages import Pull, PullPage, Push, PushReceipt
    from lakesync.core.schema import Schemas
    from lakesync.ports import ConnectorDescription, Hearer, Listening
    from lakesync.testing.memory_attachments import MemoryAttachments


class Listeners:
    """The clients that are notified of changes, as over sockets that are open or not."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._hearers: list[Hearer] = []
        self.is_open = True

    def add(self, hearer: Hearer) -> Listening:
        """Tell a client of what changes from now on."""
        with self._lock:
            self._hearers.append(hearer)
        hearer.on_connected(is_open=self.is_open)
        return _Listening(self, hearer)

    def remove(self, hearer: Hearer) -> None:
        """Tell a client no more; safe to repeat."""
        with self._lock:
            self._hearers = [other for other in self._hearers if other is not hearer]
        hearer.on_connected(is_open=False)

    def set_open(self, *, is_open: bool) -> None:
        """Open or close all sockets; whoever comes back asks what has changed."""
        self.is_open = is_open
        for hearer in self._listed():
            hearer.on_connected(is_open=is_open)
        self.wake()

    def wake(self, *, all_but: str = "") -> None:
        """Poke all clients but one."""
        for hearer in self._listed() if self.is_open else []:
            if hearer.client_id != all_but:
                hearer.wake()

    def _listed(self) -> list[Hearer]:
        with self._lock:
            return list(self._hearers)


class _Listening:
    def __init__(self, listeners: Listeners, hearer: Hearer) -> None:
        self._listeners = listeners
        self._hearer = hearer

    def stop(self) -> None:
        """End it."""
        self._listeners.remove(self._hearer)


class Serves(Protocol):
    """What answers the clients: a `MemoryGateway`."""

    listeners: Listeners

    @property
    def name(self) -> str:
        """Return its id."""
        ...

    def push(self, gateway: str, push: Push) -> PushReceipt:
        """Answer a push."""
        ...

    def pull(self, gateway: str, pull: Pull) -> PullPage:
        """Answer a pull."""
        ...

    def run_actions(self, gateway: str, push: ActionPush, /) -> ActionAnswers:
        """Answer who asks for actions."""
        ...

    def discover_actions(self, gateway: str, /) -> dict[str, list[ActionDescription]]:
        """Answer who asks which there are."""
        ...

    def attachments(self) -> MemoryAttachments:
        """Return the attachments."""
        ...

    def schemas_for(self, claims: Mapping[str, Any]) -> Schemas:
        """Return the schemas that a client may see."""
        ...


class GatewayTransport(MemoryTransport, CarriesInMemory):
    """How one client reaches a `MemoryGateway`; ``faults`` are applied to its next requests.

    ``claims`` are those of its token; set others and the rules decide by those.
    """

    def __init__(self, gateway: Serves, claims: Mapping[str, Any]) -> None:
        service = self._Service(self)
        MemoryTransport.__init__(self, gateway.name, service, service, actions=service)
        self.claims = dict(claims)
        CarriesInMemory.__init__(self, gateway.attachments, gateway.name, lambda: self.claims)
        self.gateway = gateway

    class _Service:
        def __init__(self, transport: GatewayTransport) -> None:
            self._transport = transport

        def push(self, gateway: str, push: Push) -> PushReceipt:
            to = self._transport
            return to.gateway.push(gateway, replace(push, claims=to.claims))

        def pull(self, gateway: str, pull: Pull) -> PullPage:
            to = self._transport
            return to.gateway.pull(gateway, replace(pull, claims=to.claims))

        def run_actions(self, gateway: str, push: ActionPush) -> ActionAnswers:
            return self._transport.gateway.run_actions(gateway, push)

        def discover_actions(self, gateway: str) -> dict[str, list[ActionDescription]]:
            return self._transport.gateway.discover_actions(gateway)

    def connector_types(self) -> list[ConnectorDescription]:
        """Fetch the types of connectors, as a gateway that was deployed from here has them."""
        from lakesync.connectors.registry import all_described  # noqa: PLC0415 - few tests ask

        return connector_types_in(json.dumps(all_described()).encode())

    def schemas(self) -> Schemas:
        """Fetch the schemas of the tables that the client may see."""
        return self.gateway.schemas_for(self.claims)

    def listen(self, hearer: Hearer) -> Listening:
        """Tell a client when another has pushed; see `lakesync.ports.Listens`."""
        return self.gateway.listeners.add(hearer)
