"""Reads that take several requests: what one may read, and the token with which the next goes on.

The token says where any paged read of rows continues. Clients hand it back unchanged. They read
only one field of it, the stamp behind which the log continues
(`lakesync.core.messages.log_behind`).

A commit that makes more rows visible than one answer carries is such a read: its rows are sent
first.
"""

from __future__ import annotations

import re
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from lakesync.core.messages import ALL_TABLES, PullPage, begins, first_of
from lakesync.errors import CursorExpired, ValidationFailed

if TYPE_CHECKING:
    from lakesync.core.clock import Stamp
    from lakesync.core.messages import Pull
    from lakesync.gateway.rule_filter import FilteredCommit, Records, RuleFilter
    from lakesync.log.read import FinalLog
    from lakesync.ports import WallClock

# --- the token ------------------------------------------------------------------------------------


class Reads(Enum):
    """What is read page by page."""

    ALL_TABLES = ALL_TABLES
    CHANGED_TABLES = "changed"
    """The tables for which rules or token claims decide differently now."""
    ROWS_OF_COMMIT = "commit"
    """Rows that one commit made visible, and that exceed one answer."""


_TOKEN: Final = re.compile(
    r"([0-9a-f]{1,16})\|(?:(all)(:[A-Za-z0-9_,]{1,2200})?|(changed|commit))\|([^|]*)\|([^|]*)\|((?:[A-Za-z_][A-Za-z0-9_]{0,63})?)\|(.*)",
    re.DOTALL,
)
_OF: Final = {
    Reads.ALL_TABLES: re.compile(r"([0-9a-f]{16}-[0-9a-f]{16})?"),
    Reads.CHANGED_TABLES: re.compile(r"[A-Za-z0-9_=-]+"),
    Reads.ROWS_OF_COMMIT: re.compile(r"[0-9a-f]{1,16}:[0-9]{1,9}"),
}


class ResumeToken(NamedTuple):
    """Where reading continues."""

    replay_from: Stamp
    """The log continues behind this stamp, once all rows were read."""
    epoch: str
    reads: Reads = Reads.ALL_TABLES
    of: str = ""
    """For all tables, the checkpoint they are read from, empty for the buffer. For changed tables,
    the digest of the scope in force. For a commit, its stamp and how many of its rows were sent."""
    table: str = ""
    """The table to read; empty if none is in progress."""
    position: str = ""
    """The position in the table, in the format of its `lakesync.gateway.bootstrap.RowSource`."""
    first: tuple[str, ...] = ()
    """For all tables, those that are read before the others."""

    def to_text(self) -> str:
        """Return the text that a client hands."""
        reads = f"{self.reads.value}:{','.join(self.first)}" if self.first else self.reads.value
        fields = (reads, self.of, self.epoch, self.table, self.position)
        return "|".join((f"{self.replay_from:x}", *fields))


def resume_token_of(text: str) -> ResumeToken:
    """Read what `ResumeToken.to_text` gave.

    Raises:
        ValidationFailed: it is malformed.
    """
    match = _TOKEN.fullmatch(text)
    if match:
        replay_from, of_all, first, of_some, of, epoch, table, position = match.groups()
        reads = Reads(of_all or of_some)
        if _OF[reads].fullmatch(of):
            tables = first_of(first) if first else ()
            return ResumeToken(int(replay_from, 16), epoch, reads, of, table, position, tables)
    raise ValidationFailed(
        "snapshot must be empty, begin, or that of the page before", field="snapshot"
    )


def check_cursor(pull: Pull, log: FinalLog) -> None:
    """Refuse a cursor that the log does not reach back to, or that belongs to another epoch.

    Raises:
        CursorExpired: it is void.
    """
    foreign = pull.since > log.top or pull.epoch not in {"", log.epoch}
    if pull.since < log.trimmed or (pull.since and foreign):
        raise CursorExpired(
            "the log no longer reaches back to this cursor; fetch a checkpoint or a snapshot, and "
            "keep your unsent changes",
            field="since",
        )


def scoped(pull: Pull, log: FinalLog, rule_filter: RuleFilter) -> Pull:
    """Return a request with a scope where it needs one.

    The log below `LoggedColumns.since` cannot show which rows a reader was sent by earlier rules.
    So of a reader that has read a part of it, and hands back no scope, everything is unknown: what
    rules filter is read again.

    Raises:
        ValidationFailed: a re-sync continues only with the scope of its last page.
    """
    if pull.scope or rule_filter.viewer.sees_every_row:
        return pull
    if pull.snapshot and not begins(pull.snapshot):
        if resume_token_of(pull.snapshot).reads is Reads.CHANGED_TABLES:
            raise ValidationFailed("hand back the scope of the page as well", field="scope")
        return pull
    if pull.snapshot or not 0 < pull.since < log.config.logged.since:
        return pull
    return replace(pull, scope=rule_filter.scope.forgotten().text())


# --- the limit of one request ---------------------------------------------------------------------


READS_MAX: Final = 16
"""Reads of the log, of rows or of a checkpoint, of about 1 MB each, that one request makes to find
visible changes."""
READ_MS_MAX: Final = 10_000
"""How long one request keeps reading: its answer comes well within its function's 29 s."""


class Budget:
    """Counts the reads of one request."""

    def __init__(self, wall_clock: WallClock) -> None:
        self._wall_clock = wall_clock
        self._deadline_ms = wall_clock() + READ_MS_MAX
        self._reads = 0

    def allows_read(self) -> bool:
        """Count another read; True if it may be made. The first one is always allowed."""
        self._reads += 1
        in_time = self._reads <= READS_MAX and self._wall_clock() < self._deadline_ms
        return in_time or self._reads == 1


# --- the rows of a large commit -------------------------------------------------------------------


def rows_of(
    commit: FilteredCommit, rows: list[Records], log: FinalLog, since: Stamp, pull: Pull
) -> PullPage:
    """Return some of the rows that one commit made visible, if together they do not fit one answer.

    They are sent as they are, before the commit itself. The client's cursor stays before it.
    """
    records, sent = rows[0], 1
    for row in rows[1:]:
        if sent >= pull.deltas_max or records.size_bytes + row.size_bytes > pull.bytes_max:
            break
        records, sent = records.followed_by(row), sent + 1
    of = f"{commit.stamp:x}:{sent + commit.rows_sent}"
    token = ResumeToken(since, log.epoch, Reads.ROWS_OF_COMMIT, of)
    return PullPage(records.runs, records.deltas, log.top, has_more=True, snapshot=token.to_text())


def not_sent(commit: FilteredCommit, at: ResumeToken | None) -> FilteredCommit:
    """Return a commit without those of its rows that were sent in separate pages."""
    if at is None or at.reads is not Reads.ROWS_OF_COMMIT:
        return commit
    stamp, _, sent = at.of.partition(":")
    if int(stamp, 16) != commit.stamp:
        return commit
    return commit._replace(rows=commit.rows[int(sent) :], rows_sent=int(sent))
