"""Restore: the operator's step after the buffer was restored to an earlier moment.

A restored buffer is a different buffer: it lacks commits that clients have read, and would issue
their stamps again. So it begins a new epoch, which voids every cursor, at a stamp above all that
the lost buffer can have issued. Clients notice this, read everything again, keep their outbox, and
push again what they themselves wrote (``docs/adr/0004-restored-buffer.md``). Law B12:
``docs/spec/commit.md``.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from lakesync.core.clock import stamp
from lakesync.core.epoch import restored_at
from lakesync.core.layout import DEFAULT_SHARD, MAIN_LANE, LaneCount, lane_number, lane_shard
from lakesync.errors import Conflict, Contention
from lakesync.log.read import FinalLog, read
from lakesync.ports import NO_HEAD, HeadBusy, HeadMoved

if TYPE_CHECKING:
    from lakesync.core.clock import Stamp
    from lakesync.ports import Buffer, WallClock

LEAD_MS: Final = 120_000
"""How far the epoch begins ahead of the operator's clock: no function's clock was further ahead, so
no lost commit has a stamp from there on."""
_TRIES_MAX: Final = 10
_SLICE_DELTAS_MAX: Final = 10_000
_IN_TWO = (
    "the backup cut a commit in two: its log has a gap; restore the table to a second before or "
    "after, and begin the epoch there"
)


def begin_epoch(buffer: Buffer, gateway: str, *, wall_clock: WallClock) -> str:
    """Put a restored gateway into a new epoch, and give its name. Call it while nobody writes.

    Repeating it is harmless: each time all clients read everything again.

    Returns:
        The epoch; empty where the backup is from before the gateway's first commit. To clients that
        have read later commits it will be another gateway.

    Raises:
        Conflict: the restored log is incomplete.
        GatewayDeleted: it was deleted when the backup was made; continue the deletion.
        Contention: a client is writing to it.
        LakeSyncError: the buffer refused.
    """
    for tries in range(1, _TRIES_MAX):
        try:
            return _begin(buffer, gateway, wall_clock())
        except (HeadBusy, HeadMoved):
            buffer.pause(tries)
    raise Contention("the gateway is being written to; stop its functions, and try again")


def _begin(buffer: Buffer, gateway: str, now_ms: int) -> str:
    """Close all lanes, and put the epoch into the main lane's head.

    The heads of a restored buffer may be from before and after a commit that opened a lane. So the
    main lane's list of the others is not relied on.

    Raises:
        HeadMoved: another process is writing.
    """
    heads = buffer.all_heads(gateway)
    # After the heads: saving a configuration from here on moves the main lane's head beyond the one
    # seen.
    config, state = buffer.config(gateway), buffer.flush_state(gateway)
    config.check_not_deleted()  # any part of a deleted gateway may be missing
    top = max((head.commit for head in heads.values()), default=0)
    log = FinalLog(gateway, config, heads, top)
    _check_whole(buffer, log, state.watermark)
    main = heads.pop(MAIN_LANE, None)
    before = (main or NO_HEAD).lanes
    for lane in {*heads, *before.open()} - {MAIN_LANE}:
        head = heads.get(lane)
        if not buffer.close_lane(gateway, lane, head, (head or NO_HEAD).commit + 1):
            raise HeadMoved({lane: head or NO_HEAD})
    used = dict.fromkeys([DEFAULT_SHARD], 1)
    for lane in heads:
        shard = lane_shard(lane)
        used[shard] = max(used.get(shard, 0), lane_number(lane) + 1)
    counts = {
        shard: LaneCount(int(shard == DEFAULT_SHARD), max(number, before.of(shard).used))
        for shard, number in used.items()
    }
    quiet = max((head.last_logged for head in heads.values()), default=0)
    lanes = replace(
        before,
        counts=MappingProxyType(counts),
        changes=before.changes + 1,
        quiet=quiet,
        paused_until_ms=0,
    )
    began = max(top, state.watermark, state.until, stamp(now_ms)) + stamp(LEAD_MS)
    before_restore = (main or NO_HEAD).epoch
    epoch = restored_at(before_restore, began) if before_restore else ""
    buffer.begin_epoch(gateway, main, lanes, began, config.version, epoch)
    return epoch


def _check_whole(buffer: Buffer, log: FinalLog, watermark: Stamp) -> None:
    """Check that the entries that are still to be flushed can be read.

    Raises:
        Conflict: an entry is missing.
    """
    for lane in log.heads:
        after = max(watermark, log.trimmed)
        while after < log.top:
            try:
                after = read(buffer, log, lane, (after, log.top), _SLICE_DELTAS_MAX).until
            except Contention as exc:
                raise Conflict(_IN_TWO) from exc
