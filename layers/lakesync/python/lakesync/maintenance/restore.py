"""Restore: what an operator does once the buffer was restored to an earlier moment.

A restored buffer is another buffer: commits that were handed out are gone from it, and it would
hand out their stamps again. So it begins a new epoch, which voids every cursor, at a stamp above
all that the lost buffer can have given. Clients notice, read everything anew, keep their outbox,
and offer once more what they themselves wrote (``docs/adr/0004-restored-buffer.md``). Law B12:
``docs/spec/commit.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lakesync.core.clock import stamp
from lakesync.errors import Conflict, Contention
from lakesync.log.read_barrier import ReadBarrier, read
from lakesync.ports import HeadMoved, epoch_at

if TYPE_CHECKING:
    from lakesync.core.clock import Stamp
    from lakesync.log.read_barrier import FinalLog
    from lakesync.ports import Buffer, WallClock

LEAD_MS: Final = 120_000
"""How far the epoch begins ahead of the operator's clock: no function's clock was further ahead,
so no commit that is lost had a stamp from there on."""
_TRIES_MAX: Final = 10
_SLICE_DELTAS_MAX: Final = 10_000
_IN_TWO = (
    "the backup cut a commit in two: its log has a gap; restore the table to a second before or "
    "after, and begin the epoch there"
)


def begin_epoch(buffer: Buffer, gateway: str, *, wall_clock: WallClock) -> str:
    """Put a restored gateway into a new epoch, and give its name. While nobody writes to it.

    Repeating it does no harm: each time all clients read everything anew.

    Raises:
        Conflict: the restored log is not whole.
        Contention: it is written to.
        LakeSyncError: the buffer refused.
    """
    for tries in range(1, _TRIES_MAX):
        shards = buffer.config(gateway).layout.shards()
        state = buffer.flush_state(gateway)
        log = ReadBarrier(buffer).raise_heads(gateway)
        _check_whole(buffer, log, state.watermark)
        top = max(log.top, state.watermark, state.until, stamp(wall_clock()))
        began = top + stamp(LEAD_MS)
        try:
            buffer.begin_epoch(gateway, shards, began)
        except HeadMoved:
            buffer.pause(tries)
            continue
        return epoch_at(began)
    raise Contention("the gateway is being written to; stop its functions, and try again")


def _check_whole(buffer: Buffer, log: FinalLog, watermark: Stamp) -> None:
    """Prove that what is still to be flushed can be read.

    Raises:
        Conflict: an entry is missing.
    """
    for shard in log.heads:
        after = max(watermark, log.trimmed)
        while after < log.top:
            try:
                after = read(buffer, log, shard, (after, log.top), _SLICE_DELTAS_MAX).until
            except Contention as exc:
                raise Conflict(_IN_TWO) from exc
