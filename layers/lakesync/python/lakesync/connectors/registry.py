"""The available connectors: those of this package, and others' by their entry points.

A package adds one by an entry point of the group ``lakesync.connectors`` that names a
`ConnectorType`. Only the requested type is imported.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from lakesync.connectors.port import ConnectorType
from lakesync.errors import NotFound, ValidationFailed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import BaseModel

T = TypeVar("T")

GROUP: Final = "lakesync.connectors"
"""The group of entry points."""
BUILT_IN: Final[Mapping[str, str]] = {
    "dlt": "lakesync.connectors.dlt.types:DLT",
    "jira": "lakesync.connectors.jira.types:JIRA",
    "mysql": "lakesync.connectors.sql.types:MYSQL",
    "postgres": "lakesync.connectors.sql.types:POSTGRES",
    "salesforce": "lakesync.connectors.salesforce.types:SALESFORCE",
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


def names_in(group: str, built_in: Mapping[str, str]) -> list[str]:
    """Return the names of all types of a group of entry points, those of this package too."""
    return sorted({*built_in, *(entry.name for entry in entry_points(group=group))})


def loaded(group: str, built_in: Mapping[str, str], name: str, wanted: type[T], noun: str) -> T:
    """Import a type by its name: one of this package, or another's by its entry point.

    Raises:
        NotFound: there is none of that name, or it cannot be imported here.
    """
    if name in built_in:
        module, _, attribute = built_in[name].partition(":")
        kind: object = getattr(import_module(module), attribute)
    else:
        entry = next(iter(entry_points(group=group, name=name)), None)
        if entry is None:
            names = ", ".join(names_in(group, built_in))
            raise NotFound(
                f"there is no {noun} of type {name[:40]!r}; there are {names}", field="type"
            )
        try:
            kind = entry.load()
        except Exception as exc:
            raise NotFound(f"the {noun} {name} cannot be imported: {exc}", field="type") from exc
    if not isinstance(kind, wanted):
        raise NotFound(f"the entry point {name} is no {wanted.__name__}", field="type")
    return kind


def described(kind: ConnectorType) -> dict[str, Any]:
    """Return a type's description for a form; secrets are ``writeOnly``."""
    schema = kind.configuration.model_json_schema(by_alias=True)
    return {"type": kind.name, "title": kind.title, "configuration": schema}


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
