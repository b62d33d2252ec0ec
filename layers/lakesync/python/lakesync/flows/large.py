"""Which flows a job may read: where it pays, and from how many rows on.

Whether a table of such a flow is large is decided by `lakesync.connectors.large`. Law Y11:
``docs/spec/flows.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakesync.core.flows import DATABASES, LAKES

if TYPE_CHECKING:
    from lakesync.core.flows import Flow


def large_rows(flow: Flow, rows_min: int) -> int:
    """Give from how many rows ahead on a table of a flow is a job's; 0 for never.

    Args:
        flow: what is polled.
        rows_min: what the operator says of all flows, in rows; 0 for never.
    """
    # The job is where databases are, and has what reads and writes Iceberg.
    return rows_min if flow.place in {DATABASES, LAKES} else 0
