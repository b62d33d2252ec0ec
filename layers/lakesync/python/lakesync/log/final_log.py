"""A gateway's log, final up to a stamp, and how it is read without gaps.

Final does not mean visible: while a commit is written, its head may be visible before its log
entry. So a log is read only by `read`, which follows the chain of entries back from the head and
does not accept a gap. Law B8: ``docs/spec/commit.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from lakesync.core.clock import stamp_ms
from lakesync.core.layout import MAIN_LANE
from lakesync.errors import Contention
from lakesync.ports import NO_HEAD, LogSlice

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from lakesync.core.clock import Stamp
    from lakesync.core.config import GatewayConfig
    from lakesync.ports import Head, LogEntry

_GAP_TRIES_MAX: Final = 10


@dataclass(frozen=True, slots=True)
class FinalLog:
    """A gateway's log, final up to ``top``."""

    gateway: str
    config: GatewayConfig
    heads: Mapping[str, Head]
    """By lane, the heads of the lanes that may have an entry above the requested stamp."""
    top: Stamp
    newest: Stamp = 0
    """The newest commit that was seen; above ``top`` if a lagging lane was not raised."""

    @property
    def epoch(self) -> str:
        """The gateway's epoch; empty before its first commit."""
        return self.heads.get(MAIN_LANE, NO_HEAD).epoch

    @property
    def trimmed(self) -> Stamp:
        """The horizon: cursors below it are void."""
        return self.heads.get(MAIN_LANE, NO_HEAD).trimmed

    @property
    def behind_ms(self) -> int:
        """How far the newest commit is ahead of the end of this log; 0 if it is the end."""
        if self.newest <= self.top:
            return 0
        return stamp_ms(self.newest) - stamp_ms(self.top) + 1


class Entries(Protocol):
    """The source of entries: `lakesync.ports.Buffer`, or a cache in front of it."""

    def entries(
        self, gateway: str, lane: str, after: Stamp, until: Stamp, count_max: int
    ) -> LogSlice:
        """Return entries as `lakesync.ports.Buffer.entries` does."""
        ...

    def pause(self, tries: int) -> None:
        """Wait, as `lakesync.ports.Buffer.pause` does."""
        ...


def read(
    source: Entries, log: FinalLog, lane: str, span: tuple[Stamp, Stamp], count_max: int
) -> LogSlice:
    """Return a lane's entries in ``span``, which ends at ``log.top`` at the latest; without gaps.

    Ends early as `lakesync.ports.Buffer.entries` does, and says so.

    Raises:
        Contention: an entry that must exist stayed invisible; try again in a moment.
    """
    after, until = span
    head = log.heads.get(lane, NO_HEAD)
    stored = LogSlice((), head.stored_until)
    if head.stored_until > after:
        stored = _read_stored(source, log.gateway, lane, after, head.stored_until, count_max)
    if stored.until < head.stored_until:
        entries = stored.entries
        until = min(stored.until, until)
    else:
        entries = (*stored.entries, *head.recent)
    return LogSlice(tuple(entry for entry in entries if after < entry.stamp <= until), until)


def _read_stored(
    source: Entries, gateway: str, lane: str, after: Stamp, last: Stamp, count_max: int
) -> LogSlice:
    """Return entries that are not in the head, up to the last of them; without gaps."""
    for tries in range(1, _GAP_TRIES_MAX):
        # Only the last entry of the chain proves that none is missing before it.
        read_slice = source.entries(gateway, lane, after, last, count_max)
        if read_slice.is_chain(after, last):
            return read_slice
        source.pause(tries)
    raise Contention("a commit is becoming visible; try again in a moment")


def read_all(
    source: Entries, log: FinalLog, span: tuple[Stamp, Stamp], count_max: int
) -> Iterator[LogEntry]:
    """Yield all entries of all lanes in ``span``, lane by lane, in parts, as `read` does."""
    for lane in log.heads:
        after, until = span
        while after < until:
            part = read(source, log, lane, (after, until), count_max)
            yield from part.entries
            after = part.until
