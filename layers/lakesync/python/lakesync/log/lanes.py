"""Lanes: which one a process writes to, how much their heads hold, and when a push is refused.

A process writes to a lane of its own under concurrent writes, to the first one otherwise. It stays
with a lane until it loses a race there. Then it moves to an idle lane, and opens more if there is
none. Opening lanes advances the main lane's head in the same write that lists them. So a page that
was read without them ends below anything that is committed to them. Flushes close lanes that were
idle for a while; lanes that they leave open are closed a minute later. Laws B7, B16:
``docs/spec/commit.md``.

Heads hold so much that a reader of many shards pays two read units. The main lane's head is read
alone, for one unit. The heads of the other shards' first lanes, open or closed, are in one item
collection. One query reads them, and DynamoDB adds up their sizes before it rounds to 4 KB, so they
share one unit. What their names and stamps leave of it is room for entries, the same for each head,
and none where there are many. The room follows from the layout alone, which all writers of a
configuration know, so no state is kept for it. A head may be too full, because there were fewer
shards or an older release wrote it; the next commit to its lane empties it.

In a transaction a head costs two write units for each started KB. The main lane's head lists the
lanes of all shards; entries get what is left of its last KB. Law B18: ``docs/spec/commit.md``.

The bounds of a gateway have their reasons in ``docs/spec/limits.md``. While flushing lags behind,
pushes are refused by the heads and can be repeated later (backpressure); none is dropped. A push is
also refused if its client belongs to another gateway, or has not read the current epoch. Laws B12,
B19: ``docs/spec/commit.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from lakesync.core.clock import STAMP_MAX, stamp, stamp_ms
from lakesync.core.gateway_identity import check_identity
from lakesync.core.layout import (
    DEFAULT_SHARD,
    LANES_MAX,
    MAIN_LANE,
    lane_name,
    lane_number,
    lane_shard,
)
from lakesync.core.messages import PAGE_BYTES_MAX
from lakesync.errors import Backpressure, Contention, CursorExpired, ValidationFailed
from lakesync.ports import NO_HEAD

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lakesync.core.clock import Stamp
    from lakesync.core.layout import Layout
    from lakesync.log.row_cache import CachedGateway, RowCache
    from lakesync.ports import Buffer, Head, WallClock

# --- bounds ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of what a gateway accepts and returns."""

    push_body_bytes_max: int = 4_500_000
    """A request body, inflated. Lambda takes 6 MB, of which base64 uses a quarter."""
    commit_items_max: int = 100
    """Items of one ``TransactWriteItems``."""
    commit_entries_bytes_max: int = 1_600_000
    """Log entries of one commit, over all shards, before deflating. With its rows they stay below
    the 4 MB of one ``TransactWriteItems``, keys and attribute names included."""
    commit_rows_bytes_max: int = 2_100_000
    """Merged rows of one commit; a push that touches more is cut into several commits."""
    entry_bytes_max: int = 380_000
    """Deltas of one commit in one shard, before deflating; an item holds 400 KB."""
    entry_rules_bytes_max: int = 5_000
    """The columns that sync rules read of the rows of one entry; beyond this a commit is cut. One
    delta may add 10,000, and together with the deltas it stays below the 400 KB of an item."""
    row_state_bytes_max: int = 380_000
    """One merged row with its stamps; an item holds 400 KB."""
    commit_deadline_ms: int = 8_000
    """How long lost races are retried before the push is answered with 503."""
    page_deltas_max: int = 10_000
    """The largest page that may be requested."""
    page_bytes_max: int = PAGE_BYTES_MAX
    """A page, unless one commit alone is larger, or the answer can carry less."""
    backpressure_bytes_max: int = 256 * 1024 * 1024
    """Unflushed data of one shard, beyond which pushes are refused until a flush."""
    backpressure_age_ms_max: int = 6 * 3600 * 1000
    """Age of the oldest unflushed commit, beyond which pushes are refused until a flush."""
    flush_threshold_bytes: int = 8 * 1024 * 1024
    """Unflushed data of one shard that starts a flush immediately."""


DEFAULT_LIMITS = Limits()


# --- backpressure and epoch -----------------------------------------------------------------------


def unflushed_bytes(head: Head) -> int:
    """Return how much of a lane's log waits to be flushed."""
    return head.logged_bytes - head.flushed_bytes


