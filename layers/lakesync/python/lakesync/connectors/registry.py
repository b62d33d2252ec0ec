"""The available connectors: those of this package, and others' by their entry points.

A package adds one by an entry point of the group ``lakesync.connectors`` that names a
`ConnectorType`. Only the requested type is imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from lakesync.adapters.entry_points import loaded, names_in
from lakesync.connectors.port import ConnectorType
from lakesync.errors import NotFound, ValidationFailed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import BaseModel

GROUP: Final = "lakesync.connectors"
"""The group of entry points."""
BUILT_IN: Final[Mapping[str, str]] = {
    "bigquery": "lakesync.connectors.bigquery.types:BIGQUERY",
    "cloudwatch": "lakesync.connectors.cloudwatch.types:CLOUDWATCH",
    "dlt": "lakesync.connectors.dlt.types:DLT",
    "jira": "lakesync.connectors.jira.types:JIRA",
    "mysql": "lakesync.connectors.sql.types:MYSQL",
    "postgres": "lakesync.connectors.sql.types:POSTGRES",
    "salesforce": "lakesync.connectors.salesforce.types:SALESFORCE",
    "stripe": "lakesync.connectors.stripe.types:STRIPE",
}


def type_names() -> list[str]:
    """Return the names of all types."""
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
    from pydantic import ValidationError  # noqa: PLC0415 - only where settings are read

    try:
        return kind.configuration.model_validate(settings)
    except ValidationError as exc:
        faults = exc.errors(include_url=False, include_input=False, include_context=False)
        listed = [
            f"{'.'.join(map(str, fault['loc'])) or 'all'}: {fault['msg']}" for fault in faults
        ]
        first = ".".join(map(str, faults[0]["loc"]))
        raise ValidationFailed(
            f"the configuration of {kind.name} is not right: {'; '.join(listed)}",
            field=f"configuration.{first}",
        ) from None


def secret_names(kind: Configurable) -> frozenset[str]:
    """Return the names of the settings that are secrets."""
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
