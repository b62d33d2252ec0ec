"""What heads tell a push before it is merged: backpressure, and the epoch of the buffer.

Pushes are refused for now, never dropped, while flushing is behind; and as long as their client has
not read the buffer that they go to. Law B12: ``docs/spec/commit.md``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lakesync.core.clock import stamp_ms
from lakesync.errors import Backpressure, CursorExpired
from lakesync.ports import NO_HEAD, StaleRead

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lakesync.log.limits import Limits
    from lakesync.log.row_cache import CachedShard
    from lakesync.ports import CommitLog, Head


def unflushed_bytes(head: Head) -> int:
    """Give how much of a shard's log waits to be flushed."""
    return head.logged_bytes - head.flushed_bytes


def check_backpressure(head: Head, now_ms: int, limits: Limits) -> None:
    """Refuse a push while too much, or too old, data waits to be flushed.

    Raises:
        Backpressure: a bound is passed; the message says which.
    """
    waiting = unflushed_bytes(head)
    if waiting > limits.backpressure_bytes_max:
        raise Backpressure(
            f"{waiting} bytes wait to be flushed, more than {limits.backpressure_bytes_max}; push "
            "again later, and check the flush alarms"
        )
    age_ms = now_ms - stamp_ms(head.oldest_unflushed)
    if head.oldest_unflushed and age_ms > limits.backpressure_age_ms_max:
        raise Backpressure(
            f"data has waited {age_ms // 1000} s to be flushed, longer than "
            f"{limits.backpressure_age_ms_max // 1000} s; push again later, and check the flush "
            "alarms"
        )


def check_room(
    buffer: CommitLog, gateway: str, name: str, shard: CachedShard, now_ms: int, limits: Limits
) -> None:
    """Refuse a push to a shard while too much waits there, also by a head as it is now.

    Raises:
        Backpressure: as `check_backpressure`.
    """
    if shard.head is None:
        return
    try:
        check_backpressure(shard.head, now_ms, limits)
    except Backpressure:
        # A flush moves no head, so what is remembered of it may be old: look again.
        fresh = buffer.heads(gateway, [name]).get(name, NO_HEAD)
        shard.head = replace(
            shard.head, flushed_bytes=fresh.flushed_bytes, oldest_unflushed=fresh.oldest_unflushed
        )
        check_backpressure(shard.head, now_ms, limits)


def check_epoch(
    buffer: CommitLog, gateway: str, shards: Mapping[str, CachedShard], epoch: str | None
) -> None:
    """Refuse the push of a client that has read another epoch; one that names none may push.

    A restored buffer may lack edits of the client that came before those of the push. It brings
    them back once it has noticed, and then in the order in which they were made.

    Raises:
        CursorExpired: the client has to pull first.
        StaleRead: it is right, and what is remembered of the heads is older.
    """
    others = [
        name for name, shard in shards.items()
        if epoch is not None and shard.head is not None and shard.head.epoch != epoch
    ]  # fmt: skip
    if others:
        fresh = buffer.heads(gateway, others)
        if any(head.epoch != epoch for head in fresh.values()):
            raise CursorExpired("the buffer was restored from a backup; pull, then push again")
        raise StaleRead("the epoch began after what is remembered")
