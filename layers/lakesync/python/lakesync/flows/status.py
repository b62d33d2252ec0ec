"""The status of a flow, in the same words for flushed and polled flows. Law Y10."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lakesync.connectors.registered import shown
from lakesync.core.flows import flow_of_destination, flow_to_json

if TYPE_CHECKING:
    from lakesync.core.flows import Flow
    from lakesync.gateway.destinations import DestinationReport
    from lakesync.ports import StoredConnector


def delivered_status(report: DestinationReport) -> dict[str, Any]:
    """Return a flow that is fed by flushes, with its status.

    Its lag is the waiting time of the oldest commit that was not delivered yet.
    """
    status: dict[str, Any] = {
        **flow_to_json(flow_of_destination(report.destination)),
        "state": report.state,
        "lagS": report.lag_ms // 1_000,
        "waiting": report.waiting,
        "deadLetters": sum(one.dead_letters for one in report.tables.values())
        + len(report.set_aside),
    }
    errors = [(one.at_ms, table, one.error) for table, one in report.tables.items() if one.error]
    if errors:
        at_ms, table, message = max(errors)
        status["lastError"] = {"error": message, "atMs": at_ms, "table": table}
    return status


def polled_status(flow: Flow, stored: StoredConnector, now_ms: int) -> dict[str, Any]:
    """Return a polled flow, with its status.

    Its lag is the time since the last completed poll began: all earlier changes are delivered.
    Before the first completed poll it is left out.
    """
    polled = shown(stored, now_ms)
    status: dict[str, Any] = {
        **flow_to_json(flow),
        "state": _state(flow, polled),
        "rows": polled["rows"],
        "polls": polled["polls"],
        "deadLetters": polled["deadLetterCount"],
    }
    return status | {
        key: polled[key] for key in ("lagS", "waitS", "jobMs", "lastError") if key in polled
    }


def _state(flow: Flow, polled: dict[str, Any]) -> str:
    if flow.paused:
        return "paused"
    if "lastError" in polled:
        return "failing"
    if polled["isReading"]:
        return "reading"
    if "waitS" in polled:
        return "waiting"
    return "current" if polled["polls"] else "filling"
