"""Checkpoints in an object store: their content and names, and how they are written and read.

A checkpoint is a set of *chunks*, each an object of one table's rows, made of *parts*. A part is a
frame: four bytes of length, big-endian, and a ``SyncResponse`` of whole rows as deltas that merge
to them, tombstones included. So a part is a ready page of a pull, and a chunk is the stream that
``GET /sync/{gateway}/checkpoint`` returns.

====================================================  ==============================================
object                                                written
====================================================  ==============================================
``checkpoints/<gateway>/chunks/<id>/<table>-…``       named by its place and its content, so every
                                                      writer writes the same
``checkpoints/<gateway>/progress``                    after each chunk: where a build continues
``checkpoints/<gateway>/manifests/<id>.json``         last: from here the checkpoint exists
====================================================  ==============================================

Ids sort as their stamps do. Laws R1-R3: ``docs/spec/retention.md``.

A table's rows are read in the order of their ids, merging the parts over which they are spread. So
a client writes its own table from one end to the other. In the buffer's order it would pass over
the whole table once for each part, and touch every page of its file as often. Never more than one
chunk is in memory.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from functools import lru_cache, partial
from heapq import merge
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lakesync.core.config import WRITES, check_format
from lakesync.errors import AdapterFailed, CursorExpired, NotFound
from lakesync.ports import ROW_PARTS
from lakesync.wire.records import RowRecords, decode_row_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from lakesync.core.clock import Stamp
    from lakesync.ports import Buffer, ObjectStore, StoredRow

# --- content and names ----------------------------------------------------------------------------


FRAME_HEAD_BYTES: Final = 4
_ID = re.compile(r"[0-9a-f]{16}-[0-9a-f]{16}")
_DIGEST_LENGTH: Final = 16


class Part(NamedTuple):
    size: int
    """Its size, the length field included."""
    deltas: int
    rows: int


@dataclass(frozen=True, slots=True)
class Chunk:
    key: str
    size: int
    sha256: str
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Tombstones:
    """The rows of a table of which only the deletion is left."""

    count: int = 0
    oldest: Stamp = 0
    """The stamp of the oldest deletion; 0 if there is none."""

    def and_one(self, deleted: Stamp) -> Tombstones:
        return Tombstones(self.count + 1, min(self.oldest or deleted, deleted))


class Place(NamedTuple):
    key: str
    offset: int
    part: Part


@dataclass(frozen=True, slots=True)
class TableChunks:
    """All rows of one table."""

    chunks: tuple[Chunk, ...] = ()
    tombstones: Tombstones = Tombstones()

    @property
    def rows(self) -> int:
        return sum(part.rows for chunk in self.chunks for part in chunk.parts)

    @property
    def parts(self) -> int:
        return sum(len(chunk.parts) for chunk in self.chunks)

    def place(self, number: int) -> Place | None:
        """Get the location of a part, counted from 0 over all chunks; None if there are fewer."""
        for chunk in self.chunks:
            if number < len(chunk.parts):
                offset = sum(part.size for part in chunk.parts[:number])
                return Place(chunk.key, offset, chunk.parts[number])
            number -= len(chunk.parts)
        return None


@dataclass(frozen=True, slots=True)
class Manifest:
    id: str
    gateway: str
    epoch: str
    since: Stamp
    """Where the log continues: everything up to here is included."""
    tables: Mapping[str, TableChunks]
    """By name, in the order of the names; none without rows."""

    def after(self, table: str) -> str:
        """Return the first table behind one; empty if that is the last."""
        return next((name for name in sorted(self.tables) if name > table), "")


def checkpoint_id(since: Stamp, began_ms: int) -> str:
    """Get the id of a checkpoint from the stamp where its log continues and its build's begin."""
    return f"{since:016x}-{began_ms:016x}"


def is_checkpoint_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None


def since_of(checkpoint: str) -> Stamp:
    """Return the stamp from which the log continues behind a checkpoint, from its id."""
    return int(checkpoint[:16], 16)


def began_ms_of(checkpoint: str) -> int:
    return int(checkpoint[17:], 16)


def manifests_prefix(gateway: str) -> str:
    return f"checkpoints/{gateway}/manifests/"


def manifest_key(gateway: str, checkpoint: str) -> str:
    return f"{manifests_prefix(gateway)}{checkpoint}.json"


def progress_key(gateway: str) -> str:
    return f"checkpoints/{gateway}/progress"


