"""An outside system behind the gateway of a `World`: what was done there, and what it does next."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lakesync.client import MemoryTransport
from lakesync.core.messages import ActionDescription
from lakesync.testing.memory_gateway import MemoryActions
from tests.client.support.gateways import GATEWAY
from tests.support.waiting import waited

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lakesync.core.messages import ActionAnswers, ActionPush
    from lakesync.errors import LakeSyncError
    from tests.client.support.world import World


@dataclass
class Shop:
    """Ships orders: ``shipping`` ``ship``."""

    world: World
    shipped: list[Mapping[str, Any]] = field(default_factory=list)
    """The parameters of what was shipped, in the order in which it was."""
    pushes: list[ActionPush] = field(default_factory=list)
    fails: list[LakeSyncError] = field(default_factory=list)
    """How the next ones fail."""
    before: Callable[[Mapping[str, Any]], None] = lambda _: None
    whole: Callable[[ActionPush], None] = lambda _: None
    """May refuse a whole request."""

    def __post_init__(self) -> None:
        self._actions = MemoryActions(self.world.clock)
        self._actions.add("shipping", ActionDescription("ship", "Ships.", {}), self._ship)

    def _ship(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        self.before(params)
        if self.fails:
            raise self.fails.pop(0)
        self.shipped.append(params)
        return {"shipment": len(self.shipped)}

    def run_actions(self, _gateway: str, push: ActionPush) -> ActionAnswers:
        """Run actions, each once."""
        self.whole(push)
        self.pushes.append(push)
        return self._actions.run(push)

    def discover_actions(self, _gateway: str) -> dict[str, list[ActionDescription]]:
        """Return what there is."""
        return self._actions.discover()

    def transport(self) -> MemoryTransport:
        """Return a way to the gateway and this."""
        gateway = self.world.gateway
        return MemoryTransport(GATEWAY, gateway, gateway, actions=self)

    @property
    def orders(self) -> list[object]:
        """The orders that were shipped."""
        return [params["order"] for params in self.shipped]


def until(is_so: Callable[[], bool]) -> None:
    """Wait for something that another thread does."""
    assert waited(is_so)
