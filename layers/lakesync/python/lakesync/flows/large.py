"""Which flows a job may read: where it pays, and from how many rows on.

Whether a table of such a flow is large is decided by `lakesync.connectors.large`. Law Y11:
``docs/spec/flows.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lakesync.core.flows import DATABASES

if TYPE_CHECKING:
    from lakesync.core.flows import Flow

SIDE_BY_SIDE: Final = frozenset({"postgres", "mysql"})
"""Kinds of databases that take writes of one table from many at once. In others a write is dear,
and one after another is the way to fewer."""


def large_rows(flow: Flow, rows_min: int) -> int:
    """Give from how many rows ahead on a table of a flow is a job's; 0 for never.

    Args:
        flow: what is polled.
        rows_min: what the operator says of all flows, in rows; 0 for never.
    """
    reaches = flow.place == DATABASES  # the job is where databases are
    takes = flow.to_gateway or flow.to.kind in SIDE_BY_SIDE
    return rows_min if reaches and takes else 0
