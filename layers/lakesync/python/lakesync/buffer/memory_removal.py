"""All that is stored of one gateway in memory: counted, and removed."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from lakesync.buffer.memory_actions import MemoryHandlers
from lakesync.buffer.memory_connectors import MemoryConnectors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lakesync.buffer.memory import MemoryBuffer
    from lakesync.buffer.memory_access import MemoryAccess
    from lakesync.buffer.memory_quota import MemoryQuotas


class MemoryItems:
    """`lakesync.ports.GatewayItems` of stores in one process."""

    def __init__(
        self,
        buffer: MemoryBuffer,
        access: MemoryAccess,
        quotas: MemoryQuotas,
        connectors: MemoryConnectors | None = None,
        handlers: MemoryHandlers | None = None,
    ) -> None:
        self._buffer = buffer
        self._access = access
        self._quotas = quotas
        self._connectors = connectors or MemoryConnectors()
        self._handlers = handlers or MemoryHandlers()

    def count(self, gateway: str, tables: Iterable[str]) -> dict[str, int]:
        """Count what is stored of a gateway, by kind."""
        del tables  # memory contains all that exists
        parts = (self._buffer, self._access, self._quotas, self._connectors, self._handlers)
        return {
            kind: number for part in parts for kind, number in part.count_items(gateway).items()
        }

    def remove(self, gateway: str, tables: Iterable[str], has_time: Callable[[], bool]) -> bool:
        """Remove all of that, kind by kind."""
        del tables
        kinds = self._buffer.count_items(gateway)
        steps = [partial(self._buffer.remove_items, gateway, kind) for kind in kinds]
        for step in (*steps, partial(self._access.remove, gateway),
                     partial(self._quotas.remove, gateway),
                     partial(self._connectors.remove_all, gateway),
                     partial(self._handlers.remove_all, gateway)):  # fmt: skip
            if not has_time():
                return False
            step()
        return True