def check_backpressure(head: Head, now_ms: int, limits: Limits) -> None:
    """Refuse a push while too much data, or too old data, waits to be flushed.

    Raises:
        Backpressure: a bound is exceeded; the message says which.
    """
    # A client reads the sentence, so it names the limit, not how much others wrote.
    if unflushed_bytes(head) > limits.backpressure_bytes_max:
        raise Backpressure(
            f"more than {limits.backpressure_bytes_max} bytes wait to be flushed; push again "
            "later, and check the flush alarms"
        )
    age_ms = now_ms - stamp_ms(head.oldest_unflushed)
    if head.oldest_unflushed and age_ms > limits.backpressure_age_ms_max:
        raise Backpressure(
            f"data has waited longer than {limits.backpressure_age_ms_max // 1000} s to be "
            "flushed; push again later, and check the flush alarms"
        )


def check_room(row_cache: RowCache, gateway: str, lane: str, now_ms: int, limits: Limits) -> None:
    """Refuse a push to a lane while too much waits there; before refusing, read the head again.

    Raises:
        Backpressure: as `check_backpressure`.
    """
    cached = row_cache.gateway(gateway)
    try:
        check_backpressure(cached.head(lane) or NO_HEAD, now_ms, limits)
    except Backpressure:
        # A flush does not advance a head, so the cached head may be out of date: read it again.
        row_cache.forget_heads(gateway, [lane])
        row_cache.load_heads(gateway, [lane])
        check_backpressure(cached.head(lane) or NO_HEAD, now_ms, limits)


def check_epoch(row_cache: RowCache, gateway: str, epoch: str | None) -> None:
    """Refuse the push of a client that knows another epoch; one that names none may push.

    The edits of another gateway's client are not for this one. A restored buffer may lack earlier
    edits of the client: once the client has noticed the new epoch, it pushes them again, in the
    order in which they were made.

    Raises:
        AnotherGateway: the client belongs to another one.
        CursorExpired: the client has read another epoch.
        Contention: the client is right, and the cached heads were out of date.
    """
    cached = row_cache.gateway(gateway)
    if not epoch or cached.main.epoch == epoch:
        return
    row_cache.forget_heads(gateway, list(cached.heads))
    row_cache.load_heads(gateway, [MAIN_LANE])
    check_identity(epoch, cached.main.epoch)
    if cached.main.epoch != epoch:
        raise CursorExpired("the buffer was restored from a backup; pull, then push again")
    raise Contention("the epoch began a moment ago; push again")


# --- the choice of a lane -------------------------------------------------------------------------


FREE_MS: Final = 1_000
"""A lane without a commit for this long is free for another process."""
IDLE_MS: Final = 60_000
"""A lane without a commit for this long is closed."""
_TRIES_MAX: Final = 5
_CHANGING: Final = "the gateway's configuration is being changed; push again in a moment"
_OPENING: Final = "others are just opening lanes; push again in a moment"


class LaneChoice:
    """Chooses the lanes that one process writes to. One request at a time."""

    def __init__(
        self, buffer: Buffer, row_cache: RowCache, *, wall_clock: WallClock,
        jitter: Callable[[], float],
    ) -> None:  # fmt: skip
        self._buffer = buffer
        self._row_cache = row_cache
        self._wall_clock = wall_clock
        self._jitter = jitter

    def open_lane(self, gateway: str, shard: str) -> str:
        """Return the lane of a shard to commit to, opening one if none is; its head is then cached.

        Raises:
            Contention: others are changing the lanes; try again in a moment.
        """
        cached = self._row_cache.gateway(gateway)
        lane = cached.lanes.get(shard, shard)
        self._row_cache.load_heads(gateway, [MAIN_LANE, lane])
        if not may_commit(cached, lane):
            lane = lane if cached.main.lanes.is_open(lane) else shard
            cached.lanes[shard] = lane
            self._row_cache.load_heads(gateway, [lane])
        if not may_commit(cached, lane):
            self._open(gateway, cached, shard, lane_number(lane) + 1)
        return lane

    def lost(self, gateway: str, lane: str) -> None:
        """Move to another lane of the same shard, because others write to this one.

        Raises:
            Contention: as `open_lane`.
        """
        heads = self._buffer.heads(gateway, STAMP_MAX)
        self._row_cache.save_heads(gateway, {MAIN_LANE: None, **heads})
        cached = self._row_cache.gateway(gateway)
        if cached.main.config_version != cached.config.version:
            return  # not a race of writers; and a later release may have written what is there
        shard = lane_shard(lane)
        count = cached.main.lanes.of(shard).open
        newest_ms = max((stamp_ms(head.commit) for head in heads.values()), default=0)
        free = [
            number
            for number in range(count)
            if (name := lane_name(shard, number)) != lane
            and newest_ms - stamp_ms(heads.get(name, NO_HEAD).last_logged) >= FREE_MS
        ]
        if not free and count < LANES_MAX:
            free = list(range(count, min(max(2 * count, 1), LANES_MAX)))
            self._open(gateway, cached, shard, free[-1] + 1)
        if free:
            cached.lanes[shard] = lane_name(shard, free[int(self._jitter() * len(free))])

    def _open(self, gateway: str, cached: CachedGateway, shard: str, count: int) -> None:
        main, now_ms = cached.head(MAIN_LANE), self._wall_clock()
        lanes = cached.main.lanes
        if lanes.paused_until_ms > now_ms:
            self._row_cache.forget_heads(gateway, [MAIN_LANE])
            raise Contention(_CHANGING)
        # Read before they are listed: closing one of them from then on advances its head.
        names = [lane_name(shard, number) for number in range(count)]
        closed = [name for name in names if name not in cached.heads or _is_closed(cached, name)]
        heads = self._buffer.lane_heads(gateway, closed)
        to = max(cached.main.commit + 1, stamp(now_ms))
        is_open = self._buffer.change_lanes(gateway, main, lanes.opening(shard, count), to)
        self._row_cache.forget_heads(gateway, [MAIN_LANE])
        if not is_open:
            raise Contention(_OPENING)
        self._row_cache.save_heads(gateway, {name: heads.get(name) for name in closed})
        cached.opened.update((name, head.commit) for name, head in heads.items())
        self._row_cache.load_heads(gateway, [MAIN_LANE])


