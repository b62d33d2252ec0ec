"""The read barrier makes one 64-bit cursor exact for any number of shards.

Before a log is read, every lagging head is raised to the highest head seen. A commit is conditional
on its head and stamped above it, so after the barrier none can appear at or below that stamp in any
shard. What is read up to there is complete and final.

Final is not yet visible: while a commit happens, its head may show before its log entry does. So a
log is read only by `read`, which follows the chain of entries back from the head and does not
accept a gap. Laws B7-B8: ``docs/spec/commit.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from lakesync.errors import Contention
from lakesync.ports import NO_HEAD, LogSlice

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from lakesync.core.clock import Stamp
    from lakesync.core.config import GatewayConfig
    from lakesync.ports import Buffer, Head, LogEntry

CONFIGS_REMEMBERED_MAX: Final = 64
"""Gateways whose configuration one process remembers; each may hold 350 KB."""
_TRIES_MAX: Final = 20
_GAP_TRIES_MAX: Final = 10


@dataclass(frozen=True, slots=True)
class FinalLog:
    """A gateway's log, final up to ``top``."""

    gateway: str
    config: GatewayConfig
    heads: Mapping[str, Head]
    """The heads that existed, as they were when each was at ``top`` or about to be raised there."""
    top: Stamp

    @property
    def epoch(self) -> str:
        """The epoch of the buffer; empty unless it was restored from a backup."""
        return max((head.epoch for head in self.heads.values()), default="")

    @property
    def trimmed(self) -> Stamp:
        """The horizon: cursors below it are void."""
        return max((head.trimmed for head in self.heads.values()), default=0)


class ReadBarrier:
    """Makes logs final before they are read, and remembers configurations. One for each process."""

    def __init__(self, buffer: Buffer) -> None:
        self._buffer = buffer
        self._configs: dict[str, GatewayConfig] = {}

    def raise_heads(self, gateway: str) -> FinalLog:
        """Make a gateway's log final up to its highest head. Safe to repeat.

        Cost: one round trip and a read unit a shard; a write unit for each head that lags.

        Raises:
            Contention: writers kept moving the heads; try again in a moment.
        """
        for tries in range(1, _TRIES_MAX):
            config = self._config(gateway)
            heads = self._buffer.heads(gateway, config.layout.shards())
            if any(head.config_version != config.version for head in heads.values()):
                del self._configs[gateway]  # declared anew: there may be shards to read besides
                self._buffer.pause(tries)
                continue
            top = max((head.commit for head in heads.values()), default=0)
            if top:
                # Shards that a later configuration adds begin above every head there was before.
                heads = {
                    shard: self._raised(gateway, shard, heads.get(shard), top)
                    for shard in config.layout.shards()
                }
            return FinalLog(gateway, config, heads, top)
        raise Contention("the gateway's configuration is just changing; try again in a moment")

    def _config(self, gateway: str) -> GatewayConfig:
        config = self._configs.get(gateway)
        if config is None:
            if len(self._configs) >= CONFIGS_REMEMBERED_MAX:
                self._configs.clear()
            config = self._configs[gateway] = self._buffer.config(gateway)
        return config

    def _raised(self, gateway: str, shard: str, head: Head | None, top: Stamp) -> Head:
        """Raise one head to ``top`` at the least; gives it as it was before."""
        for tries in range(1, _TRIES_MAX):
            if head is not None and head.commit >= top:
                return head
            if self._buffer.raise_head(gateway, shard, head, top):
                return head or NO_HEAD
            self._buffer.pause(tries)
            head = self._buffer.heads(gateway, [shard]).get(shard)
        raise Contention("the gateway's heads keep moving; try again in a moment")


class Entries(Protocol):
    """Where entries are read: `lakesync.ports.Buffer`, or what remembers some of it."""

    def entries(
        self, gateway: str, shard: str, after: Stamp, until: Stamp, count_max: int
    ) -> LogSlice:
        """Give entries as `lakesync.ports.Buffer.entries` does."""
        ...

    def pause(self, tries: int) -> None:
        """Wait, as `lakesync.ports.Buffer.pause` does."""
        ...


def read(
    source: Entries, log: FinalLog, shard: str, span: tuple[Stamp, Stamp], count_max: int
) -> LogSlice:
    """Give a shard's entries in ``span``, which ends at ``log.top`` at the latest; without gaps.

    Ends early as `lakesync.ports.Buffer.entries` does, and says so.

    Raises:
        Contention: an entry that must be there stayed invisible; try again in a moment.
    """
    after, until = span
    head = log.heads.get(shard, NO_HEAD)
    if head.last_logged <= after:
        return LogSlice((), until)  # nothing was logged since: no need to ask
    for tries in range(1, _GAP_TRIES_MAX):
        # The last entry of the chain is the only one that proves that none is missing before it,
        # and there is none behind it: the head was raised to ``log.top`` from there.
        read_slice = source.entries(log.gateway, shard, after, head.last_logged, count_max)
        if is_chain(read_slice, after, head.last_logged):
            entries = tuple(entry for entry in read_slice.entries if entry.stamp <= until)
            is_all = read_slice.until >= head.last_logged
            return LogSlice(entries, until if is_all else min(read_slice.until, until))
        source.pause(tries)
    raise Contention("a commit is just becoming visible; try again in a moment")


def read_all(
    source: Entries, log: FinalLog, span: tuple[Stamp, Stamp], count_max: int
) -> Iterator[LogEntry]:
    """Give all entries of all shards in ``span``, shard by shard, as `read` does, part by part.

    Raises:
        Contention: as `read`.
    """
    for shard in log.heads:
        after, until = span
        while after < until:
            part = read(source, log, shard, (after, until), count_max)
            yield from part.entries
            after = part.until


def is_chain(read_slice: LogSlice, after: Stamp, last: Stamp) -> bool:
    """Tell whether no entry is missing from a slice that begins after a stamp.

    Args:
        read_slice: the slice.
        after: the last stamp that was read before.
        last: the shard's last entry, as its head says.
    """
    for entry in read_slice.entries:
        if entry.previous > after:
            return False
        after = entry.stamp
    return after >= min(last, read_slice.until)
