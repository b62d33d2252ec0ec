"""Snapshot: the rows as they are, page by page, for a cursor that the log does not reach back to.

It is read from the latest checkpoint (`lakesync.checkpoint`) if there is one, else from the buffer.
Either way the log goes on behind it (`lakesync.checkpoint.replay_from` says why that is right).
Law B11: ``docs/spec/commit.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from lakesync.checkpoint.replay_from import behind, has_events, tables_with_rows
from lakesync.core.delta import check_identifier
from lakesync.core.messages import SNAPSHOT, PullPage, Resync
from lakesync.errors import CursorExpired, ValidationFailed
from lakesync.gateway.parts import (
    PartMark,
    PartPage,
    check_decides,
    decides,
    part_mark_of,
    read_part,
)
from lakesync.gateway.scan import scan_settled, visible_rows
from lakesync.wire.records import encode_records

if TYPE_CHECKING:
    from lakesync.checkpoint.manifest import Manifest
    from lakesync.checkpoint.store import Checkpoints
    from lakesync.core.clock import Stamp
    from lakesync.core.delta import Delta
    from lakesync.core.messages import Pull
    from lakesync.gateway.rule_filter import RuleFilter
    from lakesync.log.read_barrier import FencedLog
    from lakesync.ports import Buffer, WallClock

_SCANS_MAX: Final = 16
"""Reads of rows or of parts, of 1 MB at the most, in which one request looks for what is seen."""


_NO_POSITION: Final = "snapshot must be empty, begin, or that of the page before"
_SEPARATORS: Final = 3


class Position(NamedTuple):
    """Where a snapshot goes on."""

    since: Stamp
    """Where the log goes on behind it."""
    epoch: str
    table: str = ""
    """The table to read; empty once all are read."""
    place: str = ""
    """Where in it: of a checkpoint (`PartMark`), or of the buffer (`Buffer.scan_rows`)."""

    def to_text(self) -> str:
        """Give what a client sends back."""
        return f"{self.since:x}|{self.epoch}|{self.table}|{self.place}"


def position_of(text: str) -> Position:
    """Read what `Position.to_text` gave.

    Raises:
        ValidationFailed: it is none.
    """
    since, epoch, table, place = [*text.split("|", 3), "", "", "", ""][:4]
    try:
        begun = abs(int(since, 16))
    except ValueError as exc:
        raise ValidationFailed(_NO_POSITION, field="snapshot") from exc
    known = is_place(place) or part_mark_of(place) is not None
    if text.count("|") < _SEPARATORS or not known:
        raise ValidationFailed(_NO_POSITION, field="snapshot")
    if table:
        check_identifier(table, "snapshot")
    return Position(begun, epoch, table, place)


def is_place(place: str) -> bool:
    """Tell whether a text can have been a `lakesync.ports.RowSlice.place`."""
    return place[:1] in {"", *"0123456789abcdef"}


class Snapshots:
    """Reads snapshots for any gateway.

    Args:
        buffer: where the rows are.
        wall_clock: the time.
        checkpoints: where they are too; None if there are no checkpoints.
    """

    def __init__(
        self, buffer: Buffer, wall_clock: WallClock, checkpoints: Checkpoints | None = None
    ) -> None:
        self._buffer = buffer
        self._wall_clock = wall_clock
        self._checkpoints = checkpoints

    def position(self, log: FencedLog, asked: str, rule_filter: RuleFilter) -> Position:
        """Give where a client's snapshot begins or goes on; the log itself, if that is best.

        Raises:
            ValidationFailed: what is asked for is no position.
        """
        return self._begin(log, rule_filter) if asked == SNAPSHOT else position_of(asked)

    def _begin(self, log: FencedLog, rule_filter: RuleFilter) -> Position:
        state = self._buffer.flush_state(log.gateway)
        events = has_events(log, self._buffer.flushed_tables(log.gateway))
        if not log.trimmed and (events or self._checkpoints is None):
            return Position(0, log.epoch)
        checkpoint = self._latest(log, rule_filter)
        if checkpoint is None and not log.trimmed:
            return Position(0, log.epoch)
        # Of events the log is all there is, so it is read as far back as it reaches.
        if checkpoint is None:
            since = log.trimmed if events else behind(log, state, self._wall_clock())
            return self._next(log, Position(since, log.epoch))
        since = log.trimmed if events else checkpoint.since
        place = PartMark(checkpoint.id).to_text()
        table = checkpoint.after("")
        return Position(since, log.epoch, table, place if table else "")

    def _latest(self, log: FencedLog, rule_filter: RuleFilter) -> Manifest | None:
        """Give the checkpoint to begin with, if there is one that can be used."""
        if self._checkpoints is None:
            return None
        found = self._checkpoints.latest(log.gateway, log.epoch, log.trimmed)
        return found if found and decides(found, log.config, rule_filter) else None

    def page(self, log: FencedLog, pull: Pull, at: Position, rule_filter: RuleFilter) -> PullPage:
        """Give the rows from a position on, as deltas that merge to them.

        It holds at most as many rows as deltas were asked for; the last one may be empty.

        Raises:
            CursorExpired: the log behind the snapshot was trimmed meanwhile, or is another's; or
                the checkpoint is no longer kept.
        """
        if at.epoch != log.epoch or at.since < log.trimmed:
            raise CursorExpired("the snapshot is out of date; begin it again", field="snapshot")
        mark = part_mark_of(at.place)
        if mark is not None:
            return self._of_checkpoint(log, pull, at, mark, rule_filter)
        deltas: list[Delta] = []
        top = log.top
        for _ in range(_SCANS_MAX):
            if deltas or not at.table:
                break
            found = scan_settled(
                self._buffer, log, rule_filter, at.table, at.place, pull.deltas_max
            )
            deltas += visible_rows(rule_filter, at.table, found)
            top = max([top, *(row.commit for _, row in found.rows)])
            at = at._replace(place=found.place) if found.place else self._next(log, at)
        # Past the stamp of each row, so that whoever follows the gateway's time follows theirs.
        runs = (encode_records(deltas),) if deltas else ()
        return _page(log, rule_filter, at, runs, len(deltas), top)

    def resync(self, log: FencedLog) -> Resync:
        """Give the tables that a snapshot brings whole."""
        tables = tuple(self._tables(log))
        horizons = log.config.tombstone_horizons
        told = {table: horizons[table] for table in tables if table in horizons}
        return Resync(tables, tombstone_horizons=told)

    def _tables(self, log: FencedLog, after: str = "") -> list[str]:
        return tables_with_rows(log, self._buffer.flushed_tables(log.gateway, after))

    def _next(self, log: FencedLog, at: Position) -> Position:
        """Give the beginning of the next table that has rows."""
        table = next(iter(self._tables(log, at.table)), "")
        return Position(at.since, at.epoch, table)

    def _of_checkpoint(
        self, log: FencedLog, pull: Pull, at: Position, mark: PartMark, rule_filter: RuleFilter
    ) -> PullPage:
        """Give parts from a mark on, until one of them holds what the client sees."""
        if self._checkpoints is None:
            raise CursorExpired("checkpoints are no longer kept; begin again", field="snapshot")
        manifest = self._checkpoints.manifest(log.gateway, mark.checkpoint)
        check_decides(manifest, log.config, rule_filter)
        seen = PartPage((), 0, 0)
        for _ in range(_SCANS_MAX):
            if seen.deltas or not at.table:
                break
            seen = read_part(
                self._checkpoints, manifest, at.table, mark, rule_filter, pull.deltas_max
            )
            if seen.skip:
                mark = mark._replace(skip=seen.skip)
            elif mark.part + 1 < manifest.tables[at.table].parts:
                mark = mark._replace(part=mark.part + 1, skip=0)
            else:
                at = at._replace(table=manifest.after(at.table))
                mark = PartMark(manifest.id)
        at = at._replace(place=mark.to_text() if at.table else "")
        return _page(log, rule_filter, at, seen.records, seen.deltas, log.top)


def _page(
    log: FencedLog,
    rule_filter: RuleFilter,
    at: Position,
    runs: tuple[bytes, ...],
    count: int,
    top: Stamp,
) -> PullPage:
    return PullPage(
        runs,
        count,
        top,
        has_more=True,
        epoch=log.epoch,
        scope=rule_filter.scope.text(),
        snapshot=at.to_text(),
    )
