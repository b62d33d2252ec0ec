"""Log entries as stored: several of one lane in one item, with the columns that rules read.

The columns that sync rules read, before and after each delta, are often equal in the rows of one
entry, so each distinct row is stored once. A reader then decodes few rows, and decides each pair of
them once.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final, NamedTuple

from lakesync.core.config import WRITES, check_format
from lakesync.ports import LogEntry
from lakesync.wire import lakesync_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lakesync.core.delta import CanonicalJson

# --- entries in one item --------------------------------------------------------------------------


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


# --- the columns that sync rules read -------------------------------------------------------------


_NUL: Final = b"\0"


class RuleRows(NamedTuple):
    """The rows of one entry, with each delta's places among them: counted from 1, 0 for no row."""

    tables: Sequence[tuple[str, tuple[str, ...]]]
    """Each table, and the columns of it that rules read when the entry was made."""
    rows: Sequence[bytes]
    """Each row's values in the order of its table's columns; see `values_of`."""
    of: Sequence[int]
    """Each row's table, by its place."""
    before: Sequence[int]
    after: Sequence[int]
    whole: frozenset[int]
    """Places of deltas that are the whole of a new row."""


class RuleRowsWriter:
    """Collects the rows of an entry, delta by delta.

    Args:
        columns: gives the columns of a table that rules read, in a fixed order.
    """

    def __init__(self, columns: Callable[[str], Sequence[str]]) -> None:
        self._columns = columns
        self._tables: dict[str, tuple[int, Sequence[str]]] = {}
        self._rows: dict[tuple[int, bytes], int] = {}
        self._before: list[int] = []
        self._after: list[int] = []
        self._whole: list[int] = []

    def add(
        self,
        table: str,
        before: Mapping[str, CanonicalJson] | None,
        after: Mapping[str, CanonicalJson] | None,
        *,
        alone: bool,
    ) -> None:
        """Add the row of the entry's next delta; ``alone`` if the delta is the whole row."""
        if alone and before is None:
            self._whole.append(len(self._before))
        self._before.append(self._index(table, before))
        self._after.append(self._index(table, after))

    def _index(self, table: str, row: Mapping[str, CanonicalJson] | None) -> int:
        if row is None:
            return 0
        numbered = self._tables.get(table)
        if numbered is None:
            numbered = self._tables[table] = (len(self._tables), self._columns(table))
        number, columns = numbered
        key = (number, _NUL.join([row.get(name, b"") for name in columns]))
        return self._rows.setdefault(key, len(self._rows) + 1)

    def encoded(self) -> bytes:
        """Return the bytes."""
        message = pb.RuleRows(
            rows=[row for _, row in self._rows],
            of=[number for number, _ in self._rows],
            before=self._before,
            after=self._after,
            whole=self._whole,
        )
        for name, (_, columns) in self._tables.items():
            message.tables.add(name=name, columns=columns)
        return message.SerializeToString()


def decode_rule_rows(encoded: bytes) -> RuleRows:
    """Return the rows that a writer encoded."""
    message = pb.RuleRows.FromString(encoded)
    return RuleRows(
        [(table.name, tuple(table.columns)) for table in message.tables],
        list(message.rows),
        list(message.of),
        list(message.before),
        list(message.after),
        frozenset(message.whole),
    )


def values_of(row: bytes) -> list[CanonicalJson | None]:
    """Return the values of a row; None for a column that it does not have."""
    return [value or None for value in row.split(_NUL)]


def delta_slices(run: bytes) -> Sequence[bytes]:
    """Return the run of each delta of a run, cut and not decoded; joined they are the run.

    The run is one that `lakesync.wire.records.encode_records` made.
    """
    slices = []
    start = 0
    while start < len(run):
        at = start + 1  # past the tag, which is that of ``deltas``
        size = shift = 0
        while run[at] & 0x80:
            size |= (run[at] & 0x7F) << shift
            shift += 7
            at += 1
        end = at + 1 + (size | run[at] << shift)
        slices.append(run[start:end])
        start = end
    return slices
