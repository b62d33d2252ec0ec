"""Builds checkpoints of a gateway, keeps the latest, and removes the others.

A build writes all rows of a gateway into a checkpoint, in as many calls as time requires. The
steps, in this order; after a crash between any two of them, the next build continues:

    1. the progress is written           which checkpoint, from which stamp, which tables
    2. rows are scanned into a chunk     only what is in memory is lost with the process
    3. the chunk is written              under a name made from its content
    4. the progress is written           behind the chunk's last row; on with step 2
    5. the manifest is written           from here the checkpoint exists
    6. the progress is removed

Any number of builds may run at once: each progress is complete in itself, and names immutable
chunks. A checkpoint is removed in two steps:

    1. the manifest is removed       from here no client begins with the checkpoint
    2. its chunks are removed        a client that still reads it is answered 410, and begins again

Laws R1-R2, R4: ``docs/spec/retention.md``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from lakesync.checkpoint import replay_from, tables_with_rows
from lakesync.checkpoint import store as names
from lakesync.checkpoint.store import (
    CHUNK_BYTES_MAX,
    ChunkWriter,
    Manifest,
    OutOfTime,
    TableChunks,
    Tombstones,
    put_chunk,
    put_manifest,
    rows_in_order,
    since_of,
    tables_from_json,
    tables_to_json,
)
from lakesync.core.config import WRITES, check_format
from lakesync.errors import CursorExpired, NotFound
from lakesync.log.read import ReadBarrier

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lakesync.checkpoint.store import Checkpoints, Cut
    from lakesync.core.clock import Stamp
    from lakesync.log.read import FinalLog
    from lakesync.ports import Buffer, ObjectStore, WallClock

# --- the progress of a build ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Progress:
    checkpoint: str
    epoch: str
    todo: tuple[str, ...]
    """The tables that are not done, the current one first."""
    tables: Mapping[str, TableChunks] = field(default_factory=lambda: MappingProxyType({}))
    """What is written so far."""
    last: str = ""
    """The last row of the current table that is in a chunk."""

    @property
    def since(self) -> Stamp:
        return since_of(self.checkpoint)

    @property
    def rows(self) -> int:
        return sum(chunks.rows for chunks in self.tables.values())

    def with_table(self, table: str, chunks: TableChunks) -> Progress:
        return replace(self, tables={**self.tables, table: chunks})


def progress_to_json(progress: Progress) -> bytes:
    body = {
        "version": WRITES,
        "checkpoint": progress.checkpoint,
        "epoch": progress.epoch,
        "todo": list(progress.todo),
        "tables": tables_to_json(progress.tables),
        "last": progress.last,
    }
    return json.dumps(body, separators=(",", ":")).encode()


def progress_from_json(body: bytes) -> Progress:
    """Read what `progress_to_json` wrote, in any release.

    Raises:
        UpgradeRequired: only a later release can read it.
    """
    document = json.loads(body)
    check_format(document["version"], "a checkpoint under way")
    tables = tables_from_json(document["tables"])
    return Progress(
        document["checkpoint"],
        document["epoch"],
        tuple(document["todo"]),
        tables,
        document["last"],
    )


# --- building -------------------------------------------------------------------------------------


PROGRESS_MS_MAX: Final = 24 * 3_600_000
"""The age up to which a build is continued; an older one is begun again."""
_JSON: Final = "application/json"


@dataclass(frozen=True, slots=True)
class BuildReport:
    checkpoint: str = ""
    """The checkpoint that exists now, built by this call or before; empty if there is none."""
    since: Stamp = 0
    rows: int = 0
    """Rows that this call wrote."""
    finished: bool = True
    """False if time ran out; the next build continues from here."""


class Builder:
    """Builds checkpoints of gateways. Any number may run at once, also on the same gateway."""

    def __init__(
        self,
        buffer: Buffer,
        objects: ObjectStore,
        checkpoints: Checkpoints,
        *,
        wall_clock: WallClock,
        chunk_bytes: int = CHUNK_BYTES_MAX,
    ) -> None:
        self._buffer = buffer
        self._objects = objects
        self._checkpoints = checkpoints
        self._wall_clock = wall_clock
        self._chunk_bytes = chunk_bytes
        self._barrier = ReadBarrier(buffer)

    def build(
        self, gateway: str, *, every_ms: int = 0, has_time: Callable[[], bool] = lambda: True
    ) -> BuildReport:
        """Build a checkpoint if one is due, or continue one. Idempotent, and safe to kill.

        Cost: the rows are read, one unit for each 4 KB; one object for each chunk, and as many
        writes of progress. It builds 50,000 rows a second and more of CPU.

        Args:
            every_ms: how old the latest one must be. After a change of rules one is always due, and
                while nothing changed none is.

        Raises:
            LakeSyncError: a store refused; the next build continues.
        """
        log = self._barrier.raise_heads(gateway)
        progress = self._under_way(log) or self._begin(log, every_ms)
        if progress is None:
            return self._there(log)
        return self._go_on(gateway, progress, has_time)

    def _under_way(self, log: FinalLog) -> Progress | None:
        """Return the build that was begun, unless its checkpoint would no longer be useful."""
        try:
            body = self._objects.get_object(names.progress_key(log.gateway))
        except NotFound:
            return None
        progress = progress_from_json(body)
        began_ms = names.began_ms_of(progress.checkpoint)
        is_old = self._wall_clock() - began_ms > PROGRESS_MS_MAX
        if is_old or progress.epoch != log.epoch or progress.since < log.trimmed:
            return None
        return progress

    def _begin(self, log: FinalLog, every_ms: int) -> Progress | None:
        """Begin a build, if the latest checkpoint lacks anything, and a new one is due."""
        now_ms = self._wall_clock()
        state = self._buffer.flush_state(log.gateway)
        since = replay_from(log, state, now_ms)
        latest = self._checkpoints.latest(log.gateway, log.epoch, log.trimmed)
        if not since or (latest is not None and since <= latest.since):
            return None
        if latest is not None and latest.since >= log.config.logged.since:
            if now_ms - names.began_ms_of(latest.id) < every_ms:
                return None
            if all(head.last_logged <= latest.since for head in log.heads.values()):
                return None
        tables = tables_with_rows(log, self._buffer.flushed_tables(log.gateway))
        checkpoint = names.checkpoint_id(since, now_ms)
        progress = Progress(checkpoint, log.epoch, tuple(tables))
        self._save(log.gateway, progress)
        return progress

    def _there(self, log: FinalLog) -> BuildReport:
        latest = self._checkpoints.latest(log.gateway, log.epoch, log.trimmed)
        return BuildReport(latest.id, latest.since) if latest else BuildReport()

    def _go_on(self, gateway: str, progress: Progress, has_time: Callable[[], bool]) -> BuildReport:
        rows_before = progress.rows
        while progress.todo:
            progress, is_done = self._table(gateway, progress, has_time)
            if not is_done:
                rows = progress.rows - rows_before
                return BuildReport(progress.checkpoint, progress.since, rows, finished=False)
        manifest = Manifest(
            progress.checkpoint, gateway, progress.epoch, progress.since,
            {name: chunked for name, chunked in progress.tables.items() if chunked.chunks},
        )  # fmt: skip
        # Another process may have ended this build, with parts that are cut at other rows, and a
        # client may be reading them.
        if manifest.id not in self._checkpoints.ids(gateway):
            put_manifest(self._objects, manifest)
        self._objects.delete_object(names.progress_key(gateway))
        return BuildReport(manifest.id, manifest.since, progress.rows - rows_before)

    def _table(
        self, gateway: str, progress: Progress, has_time: Callable[[], bool]
    ) -> tuple[Progress, bool]:
        """Continue with the current table; returns whether all of it is done."""
        table = progress.todo[0]
        tombstones = progress.tables.get(table, TableChunks()).tombstones
        writer = ChunkWriter(table, self._chunk_bytes, tombstones)
        rows = rows_in_order(self._buffer, gateway, table, progress.last, has_time)
        try:
            for cut in writer.add(rows):
                progress = self._keep(gateway, progress, cut, writer.tombstones)
                progress = replace(progress, last=cut.last)
                self._save(gateway, progress)
        except OutOfTime:
            return progress, False
        for cut in writer.rest():
            progress = self._keep(gateway, progress, cut, writer.tombstones)
        progress = replace(progress, todo=progress.todo[1:], last="")
        self._save(gateway, progress)
        return progress, True

    def _keep(self, gateway: str, progress: Progress, cut: Cut, tombstones: Tombstones) -> Progress:
        table = progress.todo[0]
        kept = progress.tables.get(table, TableChunks())
        checkpoint = (gateway, progress.checkpoint)
        chunk = put_chunk(self._objects, checkpoint, table, len(kept.chunks), cut)
        return progress.with_table(table, TableChunks((*kept.chunks, chunk), tombstones))

    def _save(self, gateway: str, progress: Progress) -> None:
        body = progress_to_json(progress)
        self._objects.put_object(names.progress_key(gateway), body, _JSON)


# --- keeping and removing -------------------------------------------------------------------------


LATEST_KEPT: Final = 2
"""Checkpoints that are kept, however old they are."""
KEEP_MS: Final = 24 * 3_600_000
"""How long any other is kept: longer than an interrupted first sync takes, and at least as long as
a build may be continued."""

_MARGIN_MS: Final = 3_600_000
"""How much longer chunks without a manifest are kept: a build that continues with them may be slow.
"""


@dataclass(frozen=True, slots=True)
class CleanReport:
    objects: int = 0
    finished: bool = True
    """False if time ran out; the next call continues."""


class Keeper:
    """Keeps and cleans checkpoints of gateways. Any number may run at once."""

    def __init__(
        self, objects: ObjectStore, checkpoints: Checkpoints, *, wall_clock: WallClock
    ) -> None:
        self._objects = objects
        self._checkpoints = checkpoints
        self._wall_clock = wall_clock

    def kept(self, gateway: str, epoch: str) -> list[str]:
        """Return the checkpoints that are kept, oldest first.

        Raises:
            LakeSyncError: the store cannot be reached.
        """
        return self._kept(gateway, self._checkpoints.ids(gateway), epoch)

    def covered(self, gateway: str, epoch: str) -> Stamp:
        """Return the stamp up to which every kept checkpoint covers the log; 0 without any.

        Raises:
            LakeSyncError: the store cannot be reached.
        """
        return min(map(names.since_of, self.kept(gateway, epoch)), default=0)

    def clean(
        self, gateway: str, epoch: str, *, has_time: Callable[[], bool] = lambda: True
    ) -> CleanReport:
        """Remove what is not kept, and chunks that no manifest names. Idempotent, and safe to kill.

        Raises:
            LakeSyncError: the store refused; what was removed stays removed.
        """
        removed = 0
        every = self._checkpoints.ids(gateway)
        kept = set(self._kept(gateway, every, epoch))
        doomed = [names.manifest_key(gateway, name) for name in every if name not in kept]
        doomed += self._without_manifest(gateway, kept)
        for key in doomed:
            if not has_time():
                return CleanReport(removed, finished=False)
            self._objects.delete_object(key)
            removed += 1
        return CleanReport(removed)

    def _kept(self, gateway: str, every: Sequence[str], epoch: str) -> list[str]:
        now_ms = self._wall_clock()
        ours = [name for name in every if self._is_of(gateway, name, epoch)]
        young = [name for name in ours if now_ms - names.began_ms_of(name) < KEEP_MS]
        return sorted({*ours[-LATEST_KEPT:], *young})

    def _is_of(self, gateway: str, checkpoint: str, epoch: str) -> bool:
        try:
            return self._checkpoints.manifest(gateway, checkpoint).epoch == epoch
        except (NotFound, CursorExpired):
            return False

    def _without_manifest(self, gateway: str, kept: set[str]) -> list[str]:
        """Get chunks of checkpoints that are not kept, except those that may belong to a build."""
        prefix = names.chunks_prefix(gateway)
        now_ms = self._wall_clock()

        def is_left_over(key: str) -> bool:
            checkpoint = key[len(prefix) :].partition("/")[0]
            if not names.is_checkpoint_id(checkpoint) or checkpoint in kept:
                return False
            return now_ms - names.began_ms_of(checkpoint) > PROGRESS_MS_MAX + _MARGIN_MS

        return [key for key in self._objects.list_objects(prefix) if is_left_over(key)]
