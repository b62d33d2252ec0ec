"""Checkpoints in an object store: rows in order, cut into chunks, written and read again.

A table's rows are read in the order of their ids, merging the parts over which they are spread. So
a client writes its own table from one end to the other. In the buffer's order it would pass over
the whole table once for each part, and touch every page of its file as often. Never more than one
chunk is in memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial
from heapq import merge
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from lakesync.checkpoint import manifest as names
from lakesync.checkpoint.manifest import (
    FRAME_HEAD_BYTES,
    Chunk,
    Manifest,
    Part,
    Tombstones,
    frame,
    is_checkpoint_id,
    manifest_from_json,
)
from lakesync.errors import AdapterFailed, CursorExpired, NotFound
from lakesync.ports import ROW_PARTS
from lakesync.wire.records import RowRecords
from lakesync.wire.row_state import decode_row_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from lakesync.checkpoint.manifest import Place
    from lakesync.core.clock import Stamp
    from lakesync.ports import Buffer, ObjectStore, StoredRow

# --- rows in the order of their ids ---------------------------------------------------------------


_SLICE_ROWS_MAX: Final = 5_000
"""Rows that are read of a part at once, at most 1 MB; so much of each part is in memory."""


class OutOfTime(Exception):
    """There is no time to read on."""


def rows_in_order(
    buffer: Buffer, gateway: str, table: str, after: str, has_time: Callable[[], bool]
) -> Iterator[tuple[str, StoredRow]]:
    """Return every row behind an id that exists throughout the read, once.

    Raises:
        OutOfTime: there was no time for another read.
    """
    rows = partial(_of_part, buffer, gateway, table, after, has_time)
    return merge(*map(rows, range(ROW_PARTS)), key=itemgetter(0))


def _of_part(
    buffer: Buffer, gateway: str, table: str, after: str, has_time: Callable[[], bool], part: int
) -> Iterator[tuple[str, StoredRow]]:
    while True:
        if not has_time():
            raise OutOfTime
        page = buffer.scan_part(gateway, table, part, after, _SLICE_ROWS_MAX)
        yield from page.rows
        after = page.place
        if not after:
            return


# --- chunks ---------------------------------------------------------------------------------------


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


# --- the store ------------------------------------------------------------------------------------


_MANIFESTS_REMEMBERED_MAX: Final = 8
_OBJECT: Final = "application/octet-stream"
_JSON: Final = "application/json"
_GONE: Final = "the checkpoint is no longer kept; begin again"


class Checkpoints:
    """The checkpoints of all gateways in one store. One for each process."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._manifest = lru_cache(_MANIFESTS_REMEMBERED_MAX)(self._read)

    def ids(self, gateway: str) -> list[str]:
        """Return the existing checkpoints, oldest first; one request for each thousand."""
        prefix = names.manifests_prefix(gateway)
        stored = [key[len(prefix) :].removesuffix(".json")
                 for key in self._objects.list_objects(prefix)]  # fmt: skip
        return sorted(name for name in stored if is_checkpoint_id(name))

    def latest(self, gateway: str, epoch: str, since_min: Stamp) -> Manifest | None:
        """Return the latest checkpoint of an epoch to which the log still reaches, if any."""
        for checkpoint in reversed(self.ids(gateway)):
            if names.since_of(checkpoint) < since_min:
                return None
            try:
                manifest = self._manifest(gateway, checkpoint)
            except NotFound:
                continue  # removed after it was listed
            if manifest.epoch == epoch:
                return manifest
        return None

    def manifest(self, gateway: str, checkpoint: str) -> Manifest:
        """Return a checkpoint's manifest; immutable, so it is read once.

        Raises:
            CursorExpired: it no longer exists.
        """
        try:
            return self._manifest(gateway, checkpoint)
        except (NotFound, AdapterFailed):
            self._check_there(gateway, checkpoint)
            raise

    def part(self, gateway: str, checkpoint: str, at: Place) -> bytes:
        """Return a part's run of deltas; one request.

        Raises:
            CursorExpired: the checkpoint no longer exists.
            AdapterFailed: the store cannot be reached, or its content differs from the manifest.
        """
        key, offset, part = at
        try:
            framed = self._objects.get_range(key, offset, part.size)
        except (NotFound, AdapterFailed):
            self._check_there(gateway, checkpoint)
            raise
        head, run = framed[: names.FRAME_HEAD_BYTES], framed[names.FRAME_HEAD_BYTES :]
        if len(framed) != part.size or int.from_bytes(head, "big") != len(run):
            raise AdapterFailed(f"{key} does not match its manifest; build a new checkpoint")
        return run

    def _read(self, gateway: str, checkpoint: str) -> Manifest:
        return manifest_from_json(self._objects.get_object(names.manifest_key(gateway, checkpoint)))

    def _check_there(self, gateway: str, checkpoint: str) -> None:
        """Distinguish a checkpoint that was removed from a store that does not answer.

        A store may answer "forbidden" for an object that does not exist.
        """
        if checkpoint not in self.ids(gateway):
            raise CursorExpired(_GONE, field="snapshot")


def put_chunk(
    objects: ObjectStore, checkpoint: tuple[str, str], table: str, number: int, cut: Cut
) -> Chunk:
    """Write a chunk under a name made from its content; idempotent.

    Args:
        objects: the store.
        checkpoint: the gateway, and the checkpoint's id.
        table: the table of the rows.
        number: the chunk's place among those of the table.
        cut: the rows.
    """
    sha256 = names.digest(cut.body)
    key = names.chunk_key(*checkpoint, table, number, sha256)
    objects.put_object(key, cut.body, _OBJECT)
    return Chunk(key, len(cut.body), sha256, cut.parts)


def put_manifest(objects: ObjectStore, manifest: Manifest) -> None:
    """Write a manifest, once everything that it names exists: from here the checkpoint exists."""
    key = names.manifest_key(manifest.gateway, manifest.id)
    objects.put_object(key, names.manifest_to_json(manifest), _JSON)