def _is_closed(cached: CachedGateway, lane: str) -> bool:
    head = cached.head(lane)
    return head is not None and head.is_closed


def may_commit(cached: CachedGateway, lane: str) -> bool:
    """Return whether a lane is open: its head says so, or it has no head yet and is listed."""
    head = cached.head(lane)
    if lane == MAIN_LANE:
        return True
    if head is None:
        return cached.main.lanes.is_open(lane)
    return not head.is_closed or cached.opened.get(lane) == head.commit


def idle_lanes(heads: Mapping[str, Head], since: Stamp) -> dict[str, int]:
    """Return how many lanes of each shard stay open, if the last ones logged nothing since."""
    lanes = heads[MAIN_LANE].lanes
    stay: dict[str, int] = {}
    for shard, count in lanes.counts.items():
        kept = count.open
        while kept and lane_name(shard, kept - 1) != MAIN_LANE:
            if heads.get(lane_name(shard, kept - 1), NO_HEAD).last_logged > since:
                break
            kept -= 1
        if kept < count.open:
            stay[shard] = kept
    return stay


def _minute_before(newest: Stamp) -> Stamp:
    return max(stamp(stamp_ms(newest) - IDLE_MS + 1) - 1, 0)


def close_idle(buffer: Buffer, gateway: str, since: Stamp = 0) -> Stamp:
    """Close lanes that were idle for a while. Idempotent, and safe to kill.

    Cost: the heads of all open lanes; for each lane that is closed a write unit, and one for their
    list.

    Args:
        buffer: the buffer.
        gateway: the gateway's id.
        since: a commit of more than `IDLE_MS` ago; without it, a commit of that long before the
            newest one is taken.

    Returns:
        0 if only the main lane is open. Else a stamp at or after the last activity in other lanes:
        called with it after `IDLE_MS`, this closes those without later activity.

    Raises:
        Contention: the heads or the lanes were changed repeatedly in the meantime.
    """
    for tries in range(_TRIES_MAX):
        if tries:
            buffer.pause(tries)
        heads = buffer.heads(gateway, STAMP_MAX)
        lanes = heads.get(MAIN_LANE, NO_HEAD).lanes
        if len(lanes.open()) == 1:
            return 0
        newest = max(head.commit for head in heads.values())
        stay = idle_lanes(heads, since or _minute_before(newest))
        if not stay or close_lanes(buffer, gateway, heads, stay):
            return newest if len(lanes.closing(stay, 0).open()) > 1 else 0
    raise Contention("lanes are being changed; they are closed later")


