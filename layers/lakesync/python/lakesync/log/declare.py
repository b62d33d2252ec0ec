"""How a configuration is put in force: for all writers at once, however busy the gateway is."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from lakesync.core.clock import STAMP_MAX, stamp
from lakesync.core.epoch import new_epoch
from lakesync.core.layout import DEFAULT_SHARD, MAIN_LANE
from lakesync.errors import Contention, Unavailable
from lakesync.log.lanes import close_lanes
from lakesync.ports import NO_HEAD, ConfigMoved, HeadBusy, HeadMoved

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lakesync.core.clock import Stamp
    from lakesync.core.config import GatewayConfig
    from lakesync.ports import Buffer, Chance, Head, WallClock

_TRIES_MAX: Final = 60
_BACK_OFF_MS: Final = 40
_BACK_OFF_MS_MAX: Final = 200
_LEAD_MS: Final = 100
_PAUSE_MS: Final = 2_000
"""How long no lane is opened, so that a configuration can be changed under many writes."""
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
        """Put a changed configuration in force; after this returns, it decides every push.

        Args:
            gateway: the gateway's id.
            change: gives the new configuration; the same object if nothing is to be done.

        Raises:
            Unavailable: the gateway or its store is too busy.
            Conflict: the configuration has outgrown what can be stored.
            GatewayDeleted: the gateway was deleted.
        """
        error: Unavailable = Contention(_TOO_BUSY)
        for attempt in range(_TRIES_MAX):
            try:
                return self._tried(gateway, change, stamp(_LEAD_MS) if attempt else 0)
            except (HeadMoved, HeadBusy, ConfigMoved):
                error = Contention(_TOO_BUSY)  # or another administrator is changing it
            except Unavailable as unavailable:
                error = unavailable
            self._sleep_ms(
                self._chance.jitter() * min(_BACK_OFF_MS * (attempt + 1), _BACK_OFF_MS_MAX)
            )
        raise error

    def _tried(
        self, gateway: str, change: Callable[[GatewayConfig], GatewayConfig], lead: Stamp
    ) -> GatewayConfig:
        before = self._buffer.config(gateway)
        # Read before the change is made: what it looks up in the log stays true, as nothing is
        # saved if a commit follows.
        heads = self._buffer.heads(gateway, STAMP_MAX)
        wanted = change(before)
        if wanted is before:
            return before
        before.check_not_deleted()
        wanted = replace(wanted, version=before.version + 1)
        main, now_ms = heads.get(MAIN_LANE), self._wall_clock()
        lanes = (main or NO_HEAD).lanes
        if len(lanes.open()) > 1:
            self._close_lanes(gateway, heads, now_ms)
            raise Contention(_TOO_BUSY)  # and once they are closed, try again
        top = max((main or NO_HEAD).commit, lanes.quiet)
        # Where pushes advance heads all the time, a lead keeps them from overtaking this change.
        to = max(top + 1, stamp(now_ms)) + lead
        if wanted.logged != before.logged:
            wanted = replace(wanted, logged=replace(wanted.logged, since=to))
        epoch = (main or NO_HEAD).epoch or new_epoch(self._chance.token())
        self._buffer.save_config(gateway, wanted, main, lanes.paused(0), to, epoch=epoch)
        return wanted

    def _close_lanes(self, gateway: str, heads: Mapping[str, Head], now_ms: int) -> None:
        """Close all lanes but the main one, so that the main lane's head alone decides."""
        main = heads[MAIN_LANE]
        if main.lanes.paused_until_ms <= now_ms:
            paused = main.lanes.paused(now_ms + _PAUSE_MS)
            if not self._buffer.change_lanes(gateway, main, paused):
                return
            heads = {**heads, MAIN_LANE: replace(main, lanes=paused)}
        shards = main.lanes.counts
        close_lanes(self._buffer, gateway, heads, {s: int(s == DEFAULT_SHARD) for s in shards})
