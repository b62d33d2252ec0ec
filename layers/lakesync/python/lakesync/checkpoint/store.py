"""Checkpoints in an object store."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from lakesync.checkpoint import manifest as names
from lakesync.checkpoint.manifest import Chunk, Manifest, is_checkpoint_id, manifest_from_json
from lakesync.errors import AdapterFailed, CursorExpired, NotFound

if TYPE_CHECKING:
    from lakesync.checkpoint.chunks import Cut
    from lakesync.checkpoint.manifest import Place
    from lakesync.core.clock import Stamp
    from lakesync.ports import ObjectStore

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
