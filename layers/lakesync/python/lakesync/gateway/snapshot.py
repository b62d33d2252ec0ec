"""Snapshot: the rows as they are, page by page, for a cursor that the log does not reach back to.

Why rows read one after the other, while pushes go on, and the log behind them give the right rows
    1. The log goes on from a stamp below which everything was visible before the first row was
       read: flushed, and older than any commit may take to become visible. So each row holds at
       the least what was committed up to there.
    2. What a row holds of later commits comes once more in the log, and changes nothing then.
    3. A table with anything that is no longer in the log was flushed, so the flush state names it.

Append tables keep no rows: of them the log is all there is, and what is trimmed is in the lake.
Law B11: ``docs/spec/commit.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from lakesync.core.clock import stamp
from lakesync.core.delta import check_identifier
from lakesync.core.messages import SNAPSHOT, PullPage
from lakesync.errors import CursorExpired, ValidationFailed
from lakesync.wire.records import encode_records
from lakesync.wire.row_state import decode_row_state

if TYPE_CHECKING:
    from lakesync.core.clock import Stamp
    from lakesync.core.delta import Delta
    from lakesync.core.messages import Pull
    from lakesync.fence import FencedLog
    from lakesync.gateway.sight import Sight
    from lakesync.ports import Buffer, WallClock

_SCANS_MAX: Final = 16
"""Reads of rows, of 1 MB at the most, in which one request looks for what is seen."""
VISIBLE_MS_MAX: Final = 60_000
"""How long a commit may take from its stamp to being visible in all its parts, by any function's
clock: longer than a function runs."""


class Position(NamedTuple):
    """Where a snapshot goes on."""

    since: Stamp
    """Where the log goes on behind it."""
    epoch: str
    table: str = ""
    """The table to read; empty once all are read."""
    place: str = ""
    """Where in it; see `lakesync.ports.Buffer.scan_rows`."""

    def to_text(self) -> str:
        """Give what a client sends back."""
        return f"{self.since:x}|{self.epoch}|{self.table}|{self.place}"


def position_of(text: str) -> Position:
    """Read what `Position.to_text` gave.

    Raises:
        ValidationFailed: it is none.
    """
    try:
        since, epoch, table, place = text.split("|", 3)
        if place:
            int(place[0], 16)
        if table:
            check_identifier(table, "snapshot")
        return Position(abs(int(since, 16)), epoch, table, place)
    except ValueError as exc:
        raise ValidationFailed(
            "snapshot must be empty, begin, or that of the page before", field="snapshot"
        ) from exc


class Snapshots:
    """Reads snapshots for any gateway."""

    def __init__(self, buffer: Buffer, wall_clock: WallClock) -> None:
        self._buffer = buffer
        self._wall_clock = wall_clock

    def position(self, log: FencedLog, asked: str) -> Position:
        """Give where a client's snapshot begins or goes on; the log itself, if that is whole.

        Raises:
            ValidationFailed: what is asked for is no position.
        """
        if asked != SNAPSHOT:
            return position_of(asked)
        return self._begin(log) if log.trimmed else Position(0, log.epoch)

    def _begin(self, log: FencedLog) -> Position:
        watermark = self._buffer.flush_state(log.gateway).watermark
        visible = stamp(max(self._wall_clock() - VISIBLE_MS_MAX, 0))
        since = max(log.trimmed, min(watermark, visible))
        return self._next(log, Position(since, log.epoch))

    def page(self, log: FencedLog, pull: Pull, at: Position, sight: Sight) -> PullPage:
        """Give the rows from a position on, as deltas that merge to them.

        It holds at most as many rows as deltas were asked for; the last one may be empty.

        Raises:
            CursorExpired: the log behind the snapshot was trimmed meanwhile, or is another's.
        """
        if at.epoch != log.epoch or at.since < log.trimmed:
            raise CursorExpired("the snapshot is out of date; begin it again", field="snapshot")
        deltas: list[Delta] = []
        top = log.top
        for _ in range(_SCANS_MAX):
            if deltas or not at.table:
                break
            found = self._buffer.scan_rows(log.gateway, at.table, at.place, pull.deltas_max)
            for row_id, row in found.rows:
                deltas += sight.row(at.table, row_id, decode_row_state(row.state))
                top = max(top, row.commit)
            at = at._replace(place=found.place) if found.place else self._next(log, at)
        # Past the stamp of each row, so that whoever follows the gateway's time follows theirs.
        runs = (encode_records(deltas),) if deltas else ()
        return PullPage(
            runs, len(deltas), top, has_more=True, epoch=log.epoch, scope=sight.scope,
            snapshot=at.to_text(),
        )  # fmt: skip

    def _next(self, log: FencedLog, at: Position) -> Position:
        """Give the beginning of the next table that has rows, in the order of their names."""
        named = self._buffer.flush_state(log.gateway).last
        tables = sorted(name for name in named if not log.config.appends(name))
        table = next((name for name in tables if name > at.table), "")
        return Position(at.since, at.epoch, table)
