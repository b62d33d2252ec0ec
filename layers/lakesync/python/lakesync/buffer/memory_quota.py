"""The usage and quotas of gateways, in one process."""

from __future__ import annotations

import threading

from lakesync.buffer.keys import check_gateway
from lakesync.buffer.quota import WINDOWS_AHEAD_MAX
from lakesync.ports import Quota, Usage, WindowUsage


class MemoryQuotas:
    """`lakesync.ports.QuotaStore` in memory."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._used: dict[str, tuple[int, Usage]] = {}
        self._quotas: dict[str, Quota] = {}

    def report(self, gateway: str, window: int, usage: Usage) -> WindowUsage:
        """Add to the usage, and give what all processes have reported."""
        with self._lock:
            on, used = self._used.get(check_gateway(gateway), (-1, Usage()))
            if not window <= on <= window + WINDOWS_AHEAD_MAX:
                on, used = window, Usage()
            used = Usage(*(a + b for a, b in zip(used, usage, strict=True)))
            self._used[gateway] = (on, used)
            return WindowUsage(on, used, self._quotas.get(gateway, Quota()))

    def remove(self, gateway: str) -> None:
        """Remove a gateway's usage and quota."""
        with self._lock:
            self._used.pop(gateway, None)
            self._quotas.pop(gateway, None)

    def count_items(self, gateway: str) -> dict[str, int]:
        """Count its records: 1 if there is any."""
        return {"quota": int(gateway in self._used or gateway in self._quotas)}

    def quota(self, gateway: str) -> Quota:
        """Return the quota that was set for a gateway."""
        return self._quotas.get(check_gateway(gateway), Quota())

    def set_quota(self, gateway: str, quota: Quota) -> None:
        """Set how much a gateway may use."""
        self._quotas[check_gateway(gateway)] = quota
