"""What the listings of connectors show."""

from __future__ import annotations

from typing import Any


def settings_of(schema: dict[str, Any]) -> str:
    """Name a type's settings; an asterisk marks what must be set."""
    needed = set(schema.get("required", ()))
    return ", ".join(f"{key}*" if key in needed else key for key in schema.get("properties", {}))


def state_of(each: dict[str, Any]) -> str:
    """Say what a connector does at this moment."""
    if not each["isPolling"]:
        return "paused"
    if "waitS" in each:
        return f"waits {each['waitS']} s"
    return "reads" if each["isReading"] else f"every {each['everyMinutes']} min"


def lag_of(each: dict[str, Any]) -> str:
    """Say how far behind its source a connector is."""
    return f"{each['lagS']} s" if "lagS" in each else "never polled"
