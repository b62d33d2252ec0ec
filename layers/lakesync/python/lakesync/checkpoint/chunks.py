"""Writes rows into chunks: never more than one chunk in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lakesync.checkpoint.manifest import FRAME_HEAD_BYTES, Part, Tombstones, frame
from lakesync.wire.row_records import RowRecords
from lakesync.wire.row_state import decode_row_state

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lakesync.ports import StoredRow

CHUNK_BYTES_MAX: Final = 16 * 1024 * 1024
"""One object: a builder holds it in memory, unless a single row is larger."""
PART_BYTES_MAX: Final = 1_000_000
"""One part, unless a single row is larger. As JSON it is two and a half times as large and still
fits a Lambda response, and a reader holds no more than one."""
PART_DELTAS_MAX: Final = 5_000
"""Deltas of one part: as many as our clients request at once, so that a part is sent as it is
stored."""
_TOMBSTONE: Final = 0x11
"""The first byte of the state of a row of which only the deletion is left."""
_TOMBSTONE_BYTES: Final = 9


@dataclass(frozen=True, slots=True)
class Cut:
    """A chunk that is full."""

    body: bytes
    parts: tuple[Part, ...]
    last: str
    """The id of its last row."""


class ChunkWriter:
    """Cuts the rows of one table, in the order in which they arrive, into chunks.

    Args:
        table: the table.
        bytes_max: of one chunk.
        tombstones: those that were counted before.
    """

    def __init__(self, table: str, bytes_max: int, tombstones: Tombstones) -> None:
        self._records = RowRecords(table)
        self._bytes_max = bytes_max
        self.tombstones = tombstones
        self._last = ""
        self._clear()

    def _clear(self) -> None:
        self._frames: list[bytes] = []
        self._parts: list[Part] = []
        self._size = 0
        self._clear_part()

    def _clear_part(self) -> None:
        self._runs: list[bytes] = []
        self._part_size = FRAME_HEAD_BYTES
        self._deltas = 0

    def add(self, rows: Iterable[tuple[str, StoredRow]]) -> Iterator[Cut]:
        """Add rows; before a row that does not fit, give the chunk that is full."""
        encode = self._records.encode
        for row_id, (state, _) in rows:
            run, deltas = encode(row_id, state)
            size = len(run)
            is_full = self._part_size + size > PART_BYTES_MAX
            if (is_full or self._deltas + deltas > PART_DELTAS_MAX) and self._runs:
                self._close_part()
            # A part that begins here has its own header.
            if self._size + self._part_size + size > self._bytes_max:
                yield from self.rest()
            self._runs.append(run)
            self._part_size += size
            self._deltas += deltas
            self._last = row_id
            if len(state) == _TOMBSTONE_BYTES and state[0] == _TOMBSTONE:
                deleted = decode_row_state(state).deleted
                self.tombstones = self.tombstones.and_one(deleted)

    def rest(self) -> Iterator[Cut]:
        """Yield the rows added since the last chunk, if any."""
        if self._runs:
            self._close_part()
        if self._parts:
            last = Cut(b"".join(self._frames), tuple(self._parts), self._last)
            self._clear()
            yield last

    def _close_part(self) -> None:
        self._parts.append(Part(self._part_size, self._deltas, len(self._runs)))
        self._frames.append(frame(b"".join(self._runs)))
        self._size += self._part_size
        self._clear_part()
