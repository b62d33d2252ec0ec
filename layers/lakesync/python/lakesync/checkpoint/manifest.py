"""The content of a checkpoint, and the names of its objects. Pure.

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
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lakesync.core.stored_formats import WRITES, check_format

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lakesync.core.clock import Stamp

FRAME_HEAD_BYTES: Final = 4
_ID = re.compile(r"[0-9a-f]{16}-[0-9a-f]{16}")
_DIGEST_LENGTH: Final = 16


class Part(NamedTuple):
    """One frame of a chunk."""

    size: int
    """Its size, the length field included."""
    deltas: int
    rows: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """One object."""

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
        """Count one more."""
        return Tombstones(self.count + 1, min(self.oldest or deleted, deleted))


class Place(NamedTuple):
    """The location of a part."""

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
        """The number of rows, tombstones included."""
        return sum(part.rows for chunk in self.chunks for part in chunk.parts)

    @property
    def parts(self) -> int:
        """The number of parts."""
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
    """A checkpoint."""

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
    """Return whether text may name a checkpoint."""
    return _ID.fullmatch(text) is not None


def since_of(checkpoint: str) -> Stamp:
    """Return the stamp from which the log continues behind a checkpoint, from its id."""
    return int(checkpoint[:16], 16)


def began_ms_of(checkpoint: str) -> int:
    """Return when a checkpoint's build began, from its id."""
    return int(checkpoint[17:], 16)


def manifests_prefix(gateway: str) -> str:
    """Return the prefix of a gateway's manifests, which nothing else has."""
    return f"checkpoints/{gateway}/manifests/"


def manifest_key(gateway: str, checkpoint: str) -> str:
    """Return the key of a manifest."""
    return f"{manifests_prefix(gateway)}{checkpoint}.json"


def progress_key(gateway: str) -> str:
    """Return the key of the progress of a build."""
    return f"checkpoints/{gateway}/progress"


def chunks_prefix(gateway: str, checkpoint: str = "") -> str:
    """Return the prefix of one checkpoint's chunks, or of all."""
    prefix = f"checkpoints/{gateway}/chunks/"
    return f"{prefix}{checkpoint}/" if checkpoint else prefix


def chunk_key(gateway: str, checkpoint: str, table: str, number: int, sha256: str) -> str:
    """Return the key of a chunk."""
    name = f"{table}-{number:05d}-{sha256[:_DIGEST_LENGTH]}.bin"
    return chunks_prefix(gateway, checkpoint) + name


def frame(run: bytes) -> bytes:
    """Return the frame of a run of deltas."""
    return len(run).to_bytes(FRAME_HEAD_BYTES, "big") + run


def digest(body: bytes) -> str:
    """Return the SHA-256 of a chunk, in hex."""
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
    """Write tables as plain JSON values."""
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
