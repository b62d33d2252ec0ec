"""The conditions of a commit, and the limits of a store, as DynamoDB has them: for memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lakesync.buffer import pack
from lakesync.errors import InternalError
from lakesync.ports import NO_HEAD, HeadMoved, StaleRead

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lakesync.core.clock import Stamp
    from lakesync.ports import Commit, Head, MarkKey, RowKey, StoredMark, StoredRow

ITEMS_MAX: Final = 100
"""Items of one commit, as DynamoDB has it: here too, so that tests in memory meet it."""
ITEM_BYTES_MAX: Final = 400 * 1024
"""One item, as DynamoDB has it."""
COMMIT_BYTES_MAX: Final = 4 * 1024 * 1024
"""All items of one commit, as DynamoDB has it."""

PAGE_BYTES_MAX: Final = 1024 * 1024
"""Entries or rows that one read gives, inflated: beyond, it ends early."""


def moved(head: Head | None, seen: Head | None) -> bool:
    """Tell whether a head is not as it was seen."""
    return (head and head.commit) != (seen and seen.commit)


def check_heads(heads: Mapping[str, Head], commit: Commit) -> None:
    """Refuse a commit by heads that moved or carry another configuration.

    Raises:
        HeadMoved: with the heads as they are.
    """
    others: dict[str, Head] = {}
    for shard, part in commit.shards.items():
        head = heads.get(shard)
        reconfigured = head is not None and head.config_version != commit.config_version
        if reconfigured or moved(head, part.seen):
            others[shard] = head or NO_HEAD
    if others:
        raise HeadMoved(others)


def check_states(
    rows: Mapping[RowKey, StoredRow], marks: Mapping[MarkKey, StoredMark], commit: Commit
) -> None:
    """Refuse a commit by rows or marks that are not as they were seen.

    Raises:
        StaleRead: some are not.
    """
    stale = [key for key, row in commit.rows.items() if _commit_of(rows.get(key)) != row.seen]
    stale += [
        (shard, client)
        for shard, part in commit.shards.items()
        for client, put in part.marks.items()
        if _commit_of(marks.get((shard, client))) != put.seen
    ]
    if stale:
        raise StaleRead(f"{len(stale)} rows or marks are not as they were seen")


def _commit_of(stored: StoredRow | StoredMark | None) -> Stamp:
    return stored.commit if stored else 0


def check_size(commit: Commit) -> None:
    """Refuse what DynamoDB would refuse: the gateway must have cut it before.

    Raises:
        InternalError: it is too large.
    """
    sizes = [len(pack.deflate(part.entry.records)) for part in commit.shards.values()]
    sizes += [len(row.state) for row in commit.rows.values()]
    sizes += [
        len(pack.pack_mark(put.mark))
        for part in commit.shards.values()
        for put in part.marks.values()
    ]
    items = len(sizes) + len(commit.shards)
    if items > ITEMS_MAX or max(sizes) > ITEM_BYTES_MAX or sum(sizes) > COMMIT_BYTES_MAX:
        raise InternalError(f"a commit of {items} items, {sum(sizes)} bytes does not fit")


def heads_at_most(heads: Mapping[str, Head], shards: Sequence[str], to: Stamp) -> dict[str, Head]:
    """Give the heads of shards, all of which must stand at ``to`` at the most.

    Raises:
        HeadMoved: one stands above.
    """
    current = {shard: heads.get(shard, NO_HEAD) for shard in shards}
    above = {shard: head for shard, head in current.items() if head.commit > to}
    if above:
        raise HeadMoved(above)
    return current


def within(
    keys: Sequence[RowKey], rows: Mapping[RowKey, StoredRow], bytes_max: int
) -> tuple[dict[RowKey, StoredRow], list[RowKey]]:
    """Give the rows of keys in their order until they hold so many bytes, and the keys behind."""
    kept: dict[RowKey, StoredRow] = {}
    size = 0
    for number, key in enumerate(keys):
        if number and size >= bytes_max:
            return kept, list(keys[number:])
        if key in rows:
            kept[key] = rows[key]
            size += len(rows[key].state)
    return kept, []
