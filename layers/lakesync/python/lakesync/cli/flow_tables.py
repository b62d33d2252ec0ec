"""Listings of flows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lakesync.cli.session import Session


def show_flows(session: Session, flows: list[dict[str, Any]]) -> None:
    """Print a line for each flow, and each flow's last error."""
    if session.out.json_lines:
        for each in flows:
            session.out.json(each)
        return
    rows = [
        (
            each["name"],
            end_of(each["source"]),
            end_of(each["destination"]),
            each["state"],
            f"{each['lagS']} s" if "lagS" in each else "",
            each.get("rows", ""),
            each["deadLetters"],
        )
        for each in flows
    ]
    columns = ("name", "from", "to", "state", "lag", "rows", "dead letters")
    empty = "No flows; declare some: lakesync flows apply flows.yaml"
    session.out.table(columns, rows, title="Flows.", empty=empty)
    for each in flows:
        if "lastError" in each:
            session.out.note(f"{each['name']}: {each['lastError']['error']}")


def end_of(end: Any) -> str:
    """Describe a source or a destination."""
    if not isinstance(end, dict):
        return str(end)
    if "connector" in end:
        return f"connector {end['connector']}"
    return f"{end['database']} {end['secret']}"


def count_of(table: dict[str, Any], field: str) -> str:
    """Describe a count in a plan."""
    if field not in table:
        return "not known"
    return f"{table[field]}{' or more' if table.get('hasMore') else ''}"
