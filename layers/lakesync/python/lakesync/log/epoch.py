"""Whether a client has read the buffer that it pushes to. Law B12: ``docs/spec/commit.md``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakesync.errors import CursorExpired
from lakesync.ports import StaleRead

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lakesync.log.row_cache import WarmShard
    from lakesync.ports import Buffer


def check_epoch(
    buffer: Buffer, gateway: str, shards: Mapping[str, WarmShard], epoch: str | None
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
