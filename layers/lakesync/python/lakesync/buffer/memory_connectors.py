"""The connectors of gateways, in one process."""

from __future__ import annotations

import threading
from dataclasses import replace

from lakesync.buffer.keys import check_gateway
from lakesync.ports import StoredConnector


class MemoryConnectors:
    """`lakesync.ports.ConnectorStore` in memory."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stored: dict[tuple[str, str], StoredConnector] = {}

    def connectors(self, gateway: str) -> list[StoredConnector]:
        """Return a gateway's connectors, in the order of their names."""
        check_gateway(gateway)
        with self._lock:
            return [self._stored[key] for key in sorted(self._stored) if key[0] == gateway]

    def connector(self, gateway: str, name: str) -> StoredConnector | None:
        """Return one of them; None if there is none of that name."""
        return self._stored.get((check_gateway(gateway), name))

    def add(self, gateway: str, name: str, definition: bytes, now_ms: int) -> bool:
        """Register one; False if the name is in use."""
        with self._lock:
            added = StoredConnector(name, definition, b"", now_ms, 0)
            return self._stored.setdefault((check_gateway(gateway), name), added) is added

    def change(self, gateway: str, name: str, seen: bytes, definition: bytes) -> bool:
        """Change a definition; False if it was not as seen."""
        with self._lock:
            stored = self.connector(gateway, name)
            if stored is None or stored.definition != seen:
                return False
            self._stored[gateway, name] = replace(stored, definition=definition)
            return True

    def remove(self, gateway: str, name: str) -> None:
        """Remove one."""
        with self._lock:
            self._stored.pop((check_gateway(gateway), name), None)

    def remove_all(self, gateway: str) -> None:
        """Remove all of a gateway."""
        for each in self.connectors(gateway):
            self.remove(gateway, each.name)

    def count_items(self, gateway: str) -> dict[str, int]:
        """Count them."""
        return {"connectors": len(self.connectors(gateway))}

    def lease(
        self, gateway: str, name: str, now_ms: int, until_ms: int, mine: int = 0
    ) -> StoredConnector | None:
        """Take the right to poll one; None if another process has it."""
        with self._lock:
            stored = self.connector(gateway, name)
            if stored is None or not (stored.leased_until_ms <= now_ms or stored.lease == mine):
                return None
            leased = replace(stored, lease=stored.lease + 1, leased_until_ms=until_ms)
            self._stored[gateway, name] = leased
            return leased

    def save(self, gateway: str, name: str, lease: int, state: bytes, until_ms: int) -> bool:
        """Save the progress of one; False if the lease is another's."""
        with self._lock:
            stored = self.connector(gateway, name)
            if stored is None or stored.lease != lease:
                return False
            self._stored[gateway, name] = replace(stored, state=state, leased_until_ms=until_ms)
            return True
