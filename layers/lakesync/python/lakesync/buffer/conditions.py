"""The conditions of a commit and DynamoDB's limits, for the buffer in memory."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from lakesync.buffer import pack
from lakesync.core.layout import MAIN_LANE
from lakesync.core.plural import plural
from lakesync.errors import InternalError
from lakesync.ports import NO_HEAD, HeadMoved, StaleRead
from lakesync.wire.log_chunk import encode_chunk

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lakesync.core.clock import Stamp
    from lakesync.ports import Commit, Head, MarkKey, RowKey, StoredMark, StoredRow

ITEMS_MAX: Final = 100
"""Items of one commit: DynamoDB's limit, applied in memory too so that tests notice it."""
ITEM_BYTES_MAX: Final = 400 * 1024
"""Size of one item: DynamoDB's limit."""
COMMIT_BYTES_MAX: Final = 4 * 1024 * 1024
"""Size of all items of one commit: DynamoDB's limit."""

PAGE_BYTES_MAX: Final = 1024 * 1024
"""Entries or rows that one read gives, inflated; beyond this it ends early."""


def moved(head: Head | None, seen: Head | None) -> bool:
    """Return whether a head is not as it was seen."""
    return (head and head.commit) != (seen and seen.commit)


def is_used(head: Head) -> bool:
    """Return whether a head contains entries, or shows that any wait."""
    return bool(head.recent or head.logged_bytes or head.oldest_unflushed)


def emptied(head: Head) -> Head:
    """Return the head of a deleted gateway: it makes late commits fail.

    The stamp of its last entry stays as well, so that a reader of the log notices that the entry is
    missing.
    """
    return replace(head, recent=(), logged_bytes=0, flushed_bytes=0, oldest_unflushed=0)


def check_heads(heads: Mapping[str, Head], commit: Commit) -> None:
    """Refuse a commit whose heads moved.

    Raises:
        HeadMoved: with the heads as they are.
    """
    others = {
        lane: heads.get(lane, NO_HEAD)
        for lane, part in commit.lanes.items()
        if moved(heads.get(lane), part.seen)
    }
    if others:
        raise HeadMoved(others)


def check_states(
    rows: Mapping[RowKey, StoredRow], marks: Mapping[MarkKey, StoredMark], commit: Commit
) -> None:
    """Refuse a commit whose rows or marks are not as they were seen.

    Raises:
        StaleRead: some are not.
    """
    stale = {
        key: rows.get(key)
        for key, row in commit.rows.items()
        if _commit_of(rows.get(key)) != row.seen
    }
    marks_stale = sum(_commit_of(marks.get(key)) != put.seen for key, put in commit.marks.items())
    if stale or marks_stale:
        counted = f"{plural(len(stale), 'row')} and {plural(marks_stale, 'mark')}"
        raise StaleRead(f"not as seen: {counted}", stale)


def check_lanes(main: Head | None, seen: Head | None, to: Stamp) -> None:
    """Refuse a change of the main lane's head, if its lanes are not as seen, or it is above.

    Raises:
        HeadMoved: with the head as it is.
    """
    now, before = main or NO_HEAD, seen or NO_HEAD
    if now.lanes != before.lanes or (main is None) != (seen is None) or (to and now.commit >= to):
        raise HeadMoved({MAIN_LANE: now})


def _commit_of(stored: StoredRow | StoredMark | None) -> Stamp:
    return stored.commit if stored else 0


def check_size(commit: Commit) -> None:
    """Refuse what DynamoDB would refuse: the gateway must have cut it before.

    Raises:
        InternalError: it is too large.
    """
    sizes = [len(encode_chunk(part.chunk)) for part in commit.lanes.values() if part.chunk]
    sizes += [len(row.state) for row in commit.rows.values()]
    sizes += [len(pack.pack_mark(put.mark)) for put in commit.marks.values()]
    items = len(sizes) + len(commit.lanes)
    if items > ITEMS_MAX or max(sizes, default=0) > ITEM_BYTES_MAX or sum(sizes) > COMMIT_BYTES_MAX:
        raise InternalError(f"a commit of {items} items, {sum(sizes)} bytes does not fit")


def within(
    keys: Sequence[RowKey], rows: Mapping[RowKey, StoredRow], bytes_max: int
) -> tuple[dict[RowKey, StoredRow], list[RowKey]]:
    """Return the rows of keys in order, up to so many bytes, and the keys that are left."""
    kept: dict[RowKey, StoredRow] = {}
    size = 0
    for number, key in enumerate(keys):
        if number and size >= bytes_max:
            return kept, list(keys[number:])
        if key in rows:
            kept[key] = rows[key]
            size += len(rows[key].state)
    return kept, []
