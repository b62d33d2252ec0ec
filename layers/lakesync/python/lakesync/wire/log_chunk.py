"""The stored form of several log entries of one lane in one item."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final

from lakesync.core.stored import WRITES, check_format
from lakesync.ports import LogEntry
from lakesync.wire import lakesync_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Sequence

_LEVEL: Final = 1  # a third of the bytes for 0.7 us a delta; higher levels save little more


def deflate(data: bytes) -> bytes:
    """Return the stored form of a run: a quarter to a third of its size."""
    return zlib.compress(data, _LEVEL, -zlib.MAX_WBITS)


def inflate(data: bytes) -> bytes:
    """Return what `deflate` was given."""
    return zlib.decompress(data, -zlib.MAX_WBITS)


def encode_chunk(entries: Sequence[LogEntry]) -> bytes:
    """Return the stored form of consecutive entries; at least one."""
    first = entries[0]
    chunk = pb.LogChunk(
        previous=first.previous,
        logged_bytes=first.logged_bytes - len(first.records),
        format=WRITES,
    )
    for entry in entries:
        chunk.entries.add(
            stamp=entry.stamp,
            records=entry.records,
            count=entry.count,
            tables=sorted(entry.tables),
            rule_rows=entry.rule_rows,
        )
    return deflate(chunk.SerializeToString())


def decode_chunk(data: bytes) -> tuple[LogEntry, ...]:
    """Read what `encode_chunk` wrote, in any release.

    Raises:
        UpgradeRequired: only a later release can read it.
    """
    chunk = pb.LogChunk.FromString(inflate(data))
    check_format(chunk.format, "a log entry")
    entries = []
    previous, logged_bytes = chunk.previous, chunk.logged_bytes
    for entry in chunk.entries:
        logged_bytes += len(entry.records)
        entries.append(
            LogEntry(
                entry.stamp,
                entry.records,
                entry.count,
                frozenset(entry.tables),
                logged_bytes,
                previous,
                entry.rule_rows,
            )
        )
        previous = entry.stamp
    return tuple(entries)