def close_lanes(
    buffer: Buffer, gateway: str, heads: Mapping[str, Head], stay: Mapping[str, int]
) -> bool:
    """Close all lanes of some shards but a given number of first ones. Idempotent, safe to kill.

    Args:
        buffer: the buffer.
        gateway: the gateway's id.
        heads: the heads of all open lanes, read just now.
        stay: by shard, how many lanes stay open.

    Returns:
        False if a lane was used, or the lanes were changed, in the meantime.
    """
    main = heads[MAIN_LANE]
    closing = [
        lane_name(shard, number)
        for shard, kept in stay.items()
        for number in range(kept, main.lanes.of(shard).open)
    ]
    seen = {lane: heads.get(lane) for lane in closing}
    closed = buffer.in_parallel(
        [
            partial(buffer.close_lane, gateway, lane, head, (head or main).commit + 1)
            for lane, head in seen.items()
        ]
    )
    lost = [lane for lane, is_done in zip(seen, closed, strict=True) if not is_done]
    now = buffer.lane_heads(gateway, lost) if lost else {}
    # A lane that is closed here and stays listed is opened again by the next writer that needs it.
    if not all(_was_closed(now.get(lane), seen[lane]) for lane in lost):
        return False
    last = {**seen, **now}.values()
    quiet = max((head.last_logged for head in last if head), default=0)
    return buffer.change_lanes(gateway, main, main.lanes.closing(stay, quiet))


def _was_closed(head: Head | None, seen: Head | None) -> bool:
    """Get whether another process closed a lane since its head was read: that advances it too."""
    return head is not None and head.is_closed and head.commit > (seen or NO_HEAD).commit


# --- the room in heads ----------------------------------------------------------------------------


READ_UNIT_BYTES: Final = 4_096
"""Bytes that one unit of a consistent read covers."""
WRITE_UNIT_BYTES: Final = 1_024
"""Bytes of an item that one write unit covers; a transaction takes two units for them."""
HEAD_BYTES: Final = 66
"""A head without entries and names: three stamps, two counts up to 10 GB, the version of the
configuration up to 9,999, and the names of attributes."""
_MAIN_HEAD_BYTES: Final = 11
"""What the main lane's head has in addition, without the epoch and the list of lanes: the name of
the epoch, and how far the log is trimmed; its key is shorter."""
_EDIT_BYTES: Final = 160
"""Approximate size of a small edit in a head, used to estimate the cost of its push."""
_FULL_HEAD_BYTES: Final = 5 * _EDIT_BYTES
"""Approximate size of the entries in a head whose room is not shared."""


def first_heads_bytes(gateway: str, layout: Layout) -> int:
    """Get the size of all shards' first heads without entries; the main lane's is not counted."""
    shards = layout.shards()
    names = sum(map(len, shards)) - len(DEFAULT_SHARD)
    return (len(shards) - 1) * (HEAD_BYTES + len(gateway)) + names


def with_table_placed(gateway: str, layout: Layout, table: str, shard: str) -> Layout:
    """Return the layout with one table moved, in which a pull still reads two units.

    Raises:
        ValidationFailed: it is no shard name, there would be too many shards, or their heads would
            exceed their read unit.
    """
    placed = layout.moved(table, shard)
    before, after = (first_heads_bytes(gateway, one) for one in (layout, placed))
    if after > max(before, READ_UNIT_BYTES):
        raise ValidationFailed(
            f"the heads of {len(placed.shards())} shards with such names take {after:,} bytes, and "
            f"a pull reads {READ_UNIT_BYTES:,} of them for one unit: give the shard a shorter "
            "name, or put the table into a shard that is there",
            field="shard",
        )
    return placed


def room_bytes(gateway: str, lane: str, layout: Layout, main: Head) -> int | None:
    """Return the size that entries may have in a lane's head, as they are stored.

    Args:
        gateway: the gateway's id.
        lane: the lane.
        layout: the gateway's.
        main: the main lane's head.

    Returns:
        None where there is one shard: then heads have their full room.
    """
    others = len(layout.shards()) - 1
    if not others:
        return None
    if lane != MAIN_LANE:
        return _shared_bytes(gateway, layout)
    bare = HEAD_BYTES + _MAIN_HEAD_BYTES + len(gateway) + len(lane) + len(main.epoch)
    return -(bare + len(main.lanes.to_text())) % WRITE_UNIT_BYTES


def pull_units(gateway: str, layout: Layout) -> int:
    """Return the most read units of a pull without news, while shards have one lane each."""
    size = first_heads_bytes(gateway, layout)
    return 1 + -(-size // READ_UNIT_BYTES)


def push_units(gateway: str, shard: str, layout: Layout) -> float:
    """Return the approximate write units of a push of one small edit: head, row and entry."""
    room = _FULL_HEAD_BYTES
    if shard != DEFAULT_SHARD:
        room = min(room, _shared_bytes(gateway, layout))
    return round(4 + 2 / (1 + room // _EDIT_BYTES), 1)


def _shared_bytes(gateway: str, layout: Layout) -> int:
    left = READ_UNIT_BYTES - first_heads_bytes(gateway, layout)
    return max(left, 0) // (len(layout.shards()) - 1)
