"""The available types of connectors, and the connectors that are registered of them.

A package adds a type by an entry point of the group ``lakesync.connectors`` that names a
`ConnectorType`. Only the requested type is imported.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from lakesync.adapters.database_types import loaded, names_in
from lakesync.connectors.port import ConnectorType
from lakesync.connectors.state import state_from
from lakesync.core.flows import FLOW
from lakesync.declare import checked
from lakesync.declare.flows import CONNECTOR_NAME, EVERY_MINUTES_DEFAULT
from lakesync.errors import NotFound, ValidationFailed
from lakesync.result import Err

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pydantic import BaseModel

    from lakesync.connectors.port import Connector, Outside, SourceTable, Storage
    from lakesync.ports import SecretStore, StoredConnector

GROUP: Final = "lakesync.connectors"
"""The group of entry points."""
BUILT_IN: Final[Mapping[str, str]] = {
    "bigquery": "lakesync.systems.bigquery.bigquery_settings:BIGQUERY",
    "cloudwatch": "lakesync.systems.cloudwatch:CLOUDWATCH",
    "dlt": "lakesync.systems.dlt:DLT",
    "jira": "lakesync.systems.jira.jira_connector:JIRA",
    "mysql": "lakesync.systems.mysql.mysql_settings:MYSQL",
    "postgres": "lakesync.systems.postgres.postgres_settings:POSTGRES",
    "salesforce": "lakesync.systems.salesforce.salesforce_connector:SALESFORCE",
    "stripe": "lakesync.systems.stripe:STRIPE",
}


def type_names() -> list[str]:
    return names_in(GROUP, BUILT_IN)


def connector_type(name: str) -> ConnectorType:
    """Return a type of connector by its name.

    Raises:
        NotFound: there is none of that name, or it cannot be imported here.
    """
    return loaded(GROUP, BUILT_IN, name, ConnectorType, "connector")


def described(kind: ConnectorType) -> dict[str, Any]:
    """Return a type's description for a form; secrets are ``writeOnly``."""
    schema = kind.configuration.model_json_schema(by_alias=True)
    return {"type": kind.name, "title": kind.title, "configuration": schema}


def all_described() -> list[dict[str, Any]]:
    """Return the descriptions of all types; one that cannot be imported has an ``error`` instead.

    Anybody may ask for them, so the fault itself is said only to whoever registers a connector.
    """
    listed = []
    for name in type_names():
        try:
            listed.append(described(connector_type(name)))
        except NotFound:
            error = f"the entry point {name} cannot be imported; registering one says why"
            listed.append({"type": name, "title": name, "error": error})
    return listed


class Configurable(Protocol):
    """A type of something that an administrator configures."""

    @property
    def name(self) -> str:
        """Its name."""
        ...

    @property
    def configuration(self) -> type[BaseModel]:
        """Its settings."""
        ...


def configured(kind: Configurable, settings: object) -> BaseModel:
    """Return the validated settings.

    Raises:
        ValidationFailed: they are invalid; every fault is named, and no value is repeated.
    """
    return checked(kind.configuration, settings, f"configuration of {kind.name}", "configuration")


def secret_names(kind: Configurable) -> frozenset[str]:
    properties = kind.configuration.model_json_schema(by_alias=True).get("properties", {})
    return frozenset(
        name
        for name, schema in properties.items()
        if any(part.get("writeOnly") for part in (schema, *schema.get("anyOf", ())))
    )


def tables_of(kind: ConnectorType, settings: Any) -> Mapping[str, str]:
    """Return the tables in the settings: the source's names, each with the gateway's.

    Raises:
        ValidationFailed: two have the same name in the gateway.
    """
    tables = kind.tables(settings)
    names = [name.lower() for name in tables.values()]
    if len(set(names)) < len(names):
        raise ValidationFailed(
            "two tables of the source would be one of the gateway: give one another name with as",
            field="configuration.tables",
        )
    return tables


# --- definitions ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Definition:
    """A registered connector, without its secrets."""

    type: str
    configuration: dict[str, Any] = field(default_factory=dict)
    every_minutes: int = EVERY_MINUTES_DEFAULT
    paused: bool = False

    def reads(self) -> tuple[str, dict[str, Any]]:
        """Return the type and settings of the connector that reads the source, also for a flow.

        The type is empty for a flow from a database; no connector type has an empty name.
        """
        if self.type != FLOW:
            return self.type, self.configuration
        source = self.configuration["source"]
        return source.get("connector", ""), source.get("configuration", {})

    def to_json(self) -> bytes:
        return json.dumps(asdict(self), separators=(",", ":"), ensure_ascii=False).encode()


def definition_from(body: bytes) -> Definition:
    """Read what `Definition.to_json` wrote, in any release."""
    stored: dict[str, Any] = json.loads(body)
    known = {name: stored[name] for name in Definition.__dataclass_fields__ if name in stored}
    return Definition(**known)


def check_name(name: object) -> str:
    """Return a connector's name if it is valid.

    Raises:
        ValidationFailed: it is not.
    """
    try:
        return str(CONNECTOR_NAME.read(name))
    except ValueError as error:
        raise ValidationFailed(str(error), field="name") from None


# --- registered connectors ------------------------------------------------------------------------


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
