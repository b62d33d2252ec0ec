"""Flows: declared movements of rows from one place to another, with their direction and form.

A flow has a source and a destination: the gateway, a database, or, as a source only, a connector.
The rows that it moves are declared as for a destination: by tables, filters and column maps. A
declaration that is received is read strictly, every fault at once, each with its path.

- A flow from the gateway to a database *is* a destination (`lakesync.core.destinations`).
- All other flows are polled like connectors: their definitions are kept among those of connectors.

Laws Y1-Y12: ``docs/spec/flows.md``. The reasons: ``docs/adr/0021-flows.md``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from math import ceil
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from lakesync.core.config import GatewayConfig
from lakesync.core.destinations import (
    ICEBERG,
    KINDS,
    SECRET,
    Destination,
    DestinationReader,
    destination_from_stored,
    destination_to_json,
)
from lakesync.core.names import is_table_name
from lakesync.core.wording import plural
from lakesync.errors import Fault, FlowRefused

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

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


# --- a declaration as received --------------------------------------------------------------------


_FIELDS: Final = frozenset(
    {"name", "source", "tables", "filter", "map", "destination", "schedule", "continuous"}
)
SCHEDULE_MINUTES_DEFAULT: Final = 15
SCHEDULE_MINUTES_MAX: Final = 1_440
"""The longest time between two polls of a flow, as for a connector."""
SOURCE_BYTES_MAX: Final = 8_192
"""The settings of a flow's source, as JSON: they are in one item with the flow's progress."""
_FAULTS_SHOWN_MAX: Final = 3
_PATHS: Final = {
    "kind": "destination.database",
    "secret": "destination.secret",
    "tableNames": "destination.tableNames",
    "deletes": "destination.deletes",
    "buckets": "filter",
}
"""Where a destination's fields are in the declaration of a flow."""
_ENDS: Final = '"gateway", {"database": …, "secret": …}'
_PLACEHOLDER: Final = "x"


def read_flow(
    body: object, config: GatewayConfig, gateway: str, kinds: Collection[str] = KINDS
) -> Flow:
    """Read a declaration, as ``POST /admin/flows`` accepts it.

    Args:
        body: the declaration.
        config: the gateway's; what is read from the gateway is checked against its schemas.
        gateway: its id.
        kinds: the kinds of databases that there are.

    Raises:
        FlowRefused: it is malformed, or it could not move anything; names every fault.
    """
    reader = _Reader(config, gateway, kinds)
    flow = reader.flow(body)
    if reader.faults:
        listed = "; ".join(
            f"{fault.path}: {fault.message}" for fault in reader.faults[:_FAULTS_SHOWN_MAX]
        )
        raise FlowRefused(
            f"{plural(len(reader.faults), 'fault')} in the flow: {listed}", faults=reader.faults
        )
    return flow


