"""Commits that make more rows visible than one answer carries: their rows are sent first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakesync.core.messages import PullPage
from lakesync.gateway.resume_token import Reads, ResumeToken

if TYPE_CHECKING:
    from lakesync.core.clock import Stamp
    from lakesync.core.messages import Pull
    from lakesync.gateway.records import FilteredCommit, Records
    from lakesync.log.final_log import FinalLog


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
