"""Which flows a job may read, and from how many unread rows.

Whether a table of such a flow is large is decided by `lakesync.connectors.large`. Law Y11:
``docs/spec/flows.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakesync.core.destinations import KINDS
from lakesync.core.flows import DatabaseSource

if TYPE_CHECKING:
    from lakesync.core.flows import Flow


def large_rows(flow: Flow, rows_min: int) -> int:
    """Return the number of unread rows from which a job reads a flow's table; 0 for never.

    Args:
        flow: the flow.
        rows_min: the operator's limit for all flows, in rows; 0 for never.
    """
    # The job runs near the databases, and has the libraries for Iceberg, but no package that adds a
    # kind of database.
    source = flow.source.kind if isinstance(flow.source, DatabaseSource) else ""
    has_all = {source, flow.to.kind} <= {*KINDS, ""}
    is_connector = flow.to_gateway and not source
    return rows_min if has_all and not is_connector else 0
