"""Listings of connectors."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any


def settings_of(schema: dict[str, Any]) -> str:
    """List a type's settings; an asterisk marks a required one."""
    needed = set(schema.get("required", ()))
    return ", ".join(f"{key}*" if key in needed else key for key in schema.get("properties", {}))


def state_of(each: dict[str, Any]) -> str:
    """Describe what a connector is doing now."""
    if not each["isPolling"]:
        return "paused"
    if "waitS" in each:
        return f"waits {each['waitS']} s"
    return "reads" if each["isReading"] else f"every {each['everyMinutes']} min"


def lag_of(each: dict[str, Any]) -> str:
    """Describe how far a connector lags behind its source."""
    return f"{each['lagS']} s" if "lagS" in each else "never polled"


def change_of(change: dict[str, Any]) -> str:
    """Describe a change of a source's schema."""
    column = f".{change['column']}" if change["column"] else ""
    at = f"{datetime.fromtimestamp(change['atMs'] / 1000, UTC):%Y-%m-%d %H:%M}"
    return f"{change['severity']}: {change['table']}{column}: {change['change']} ({at})"
