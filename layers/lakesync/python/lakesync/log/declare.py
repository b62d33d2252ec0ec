"""How a configuration comes into force: for all writers at once, however busy the gateway is."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from lakesync.core.clock import stamp
from lakesync.errors import Contention, Unavailable
from lakesync.ports import ConfigMoved, HeadMoved

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.core.clock import Stamp
    from lakesync.core.config import GatewayConfig
    from lakesync.log.commit import Chance
    from lakesync.ports import Buffer, WallClock

_TRIES_MAX: Final = 60
_BACK_OFF_MS: Final = 40
_LEAD_MS: Final = 100
_TOO_BUSY: Final = "the gateway is too busy to change its configuration; try again"


class Declare:
    """Changes the configurations of gateways. Law B6: ``docs/spec/commit.md``."""

    def __init__(
        self,
        buffer: Buffer,
        *,
        wall_clock: WallClock,
        sleep_ms: Callable[[float], None],
        chance: Chance,
    ) -> None:
        self._buffer = buffer
        self._wall_clock = wall_clock
        self._sleep_ms = sleep_ms
        self._chance = chance

    def __call__(
        self,
        gateway: str,
        change: Callable[[GatewayConfig], GatewayConfig],
    ) -> GatewayConfig:
        """Put a changed configuration in force; once this returns, no push is decided by another.

        Args:
            gateway: whose.
            change: gives it as it shall be; the very same if nothing is to be done.

        Raises:
            Unavailable: the gateway is too busy, or its store is.
            Conflict: the configuration has outgrown what can be stored.
        """
        error: Unavailable = Contention(_TOO_BUSY)
        for attempt in range(_TRIES_MAX):
            try:
                return self._tried(gateway, change, stamp(_LEAD_MS) if attempt else 0)
            except (HeadMoved, ConfigMoved):
                error = Contention(_TOO_BUSY)  # or another administrator is at work
            except Unavailable as unavailable:
                error = unavailable
            self._sleep_ms(self._chance.jitter() * _BACK_OFF_MS)
        raise error

    def _tried(
        self, gateway: str, change: Callable[[GatewayConfig], GatewayConfig], lead: Stamp
    ) -> GatewayConfig:
        before = self._buffer.config(gateway)
        wanted = change(before)
        if wanted is before:
            return before
        wanted = replace(wanted, version=before.version + 1)
        heads = self._buffer.heads(gateway, wanted.layout.shards())
        top = max((head.commit for head in heads.values()), default=0)
        epoch = max((head.epoch for head in heads.values()), default="")
        # Where pushes move heads all the time, a lead keeps them from moving past this change.
        to = max(top, stamp(self._wall_clock())) + lead
        if wanted.logged != before.logged:
            wanted = replace(wanted, logged=replace(wanted.logged, since=to))
        self._buffer.save_config(gateway, wanted, to, epoch)
        return wanted
