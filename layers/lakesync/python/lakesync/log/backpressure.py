"""Backpressure: pushes are refused for now, never dropped, while flushing is behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakesync.core.clock import stamp_ms
from lakesync.errors import Backpressure

if TYPE_CHECKING:
    from lakesync.log.limits import Limits
    from lakesync.ports import Head


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
