"""Flows: declared movements of rows from one place to another, with their direction and form.

A flow has a source and a destination: the gateway, a database, or, as a source only, a connector.
The rows that it moves are declared as for a destination: by tables, filters and column maps. What
is declared is read by `lakesync.declare.flows`.

- A flow from the gateway to a database *is* a destination (`lakesync.core.destinations`).
- All other flows are polled like connectors: their definitions are kept among those of connectors.

Laws Y1-Y12: ``docs/spec/flows.md``. The reasons: ``docs/adr/0021-flows.md``.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from lakesync.core.destinations import (
    ICEBERG,
    Destination,
    destination_from_stored,
    destination_to_json,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

GATEWAY: Final = "gateway"
"""As a source or a destination: the gateway for which the flow is declared."""
FLOW: Final = "flow"
"""The connector type under which a flow is stored, so that no other release polls it as something
else."""
CONNECTORS: Final = "connectors"
DATABASES: Final = "databases"
LAKES: Final = "lakes"
"""Where a poll runs: in the function that reaches outside systems, in the one that has the drivers,
secrets and subnets of declared databases, or in the one that also has Iceberg."""
DATABASE_TYPES: Final = frozenset({"mysql", "postgres"})
"""Types of connectors whose sources are databases, and may be private ones."""
FLOW_TABLES_MAX: Final = 100
"""Tables of one flow from a database: the progress of all of them is stored in one item."""
CONTINUOUS_MINUTES: Final = 1
"""How often a continuous flow is polled: the shortest interval of EventBridge Scheduler."""
SCHEDULED: Final = (
    "polls are started by EventBridge Scheduler, whose shortest interval is a minute; a source "
    "whose changes must be here sooner is captured (changes: true), or sends webhooks"
)
"""Why no interval is below a minute."""
SCHEDULE_MINUTES_DEFAULT: Final = 15
SCHEDULE_MINUTES_MAX: Final = 1_440
"""The longest time between two polls of a flow, as for a connector."""
SOURCE_BYTES_MAX: Final = 8_192
"""The settings of a flow's source, as JSON: they are in one item with the flow's progress."""


class ConnectorSource(NamedTuple):
    """An outside system that a connector reads."""

    type: str
    configuration: Mapping[str, Any]
    """Its settings."""


class PlainTable(NamedTuple):
    """A table that LakeSync does not maintain."""

    table: str
    """Its full name in the database."""
    key: tuple[str, ...]
    """The columns that identify a row."""
    columns: tuple[str, ...] = ()
    """Which other columns are read; empty for all."""


class DatabaseSource(NamedTuple):
    """A database in which LakeSync maintains tables: a destination of another gateway or flow."""

    kind: str
    secret: str
    gateway: str
    """The gateway whose tables in the database are read; empty if ``plain`` tables are read."""
    plain: Mapping[str, PlainTable] = MappingProxyType({})
    """Tables of other writers that are read instead, by their names here."""


Source: TypeAlias = ConnectorSource | DatabaseSource | None
"""None stands for the gateway."""


@dataclass(frozen=True, slots=True)
class Flow:
    """One declared flow."""

    name: str
    source: Source
    to: Destination
    """Where its rows are sent, and which; `to_gateway` tells whether this names a database."""
    every_minutes: int = 0
    """How often it is polled; 0 if it is fed by flushes."""
    paused: bool = False
    unknown: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def to_gateway(self) -> bool:
        """Whether its rows go to the gateway."""
        return not self.to.kind

    @property
    def place(self) -> str:
        """Where it is polled."""
        source = self.source.kind if isinstance(self.source, DatabaseSource) else ""
        if ICEBERG in {source, self.to.kind}:
            return LAKES
        if isinstance(self.source, ConnectorSource) and self.to_gateway:
            return place_of_type(self.source.type)
        reaches = isinstance(self.source, DatabaseSource) or not self.to_gateway
        return DATABASES if reaches else CONNECTORS

    def without(self, secrets: frozenset[str]) -> Flow:
        """Return the flow without those settings of its source that are secrets."""
        if not isinstance(self.source, ConnectorSource):
            return self
        public = {key: one for key, one in self.source.configuration.items() if key not in secrets}
        return replace(self, source=self.source._replace(configuration=public))


def place_of_type(connector: str) -> str:
    """Return where connectors of a type are polled, and their sources asked."""
    return DATABASES if connector in DATABASE_TYPES else CONNECTORS


def flow_to_json(flow: Flow) -> dict[str, Any]:
    """Write a flow as it is declared."""
    to = destination_to_json(flow.to)
    ends = {"database": to["kind"], "secret": to["secret"], "tableNames": to["tableNames"],
            "deletes": to["deletes"]}  # fmt: skip
    polled = {"continuous": False, "schedule": {"everyMinutes": flow.every_minutes}}
    return {
        "name": flow.name,
        "source": _source_to_json(flow.source),
        "tables": to["tables"],
        "filter": to["buckets"],
        "map": to.get("map", {}),
        "destination": GATEWAY if flow.to_gateway else ends,
        "paused": flow.paused or flow.to.paused,
    } | (polled if flow.every_minutes > CONTINUOUS_MINUTES else {"continuous": True})


def flow_of_destination(destination: Destination) -> Flow:
    """Return a declared destination as a flow."""
    return Flow(destination.name, None, destination)


def flow_to_stored(flow: Flow) -> dict[str, Any]:
    """Write a polled flow for `flow_from_stored`."""
    stored = {"source": _source_to_json(flow.source), "to": destination_to_json(flow.to)}
    return {**flow.unknown, **stored}


def flow_from_stored(
    name: str, body: Mapping[str, Any], every_minutes: int, *, paused: bool
) -> Flow:
    """Read what `flow_to_stored` wrote, in any release."""
    to, source = destination_from_stored(body["to"]), body["source"]
    unknown = {key: body[key] for key in body if key not in {"to", "source"}}
    return Flow(name, _source_from_stored(source), to, every_minutes, paused, unknown)


def _source_to_json(source: Source) -> Any:
    match source:
        case ConnectorSource(type_name, configuration):
            return {"connector": type_name, "configuration": dict(configuration)}
        case DatabaseSource(kind, secret, gateway, plain):
            where = {"database": kind, "secret": secret}
            if not plain:
                return where | {"gateway": gateway}
            return where | {"plain": {name: _plain_to_json(one) for name, one in plain.items()}}
        case _:
            return GATEWAY


def _plain_to_json(one: PlainTable) -> dict[str, Any]:
    columns = {"columns": [*one.columns]} if one.columns else {}
    return {"table": one.table, "key": [*one.key]} | columns


def _source_from_stored(body: Mapping[str, Any]) -> Source:
    if "connector" in body:
        return ConnectorSource(body["connector"], body["configuration"])
    plain = {
        name: PlainTable(one["table"], tuple(one["key"]), tuple(one.get("columns", ())))
        for name, one in body.get("plain", {}).items()
    }
    return DatabaseSource(body["database"], body["secret"], body.get("gateway", ""), plain)
