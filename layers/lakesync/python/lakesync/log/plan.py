"""Cutting a push into commits: pure, before anything is read or written.

Edits keep their order inside a shard; events, the deltas of append tables, are ordered by their
stamps. A push that fits into one commit is not cut, and so is atomic even across shards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lakesync.core.clock import Stamp
    from lakesync.core.config import GatewayConfig
    from lakesync.core.delta import Delta
    from lakesync.log.limits import Limits
    from lakesync.ports import MarkKey, RowKey

_FRAME_BYTES: int = 160
"""An upper bound of a delta's fields besides names and values: id, stamp, tags and lengths."""
_COLUMN_FRAME_BYTES: int = 12
_CHARACTER_BYTES: int = 4

Admitted: TypeAlias = "tuple[int, Delta]"
"""A delta with its place in the push."""


class Part(NamedTuple):
    """Deltas that become visible at one stamp, by shard."""

    shards: dict[str, list[Admitted]]
    marks: frozenset[MarkKey] = frozenset()
    """The append marks that its events touch."""
    since: Stamp = 0
    """The oldest stamp of all events of the push; 0 if it has none."""
    epoch: str | None = None
    """The epoch that its client knows; None if the push does not name one."""
    revives: bool = False
    """`lakesync.core.messages.Push.revives`."""

    def row_keys(self, appends: Callable[[str], bool]) -> list[RowKey]:
        """Return the rows that its edits touch; events have none."""
        deltas = [delta for admitted in self.shards.values() for _, delta in admitted]
        return [(delta.table, delta.row_id) for delta in deltas if not appends(delta.table)]


def cut(admitted: Sequence[Admitted], config: GatewayConfig, limits: Limits) -> list[Part]:
    """Cut a push into commits that fit, in order; one commit if all of it fits."""
    events = [item for item in admitted if config.appends(item[1].table)]
    since: Stamp = 0
    if events:
        events.sort(key=lambda item: item[1].hlc)
        since = events[0][1].hlc
        admitted = [item for item in admitted if not config.appends(item[1].table)] + events
    return [
        Part(part, _marks(part, config) if since else frozenset(), since)
        for part in _fitting(admitted, config, limits)
    ]


def _marks(shards: dict[str, list[Admitted]], config: GatewayConfig) -> frozenset[MarkKey]:
    return frozenset(
        (shard, delta.client_id)
        for shard, admitted in shards.items()
        for _, delta in admitted
        if config.appends(delta.table)
    )


def _fitting(
    admitted: Sequence[Admitted], config: GatewayConfig, limits: Limits
) -> Iterator[dict[str, list[Admitted]]]:
    shards: dict[str, list[Admitted]] = {}
    sizes: dict[str, int] = {}
    things: set[tuple[str, str, str]] = set()  # distinct rows and marks: one item each
    total = 0
    shard_of, appends = config.layout.shard_of, config.appends
    for item in admitted:
        delta = item[1]
        table = delta.table
        shard = shard_of(table)
        thing = (shard, "", delta.client_id) if appends(table) else (shard, table, delta.row_id)
        size = delta_bytes(delta)
        items = 2 * (len(sizes) + (shard not in sizes)) + len(things) + (thing not in things)
        full = (
            items > limits.commit_items_max
            or sizes.get(shard, 0) + size > limits.entry_bytes_max
            or total + size > limits.commit_entries_bytes_max
        )
        if full and shards:
            yield shards
            shards, sizes, things, total = {}, {}, set(), 0
        shards.setdefault(shard, []).append(item)
        sizes[shard] = sizes.get(shard, 0) + size
        total += size
        things.add(thing)
    if shards:
        yield shards


def delta_bytes(delta: Delta) -> int:
    """Return a cheap upper bound of a delta's encoded size."""
    _, table, row_id, client_id, _, columns, _ = delta
    size = _FRAME_BYTES + _CHARACTER_BYTES * (len(row_id) + len(client_id)) + len(table)
    for name, value in columns:
        size += len(name) + len(value) + _COLUMN_FRAME_BYTES
    return size
