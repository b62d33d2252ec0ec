"""Which flows a job may read: where it pays, and from how many rows on.

Whether a table of such a flow is large is decided by `lakesync.connectors.large`. Law Y11:
``docs/spec/flows.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakesync.core.flows import DATABASES
from lakesync.core.pace import ONE_BY_ONE, pace_of

if TYPE_CHECKING:
    from lakesync.core.flows import Flow


def large_rows(flow: Flow, rows_min: int) -> int:
    """Give from how many rows ahead on a table of a flow is a job's; 0 for never.

    Args:
        flow: what is polled.
        rows_min: what the operator says of all flows, in rows; 0 for never.
    """
    reaches = flow.place == DATABASES  # the job is where databases are
    # Where batches are gathered a write is dear, and one after another is the way to fewer.
    takes = flow.to_gateway or pace_of(flow.to.kind) == ONE_BY_ONE
    return rows_min if reaches and takes else 0
