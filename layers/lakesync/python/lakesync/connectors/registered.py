"""A registered connector: its secrets, how it is made, how it is shown."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from lakesync.connectors.definition import Definition, definition_from
from lakesync.connectors.registry import configured, connector_type, tables_of
from lakesync.connectors.state import state_from
from lakesync.errors import NotFound, ValidationFailed
from lakesync.result import Err

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from lakesync.connectors.outside import Outside
    from lakesync.connectors.port import Connector, SourceTable
    from lakesync.connectors.storage import Storage
    from lakesync.ports import SecretStore, StoredConnector


_SHOWN_OF_CHANGES: Final = ("table", "column", "severity", "change")


def secret_name(gateway: str, name: str) -> str:
    """Return the name of a connector's secret, below the stack's prefix."""
    return f"{gateway}/{name}"


def secrets_in(configuration: Mapping[str, Any], names: Collection[str]) -> dict[str, str]:
    """Return the secrets in settings, several under one name as JSON; null ones are left out."""
    return {
        name: json.dumps(value) if isinstance(value, dict) else str(value)
        for name, value in configuration.items()
        if name in names and value is not None
    }


def made_connector(
    secrets: SecretStore,
    storage: Storage,
    outside: Outside,
    gateway: str,
    name: str,
    definition: Definition,
) -> tuple[Connector, dict[str, str]]:
    """Make a registered connector with its secrets; also gives the tables that it reads."""
    return made_with(secrets.get(secret_name(gateway, name)), storage, outside, definition)


def made_with(
    hidden: Mapping[str, str], storage: Storage, outside: Outside, definition: Definition
) -> tuple[Connector, dict[str, str]]:
    """Make a connector whose secrets are known; also gives the tables that it reads."""
    name, public = definition.reads()
    kind = connector_type(name)
    settings = configured(kind, {**public, **hidden})
    return kind.make(settings, storage, outside), dict(tables_of(kind, settings))


def asked(connector: Connector) -> str:
    """Check a configuration with its source; returns the source's sentence.

    Raises:
        ValidationFailed: the fault; an `AdapterFailed` would not be shown over the network.
    """
    checked = connector.check()
    if isinstance(checked, Err):
        message = checked.error.message
        raise ValidationFailed(f"the source cannot be read: {message}", field="configuration")
    return checked.value


def discovered(connector: Connector) -> tuple[SourceTable, ...]:
    """Return the tables of a source.

    Raises:
        ValidationFailed: the fault, as by `asked`.
    """
    answered = connector.discover()
    if isinstance(answered, Err):
        message = answered.error.message
        raise ValidationFailed(f"its tables cannot be read: {message}", field="configuration")
    return answered.value


def _webhook(gateway: str, name: str, definition: Definition) -> dict[str, str]:
    try:
        takes = connector_type(definition.type).webhook is not None
    except NotFound:  # whose package is gone
        takes = False
    return {"webhook": f"/connectors/{gateway}/{name}/webhook"} if takes else {}


def shown(stored: StoredConnector, now_ms: int, gateway: str = "") -> dict[str, Any]:
    """Return a connector as administrators see it: without secrets.

    With its gateway's id, also its address for webhooks, if its type takes them.
    """
    definition, state = definition_from(stored.definition), state_from(stored.state)
    summary: dict[str, Any] = {
        "name": stored.name,
        "type": definition.type,
        "hasIngest": True,
        "isPolling": not definition.paused,
        "everyMinutes": definition.every_minutes,
        "polls": state.polls,
        "rows": state.rows,
        "deadLetterCount": state.dead_letters,
        "isReading": stored.leased_until_ms > now_ms,
    }
    if state.polled_ms:
        summary["polledMs"] = state.polled_ms
        summary["lagS"] = max(now_ms - state.polled_ms, 0) // 1000
    if state.source:
        summary["source"] = state.source
    if state.wait_until_ms > now_ms:
        summary["waitS"] = (state.wait_until_ms - now_ms) // 1000
    if state.job_ms and summary["isReading"]:
        summary["jobMs"] = state.job_ms
    if state.fault:
        fault = state.fault
        summary["lastError"] = {"code": fault.code, "error": fault.message, "atMs": fault.at_ms}
        summary["lastError"] |= {"table": fault.table} if fault.table else {}
    if state.schema_changes:
        summary["schemaChanges"] = [
            {"atMs": each["at_ms"]} | {name: each[name] for name in _SHOWN_OF_CHANGES}
            for each in state.schema_changes
        ]
    return summary | (_webhook(gateway, stored.name, definition) if gateway else {})