class _Reader:
    """Reads a declaration, and continues after a fault."""

    def __init__(self, config: GatewayConfig, gateway: str, kinds: Collection[str]) -> None:
        self._config = config
        self._kinds = kinds
        self._gateway = gateway
        self.faults: list[Fault] = []

    def fault(self, path: str, message: str) -> None:
        self.faults.append(Fault(path, message))

    def flow(self, body: object) -> Flow:
        if not isinstance(body, dict):
            self.fault("body", "must be an object")
            return Flow("", None, Destination("", "", ""))
        for unknown in sorted(map(str, body.keys() - _FIELDS)):
            self.fault(unknown[:64], "there is no such field")
        source = self._source(body.get("source"))
        to_gateway = body.get("destination") == GATEWAY
        if source is None and to_gateway:
            self.fault("destination", "is the source as well: nothing would move")
        to = self._to(body, from_gateway=source is None, to_gateway=to_gateway)
        if isinstance(source, DatabaseSource):
            if not 0 < len(to.tables) <= FLOW_TABLES_MAX:
                self.fault("tables", f"name 1 to {FLOW_TABLES_MAX} tables of the database")
            if source.plain and not to.tables <= source.plain.keys():
                named = ", ".join(sorted(to.tables - source.plain.keys()))
                self.fault("tables", f"say in source.plain which table is {named}")
            if source.secret == to.secret and not source.plain:
                self.fault("destination.secret", "is the source as well: nothing would move")
        every = self._every(body, from_gateway=source is None)
        if source is not None:  # no more often than its destination may be written
            every = max(every, ceil(to.pace.gather_ms / 60_000))
        return Flow(to.name, source, to, every)

    def _to(self, body: Mapping[str, Any], *, from_gateway: bool, to_gateway: bool) -> Destination:
        where = self._destination(body.get("destination"), to_gateway=to_gateway)
        declared = where | {
            "tables": body.get("tables", []),
            "buckets": body.get("filter", []),
            "map": body.get("map", {}),
        }
        # The gateway does not know the columns of rows that come from elsewhere.
        config = self._config if from_gateway else GatewayConfig()
        reader = DestinationReader(config, self._kinds, registered=from_gateway)
        name = body.get("name")
        to = reader.destination(name if isinstance(name, str) else "", declared)
        for path, message in reader.faults:
            head = path.partition("[")[0].partition(".")[0]
            self.fault(_PATHS.get(head, head) + path[len(head) :], message)
        if to_gateway:
            return Destination(to.name, "", "", to.tables, to.rows, maps=to.maps)
        return to

    def _destination(self, value: object, *, to_gateway: bool) -> dict[str, Any]:
        unnamed = {"kind": KINDS[0], "secret": _PLACEHOLDER}
        if to_gateway:
            return unnamed
        if not isinstance(value, dict):
            self.fault("destination", f"must be one of {_ENDS}")
            return unnamed
        allowed = {"database", "secret", "tableNames", "deletes"}
        for unknown in sorted(map(str, value.keys() - allowed)):
            self.fault(f"destination.{unknown[:64]}", "there is no such field")
        named = {key: value[key] for key in ("tableNames", "deletes") if key in value}
        return named | {"kind": value.get("database"), "secret": value.get("secret")}

    def _source(self, value: object) -> Source:
        if value == GATEWAY:
            return None
        if isinstance(value, dict) and "connector" in value:
            return self._connector(value)
        if isinstance(value, dict) and "database" in value:
            return self._database(value)
        self.fault("source", f'must be one of {_ENDS}, {{"connector": …, "configuration": {{…}}}}')
        return ConnectorSource("", {})

    def _connector(self, value: Mapping[str, Any]) -> ConnectorSource:
        for unknown in sorted(map(str, value.keys() - {"connector", "configuration"})):
            self.fault(f"source.{unknown[:64]}", "there is no such field")
        kind, settings = value["connector"], value.get("configuration", {})
        if not isinstance(kind, str) or not kind:
            self.fault("source.connector", "names a type of connector")
        if not isinstance(settings, dict) or len(json.dumps(settings)) > SOURCE_BYTES_MAX:
            self.fault(
                "source.configuration", f"must be an object of at most {SOURCE_BYTES_MAX} bytes"
            )
            settings = {}
        return ConnectorSource(str(kind), settings)

    def _database(self, value: Mapping[str, Any]) -> DatabaseSource:
        for unknown in sorted(map(str, value.keys() - {"database", "secret", "gateway", "plain"})):
            self.fault(f"source.{unknown[:64]}", "there is no such field")
        kind, secret = value["database"], value.get("secret")
        gateway = value.get("gateway", self._gateway)
        if kind not in self._kinds:
            self.fault("source.database", f"must be one of {', '.join(self._kinds)}")
        if not isinstance(secret, str) or not SECRET.fullmatch(secret):
            self.fault(
                "source.secret",
                "must name the secret that holds the URL, without the prefix of the gateway's "
                "secrets: 1 to 64 letters, digits, _ . or -",
            )
        if not isinstance(gateway, str) or not gateway:
            self.fault("source.gateway", "must be the id of the gateway whose tables it has")
        if "plain" not in value:
            return DatabaseSource(str(kind), str(secret), str(gateway))
        if kind != ICEBERG:
            self.fault(
                "source.plain",
                "tables of other writers are read of iceberg; of a PostgreSQL or MySQL by the "
                "connector of its name",
            )
        if "gateway" in value:
            self.fault("source.gateway", "plain tables are no gateway's: leave out one of them")
        return DatabaseSource(str(kind), str(secret), "", self._plain(value["plain"]))

    def _plain(self, value: object) -> dict[str, PlainTable]:
        """Read the declared tables of other writers, and the columns that identify their rows."""
        if not isinstance(value, dict) or not value:
            self.fault("source.plain", 'must be {"name": {"table": "namespace.table", "key": […]}}')
            return {}
        plain: dict[str, PlainTable] = {}
        for name, one in value.items():
            path = f"source.plain.{str(name)[:64]}"
            if not isinstance(name, str) or not is_table_name(name):
                self.fault(path, "is no name that a table may have here")
            fields = one if isinstance(one, dict) else {}
            for unknown in sorted(map(str, fields.keys() - {"table", "key", "columns"})):
                self.fault(f"{path}.{unknown[:64]}", "there is no such field")
            table, key = fields.get("table"), fields.get("key")
            if not isinstance(table, str) or "." not in table.strip("."):
                self.fault(f"{path}.table", "must be its name with its namespace: raw.orders")
            if not _names(key):
                self.fault(
                    f"{path}.key",
                    "must name the columns that tell rows apart: Iceberg's tables have no key",
                )
            columns = _names(fields.get("columns", ()))
            if "columns" in fields and not columns:
                self.fault(f"{path}.columns", "must name columns; leave it out for all")
            plain[str(name)] = PlainTable(str(table), _names(key), columns)
        return plain

    def _every(self, body: Mapping[str, Any], *, from_gateway: bool) -> int:
        """Return how often it is polled, in minutes."""
        continuous, schedule = body.get("continuous", False), body.get("schedule")
        if not isinstance(continuous, bool):
            self.fault("continuous", "must be true or false")
        if schedule is not None and continuous is True:
            self.fault("schedule", "a flow is continuous or has a schedule")
        if from_gateway:
            if schedule is not None:
                self.fault("schedule", "what comes from the gateway follows each flush: leave it "
                           "out, or pause the flow")  # fmt: skip
            return 0
        if continuous is True:
            return CONTINUOUS_MINUTES
        if schedule is None:
            return SCHEDULE_MINUTES_DEFAULT
        every = schedule.get("everyMinutes") if isinstance(schedule, dict) else None
        if isinstance(every, int | float) and every < 1 and not isinstance(every, bool):
            self.fault("schedule", f"everyMinutes is at least 1: {SCHEDULED}")
            return SCHEDULE_MINUTES_DEFAULT
        if type(every) is int and 1 <= every <= SCHEDULE_MINUTES_MAX and len(schedule) == 1:
            return every
        self.fault(
            "schedule",
            f'must be {{"everyMinutes": n}}, a whole number from 1 to {SCHEDULE_MINUTES_MAX}',
        )
        return SCHEDULE_MINUTES_DEFAULT


def _names(value: object) -> tuple[str, ...]:
    """Return a list of names; an empty one if the value is not such a list."""
    is_list = isinstance(value, list) and all(isinstance(each, str) and each for each in value)
    return tuple(value) if is_list and isinstance(value, list) else ()
