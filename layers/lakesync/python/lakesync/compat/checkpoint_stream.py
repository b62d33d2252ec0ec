"""A checkpoint as a stream of frames, for clients that read it whole or part by part.

Its rows are filtered as a pull's are; see `lakesync.gateway.rule_filter`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from lakesync.checkpoint.manifest import frame
from lakesync.checkpoint.replay_from import has_events
from lakesync.compat.follower_state import pack, unpack
from lakesync.compat.legacy_format import rows_of
from lakesync.compat.policy import is_follower
from lakesync.compat.progress import may_begin_again
from lakesync.errors import CheckpointTooLarge, Contention, CursorExpired, NotFound
from lakesync.gateway.row_source import CheckpointRows, check_decides, decides
from lakesync.gateway.rule_filter import RuleFilter
from lakesync.log.read_barrier import ReadBarrier
from lakesync.wire.records import decode_records, encode_records

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lakesync.checkpoint.manifest import Manifest
    from lakesync.checkpoint.store import Checkpoints
    from lakesync.core.clock import Stamp
    from lakesync.core.messages import Pull
    from lakesync.log.final_log import FinalLog
    from lakesync.ports import Buffer

READ_BYTES_MAX: Final = 256 * 1024 * 1024
"""Parts that one request reads, even if its client may see only a few rows of them: some seconds.
"""
_TABLES_NAMED_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class CheckpointPart:
    """One part, as one client sees it."""

    checkpoint: str
    since: Stamp
    """Where the log continues behind the whole checkpoint."""
    frame: bytes
    following: tuple[str, int] | None
    """The table and number of the next part; None behind the last."""


@dataclass(frozen=True, slots=True)
class CheckpointFrames:
    """A whole checkpoint, as one client sees it."""

    checkpoint: str
    since: Stamp
    frames: Iterator[bytes]
    """Read as they are asked for. Raises `lakesync.errors`."""
    too_large: CheckpointTooLarge
    """The answer if they do not fit."""


class CheckpointService:
    """Serves checkpoints of any gateway. One for each process; one request at a time."""

    def __init__(self, buffer: Buffer, checkpoints: Checkpoints) -> None:
        self._buffer = buffer
        self._checkpoints = checkpoints
        self._barrier = ReadBarrier(buffer)

    def whole(self, gateway: str, pull: Pull) -> CheckpointFrames:
        """Return the latest checkpoint, frame by frame, never more than one in memory.

        Raises:
            NotFound: there is none.
        """
        if is_follower(pull):
            self._note_beginning(gateway, pull.client_id)
        log = self._barrier.raise_heads(gateway)
        rule_filter = RuleFilter(log.config, pull)
        manifest = self._manifest(log, rule_filter)
        runs = self._runs(manifest, rule_filter, pull)
        frames = map(frame, self._for_client(log, pull, runs))
        since = self._since(log, manifest)
        return CheckpointFrames(manifest.id, since, frames, _too_large(manifest))

    def part(
        self, gateway: str, pull: Pull, table: str, number: int, checkpoint: str = ""
    ) -> CheckpointPart:
        """Return one part of a checkpoint.

        Args:
            gateway: whose.
            pull: who asks.
            table: a table of the checkpoint; its first one if empty.
            number: which of the table's parts, from 0.
            checkpoint: which checkpoint; the latest if empty.

        Raises:
            NotFound: there is none such.
            CursorExpired: the checkpoint is no longer kept.
        """
        log = self._barrier.raise_heads(gateway)
        rule_filter = RuleFilter(log.config, pull)
        manifest = self._manifest(log, rule_filter, checkpoint)
        table = table or manifest.after("")
        chunks = manifest.tables.get(table)
        if chunks is None or number >= chunks.parts:
            raise NotFound("the checkpoint has no such part", field="part")
        source = CheckpointRows(self._checkpoints, manifest, rule_filter)
        rows = source.read(table, f"{number}:0", pull.deltas_max, pull.bytes_max)
        following = manifest.after(table)
        after = (following, 0) if following else None
        if number + 1 < chunks.parts:
            after = (table, number + 1)
        body = frame(b"".join(rows.records.runs))
        return CheckpointPart(manifest.id, self._since(log, manifest), body, after)

    def _manifest(self, log: FinalLog, rule_filter: RuleFilter, checkpoint: str = "") -> Manifest:
        """Return the named checkpoint, or the latest that may be sent; of it the reader's tables.

        So no answer names a table of which the rules can show the reader nothing, and no object of
        one is read.
        """
        manifest = self._sendable(log, rule_filter, checkpoint)
        may_see = rule_filter.viewer.may_see
        tables = {name: chunks for name, chunks in manifest.tables.items() if may_see(name)}
        return replace(manifest, tables=tables)

    def _sendable(self, log: FinalLog, rule_filter: RuleFilter, checkpoint: str) -> Manifest:
        if checkpoint:
            manifest = self._checkpoints.manifest(log.gateway, checkpoint)
            check_decides(manifest, log.config, rule_filter)
            if manifest.epoch == log.epoch and manifest.since >= log.trimmed:
                return manifest
            raise CursorExpired("the checkpoint is out of date; begin again", field="checkpoint")
        latest = self._checkpoints.latest(log.gateway, log.epoch, log.trimmed)
        if latest is None or not decides(latest, log.config, rule_filter):
            raise NotFound("there is no checkpoint; pull from 0, or with snapshot=begin")
        return latest

    def _since(self, log: FinalLog, manifest: Manifest) -> Stamp:
        # A checkpoint contains no events, so the log is read from its first entry to send them.
        events = has_events(log, self._buffer.flushed_tables(log.gateway))
        return log.trimmed if events else manifest.since

    def _note_beginning(self, gateway: str, client_id: str) -> None:
        """Note that a known follower begins again, with rows on its disk."""
        stored = self._buffer.client_state(gateway, client_id)
        known = unpack(stored)
        if known is None or (after := may_begin_again(known)) == known:
            return
        if not self._buffer.save_client_state(gateway, client_id, stored, pack(after)):
            raise Contention("two requests of this client crossed; try again in a moment")

    def _for_client(self, log: FinalLog, pull: Pull, runs: Iterator[bytes]) -> Iterator[bytes]:
        """Get runs unchanged; for a follower, in a form that is right with or without the rows."""
        if not is_follower(pull):
            yield from runs
            return
        again = unpack(self._buffer.client_state(log.gateway, pull.client_id)) is not None
        for run in runs:
            rows = rows_of(decode_records(run), log.config, again=again)
            if rows:
                yield encode_records([delta for row in rows for delta in row])

    def _runs(self, manifest: Manifest, rule_filter: RuleFilter, pull: Pull) -> Iterator[bytes]:
        source = CheckpointRows(self._checkpoints, manifest, rule_filter)
        for table in manifest.tables:
            position = ""
            while True:
                rows = source.read(table, position, pull.deltas_max, pull.bytes_max)
                if rows.records.deltas:
                    yield b"".join(rows.records.runs)
                if source.bytes_read > READ_BYTES_MAX:
                    raise _too_large(manifest)
                position = rows.position
                if not position:
                    break


def _too_large(manifest: Manifest) -> CheckpointTooLarge:
    tables = list(manifest.tables.items())
    named = [f"{name} 0 to {chunks.parts - 1}" for name, chunks in tables[:_TABLES_NAMED_MAX]]
    if len(tables) > _TABLES_NAMED_MAX:
        named.append(f"and {len(tables) - _TABLES_NAMED_MAX} tables more")
    return CheckpointTooLarge(
        "the checkpoint does not fit one answer; ask for its parts with ?table= and part=, "
        f"following X-Checkpoint-Next: {', '.join(named)}"
    )