def chunks_prefix(gateway: str, checkpoint: str = "") -> str:
    prefix = f"checkpoints/{gateway}/chunks/"
    return f"{prefix}{checkpoint}/" if checkpoint else prefix


def chunk_key(gateway: str, checkpoint: str, table: str, number: int, sha256: str) -> str:
    name = f"{table}-{number:05d}-{sha256[:_DIGEST_LENGTH]}.bin"
    return chunks_prefix(gateway, checkpoint) + name


def frame(run: bytes) -> bytes:
    return len(run).to_bytes(FRAME_HEAD_BYTES, "big") + run


def digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


# --- as JSON --------------------------------------------------------------------------------------


def manifest_to_json(manifest: Manifest) -> bytes:
    """Write a manifest; the same one gives the same bytes."""
    body = {
        "version": WRITES,
        "id": manifest.id,
        "gateway": manifest.gateway,
        "epoch": manifest.epoch,
        "since": str(manifest.since),
        "tables": tables_to_json(manifest.tables),
    }
    return json.dumps(body, separators=(",", ":")).encode()


def manifest_from_json(body: bytes) -> Manifest:
    """Read what `manifest_to_json` wrote, in any release.

    Raises:
        UpgradeRequired: only a later release can read it.
    """
    document = json.loads(body)
    check_format(document["version"], "a checkpoint")
    tables = tables_from_json(document["tables"])
    return Manifest(
        document["id"], document["gateway"], document["epoch"], int(document["since"]), tables
    )


def tables_to_json(tables: Mapping[str, TableChunks]) -> dict[str, Any]:
    return {
        name: {
            "rows": table.rows,
            "tombstones": table.tombstones.count,
            "oldestTombstone": str(table.tombstones.oldest),
            "chunks": [
                {
                    "key": chunk.key,
                    "size": chunk.size,
                    "sha256": chunk.sha256,
                    "parts": [list(part) for part in chunk.parts],
                }
                for chunk in table.chunks
            ],
        }
        for name, table in sorted(tables.items())
    }


def tables_from_json(tables: Mapping[str, Any]) -> dict[str, TableChunks]:
    """Read what `tables_to_json` wrote."""
    return {
        name: TableChunks(
            tuple(_chunk(chunk) for chunk in table["chunks"]),
            Tombstones(table["tombstones"], int(table["oldestTombstone"])),
        )
        for name, table in tables.items()
    }


def _chunk(document: Mapping[str, Any]) -> Chunk:
    parts: Sequence[Sequence[int]] = document["parts"]
    return Chunk(
        document["key"],
        document["size"],
        document["sha256"],
        tuple(Part(*numbers) for numbers in parts),
    )


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
    body: bytes
    parts: tuple[Part, ...]
    last: str
    """The id of its last row."""


class ChunkWriter:
    """Cuts the rows of one table, in the order in which they arrive, into chunks."""

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
        prefix = manifests_prefix(gateway)
        stored = [key[len(prefix) :].removesuffix(".json")
                 for key in self._objects.list_objects(prefix)]  # fmt: skip
        return sorted(name for name in stored if is_checkpoint_id(name))

    def latest(self, gateway: str, epoch: str, since_min: Stamp) -> Manifest | None:
        """Return the latest checkpoint of an epoch to which the log still reaches, if any."""
        for checkpoint in reversed(self.ids(gateway)):
            if since_of(checkpoint) < since_min:
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
        head, run = framed[:FRAME_HEAD_BYTES], framed[FRAME_HEAD_BYTES:]
        if len(framed) != part.size or int.from_bytes(head, "big") != len(run):
            raise AdapterFailed(f"{key} does not match its manifest; build a new checkpoint")
        return run

    def _read(self, gateway: str, checkpoint: str) -> Manifest:
        return manifest_from_json(self._objects.get_object(manifest_key(gateway, checkpoint)))

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
        number: the chunk's place among those of the table.
    """
    sha256 = digest(cut.body)
    key = chunk_key(*checkpoint, table, number, sha256)
    objects.put_object(key, cut.body, _OBJECT)
    return Chunk(key, len(cut.body), sha256, cut.parts)


def put_manifest(objects: ObjectStore, manifest: Manifest) -> None:
    """Write a manifest, once everything that it names exists: from here the checkpoint exists."""
    key = manifest_key(manifest.gateway, manifest.id)
    objects.put_object(key, manifest_to_json(manifest), _JSON)
