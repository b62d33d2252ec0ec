"""Listings of connectors."""

from __future__ import annotations

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
