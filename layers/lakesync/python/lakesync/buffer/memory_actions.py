"""The action handlers of gateways and the runs of actions, in one process."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from lakesync.buffer.keys import check_gateway
from lakesync.ports import ActionKey, ActionRun, RunState, StoredHandler

if TYPE_CHECKING:
    from collections.abc import Mapping


class MemoryHandlers:
    """`lakesync.ports.HandlerStore` in memory."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stored: dict[tuple[str, str], bytes] = {}

    def handlers(self, gateway: str) -> list[StoredHandler]:
        """Return a gateway's action handlers, in the order of their names."""
        check_gateway(gateway)
        with self._lock:
            return [
                StoredHandler(name, definition)
                for (of, name), definition in sorted(self._stored.items())
                if of == gateway
            ]

    def add(self, gateway: str, name: str, definition: bytes, *, replace: bool) -> bool:
        """Register one; False if the name is in use and may not be replaced."""
        key = (check_gateway(gateway), name)
        with self._lock:
            if key in self._stored and not replace:
                return False
            self._stored[key] = definition
            return True

    def remove(self, gateway: str, name: str) -> bool:
        """Remove one; False if there was none."""
        with self._lock:
            return self._stored.pop((check_gateway(gateway), name), None) is not None

    def remove_all(self, gateway: str) -> None:
        """Remove all of a gateway."""
        for each in self.handlers(gateway):
            self.remove(gateway, each.name)

    def count_items(self, gateway: str) -> Mapping[str, int]:
        """Count them."""
        return {"actions": len(self.handlers(gateway))}


class MemoryRuns:
    """`lakesync.ports.ActionRuns` in memory."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: dict[tuple[str, str, str], ActionRun] = {}
        self._ids: dict[tuple[str, str, str], str] = {}
        """Action ids by idempotency key."""
        self._counts: dict[tuple[str, str, int], int] = {}

    def get(self, key: ActionKey) -> ActionRun | None:
        """Return the run of an action, by its id, else by its idempotency key."""
        check_gateway(key.gateway)
        with self._lock:
            run = self._runs.get((key.gateway, key.client_id, key.action_id))
            if run is None and key.idempotency_key:
                first = self._ids.get((key.gateway, key.client_id, key.idempotency_key), "")
                run = self._runs.get((key.gateway, key.client_id, first))
            return run

    def begin(self, key: ActionKey, seen: ActionRun | None, run: ActionRun, now_ms: int) -> bool:
        """Begin a run, if it is still as it was seen."""
        del now_ms  # nothing is forgotten here
        place = (check_gateway(key.gateway), key.client_id, run.action_id)
        named = (key.gateway, key.client_id, key.idempotency_key)
        with self._lock:
            if self._runs.get(place) != seen:
                return False
            if seen is None and key.idempotency_key:
                if named in self._ids:
                    return False
                self._ids[named] = run.action_id
            self._runs[place] = run
            return True

    def end(self, key: ActionKey, run: ActionRun, now_ms: int) -> bool:
        """Store the state of a run; False if another owner has begun it."""
        del now_ms
        place = (check_gateway(key.gateway), key.client_id, run.action_id)
        with self._lock:
            stored = self._runs.get(place)
            if stored is None or stored.owner != run.owner or stored.state is not RunState.RUNNING:
                return False
            self._runs[place] = run
            return True

    def count(self, gateway: str, counter: str, now_ms: int, number_max: int) -> bool:
        """Count one within this minute."""
        place = (check_gateway(gateway), counter, now_ms // 60_000)
        with self._lock:
            if self._counts.get(place, 0) >= number_max:
                return False
            self._counts[place] = self._counts.get(place, 0) + 1
            return True
