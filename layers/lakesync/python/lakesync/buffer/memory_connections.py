"""The open WebSockets in one process."""

from __future__ import annotations

import threading
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from lakesync.buffer.keys import check_gateway
from lakesync.ports import Connection, NotifyState

if TYPE_CHECKING:
    from lakesync.core.clock import Stamp


@dataclass(slots=True)
class _Turn:
    """The process that notifies, and how far was notified."""

    state: NotifyState = field(default_factory=NotifyState)
    owner: str = ""
    until_ms: int = 0


class MemoryConnections:
    """`lakesync.ports.Connections` in memory, for tests and for apps without a server."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connections: dict[str, dict[str, Connection]] = defaultdict(dict)
        self._turns: dict[str, _Turn] = defaultdict(_Turn)

    def add(self, connection: Connection) -> None:
        """Store a connection."""
        self._connections[check_gateway(connection.gateway)][connection.id] = connection

    def get(self, gateway: str, connection_id: str) -> Connection | None:
        """Return a connection."""
        return self._connections[check_gateway(gateway)].get(connection_id)

    def rescope(self, connection: Connection) -> None:
        """Store the scope of a connection, unless it was removed."""
        with self._lock:
            known = self._connections[connection.gateway]
            if connection.id in known:
                known[connection.id] = replace(
                    known[connection.id],
                    scope=connection.scope,
                    rules=connection.rules,
                )

    def count_frames(self, connection: Connection, window: int, frames: int) -> bool:
        """Add to the frames of a connection in a span of time."""
        with self._lock:
            known = self._connections[connection.gateway].get(connection.id)
            is_begun = connection.window == window
            if known is None or (known.window != window if is_begun else known.window >= window):
                return False
            self._connections[connection.gateway][connection.id] = replace(
                known, window=window, frames=frames + (known.frames if is_begun else 0)
            )
            return True

    def remove(self, gateway: str, connection_id: str) -> None:
        """Remove a connection."""
        self._connections[check_gateway(gateway)].pop(connection_id, None)

    def of_gateway(self, gateway: str) -> tuple[list[Connection], NotifyState]:
        """Return all connections of a gateway."""
        known = self._connections[check_gateway(gateway)]
        return [known[name] for name in sorted(known)], self._turns[gateway].state

    def scan(self, place: str) -> tuple[list[Connection], str]:
        """Return the connections of one gateway, and the next one."""
        gateways = sorted(name for name in self._connections if name > place)
        if not gateways:
            return [], ""
        more = gateways[0] if len(gateways) > 1 else ""
        return list(self._connections[gateways[0]].values()), more

    def begin(self, gateway: str, owner: str, now_ms: int, until_ms: int) -> bool:
        """Become the process that notifies."""
        with self._lock:
            turn = self._turns[check_gateway(gateway)]
            if turn.owner not in {"", owner} and turn.until_ms >= now_ms:
                return False
            turn.owner, turn.until_ms = owner, until_ms
            return True

    def leave(self, gateway: str, commit: Stamp, now_ms: int) -> bool:
        """Leave a commit to the process in charge."""
        with self._lock:
            turn = self._turns[check_gateway(gateway)]
            if not turn.owner or turn.until_ms < now_ms:
                return False
            turn.state = replace(turn.state, wanted=max(turn.state.wanted, commit))
            return True

    def hand_on(self, gateway: str, owner: str, state: NotifyState) -> None:
        """End the turn, and store where the next process continues."""
        with self._lock:
            turn = self._turns[check_gateway(gateway)]
            if turn.owner == owner:
                turn.state = replace(state, wanted=turn.state.wanted)
                turn.owner, turn.until_ms = "", 0

    def end(self, gateway: str, owner: str, notified: Stamp) -> bool:
        """Note how far was notified, and end the turn."""
        with self._lock:
            turn = self._turns[check_gateway(gateway)]
            if turn.owner != owner:
                return True
            wanted = turn.state.wanted
            if wanted > notified:
                turn.state = NotifyState(notified, wanted)
                return False
            turn.state, turn.owner, turn.until_ms = NotifyState(notified), "", 0
            return True
