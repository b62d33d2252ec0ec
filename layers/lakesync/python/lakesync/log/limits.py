"""The bounds of a gateway, each with its unit, and the checks that refuse a push by the heads.

The reasons of the bounds are in ``docs/spec/limits.md``. While flushing lags behind, pushes are
refused and can be repeated later (backpressure); none is dropped. A push is also refused if its
client belongs to another gateway, or has not read the current epoch. Laws B12, B19:
``docs/spec/commit.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakesync.core.clock import stamp_ms
from lakesync.core.epoch import check_identity
from lakesync.core.layout import MAIN_LANE
from lakesync.core.messages import PAGE_BYTES_MAX
from lakesync.errors import Backpressure, Contention, CursorExpired
from lakesync.ports import NO_HEAD

if TYPE_CHECKING:
    from lakesync.log.row_cache import RowCache
    from lakesync.ports import Head

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
        CursorExpired: the client has to pull first.
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
