"""Checks of heads before a push is merged: backpressure, and the epoch of the buffer.

While flushing lags behind, pushes are refused and can be repeated later; none is dropped. A push is
also refused if its client belongs to another gateway, or has not read the current epoch. Laws B12,
B19: ``docs/spec/commit.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakesync.core.clock import stamp_ms
from lakesync.core.epoch import check_identity
from lakesync.core.layout import MAIN_LANE
from lakesync.errors import Backpressure, Contention, CursorExpired
from lakesync.ports import NO_HEAD

if TYPE_CHECKING:
    from lakesync.log.limits import Limits
    from lakesync.log.row_cache import RowCache
    from lakesync.ports import Head


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
