"""Connectors and flows, as administrators declare them.

The settings of each type of connector are a model of its own; see `lakesync.connectors.registry`.
Laws N7: ``docs/spec/connectors.md``; Y1-Y12: ``docs/spec/flows.md``.
"""

from __future__ import annotations

import json
import re
from math import ceil
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import Discriminator, Field, Tag

from lakesync.core.config import GatewayConfig
from lakesync.core.destinations import ICEBERG, KINDS, Destination
from lakesync.core.flows import (
    CONTINUOUS_MINUTES,
    FLOW_TABLES_MAX,
    GATEWAY,
    SCHEDULE_MINUTES_DEFAULT,
    SCHEDULE_MINUTES_MAX,
    SCHEDULED,
    SOURCE_BYTES_MAX,
    ConnectorSource,
    DatabaseSource,
    Flow,
    PlainTable,
    Source,
)
from lakesync.declare import (
    NOT_GIVEN,
    TABLE_NAME,
    Declaration,
    Form,
    apart_from,
    checked,
    read,
    refuse,
    text_form,
)
from lakesync.declare.destinations import (
    DESTINATION_NAME,
    KIND,
    SECRET_NAME,
    Buckets,
    DeclaredRows,
    Deletes,
    TableNames,
    kind_faults,
    place_faults,
    rows_faults,
    rows_of,
)
from lakesync.declare.sync_rules import named
from lakesync.errors import Fault, FlowRefused

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

# --- connectors -----------------------------------------------------------------------------------


EVERY_MINUTES_DEFAULT: Final = 15
EVERY_MINUTES_MAX: Final = 1_440
"""The longest polling interval: with a longer one, a stopped connector would not be noticed."""
CONFIGURATION_BYTES_MAX: Final = 16_384
"""A connector's settings: they lie in one item with how far it is."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
CONNECTOR_NAME: Final = text_form(
    _NAME.fullmatch,
    "a connector's name is 1 to 64 letters, digits, _ or -, and begins with a letter or digit",
    pattern=f"^{_NAME.pattern}$",
)


def minutes(most: int) -> Form:
    """Return the form of an interval between polls."""

    def read(value: object) -> int:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and value < 1:  # type: ignore[operator]  # a number
            raise ValueError(f"everyMinutes is at least 1: {SCHEDULED}")
        if type(value) is not int or value > most:
            raise ValueError(f"everyMinutes is a whole number from 1 to {most}")
        return value

    return Form(read, {"type": "integer", "minimum": 1, "maximum": most})


def settings(bytes_max: int) -> Form:
    def read(value: object) -> object:
        if not isinstance(value, dict) or len(json.dumps(value)) > bytes_max:
            raise ValueError(f"must be an object of at most {bytes_max} bytes")
        return value

    return Form(read, {"type": "object"})


class DeclaredConnector(Declaration):
    """A connector that somebody asks to register; its settings have its secrets."""

    name: Annotated[str, CONNECTOR_NAME]
    type: Annotated[str, text_form(lambda _: True, "names a type of connector")]
    configuration: Annotated[dict[str, Any], settings(CONFIGURATION_BYTES_MAX)] = Field({})
    every_minutes: Annotated[int, minutes(EVERY_MINUTES_MAX)] = EVERY_MINUTES_DEFAULT
    check: bool = Field(
        default=True, description="Check with the source first, before anything is registered."
    )


def read_connector(body: object) -> DeclaredConnector:
    """Read a connector as ``POST /admin/connectors`` accepts it.

    Raises:
        ValidationFailed: it is malformed; names every fault.
    """
    return checked(DeclaredConnector, body, "connector")


# --- flows ----------------------------------------------------------------------------------------


_ENDS: Final = '"gateway", {"database": …, "secret": …}'
_CONNECTOR: Final = '{"connector": …, "configuration": {…}}'
_NAMES_RULE: Final = "must name columns; leave it out for all"
_KEY_RULE: Final = "must name the columns that tell rows apart: Iceberg's tables have no key"


def _columns(sentence: str) -> Form:
    def read_columns(value: object) -> tuple[str, ...]:
        if not isinstance(value, list) or not value:
            raise ValueError(sentence)
        if not all(isinstance(one, str) and one for one in value):
            raise ValueError(sentence)
        return tuple(value)

    return Form(read_columns, {"type": "array", "items": {"type": "string"}, "minItems": 1})


class DeclaredConnectorSource(Declaration):
    """An outside system that a connector reads."""

    connector: Annotated[str, text_form(bool, "names a type of connector")]
    configuration: Annotated[dict[str, Any], settings(SOURCE_BYTES_MAX)] = Field({})


class DeclaredPlainTable(Declaration):
    """A table that LakeSync does not maintain."""

    table: Annotated[
        str,
        text_form(
            lambda name: "." in name.strip("."), "must be its name with its namespace: raw.orders"
        ),
    ]
    key: Annotated[tuple[str, ...], _columns(_KEY_RULE)]
    columns: Annotated[tuple[str, ...], _columns(_NAMES_RULE)] = ()


class DeclaredDatabaseSource(Declaration):
    """A database in which LakeSync maintains tables, or tables of other writers in it."""

    database: Annotated[str, KIND]
    secret: Annotated[str, SECRET_NAME]
    gateway: Annotated[
        str, text_form(bool, "must be the id of the gateway whose tables it has")
    ] = Field("", description="Whose tables; this gateway's without it.")
    plain: dict[Annotated[str, TABLE_NAME], DeclaredPlainTable] = Field(
        {}, description="Tables of other writers that are read instead, by their names here."
    )


class DeclaredDatabaseEnd(Declaration):
    """A database that receives rows."""

    database: Annotated[str, KIND]
    secret: Annotated[str, SECRET_NAME]
    table_names: TableNames = Field({})
    deletes: Deletes = ""


class DeclaredSchedule(Declaration):
    """How often a flow is polled."""

    every_minutes: Annotated[int, minutes(SCHEDULE_MINUTES_MAX)]


def _which(value: object) -> str | None:
    if value == GATEWAY:
        return "<form gateway>"
    if not isinstance(value, dict):
        return None
    return next((f"<form {one}>" for one in ("connector", "database") if one in value), None)


_Gateway = Annotated[Literal["gateway"], Tag("<form gateway>")]


class DeclaredFlow(DeclaredRows):
    """A movement of rows from one place to another."""

    name: Annotated[str, DESTINATION_NAME]
    source: Annotated[
        _Gateway
        | Annotated[DeclaredConnectorSource, Tag("<form connector>")]
        | Annotated[DeclaredDatabaseSource, Tag("<form database>")],
        Discriminator(
            _which,
            custom_error_type="end",
            custom_error_message=f"must be one of {_ENDS}, {_CONNECTOR}",
        ),
    ]
    filter: Buckets = Field([])
    destination: Annotated[
        _Gateway | Annotated[DeclaredDatabaseEnd, Tag("<form database>")],
        Discriminator(
            _which, custom_error_type="end", custom_error_message=f"must be one of {_ENDS}"
        ),
    ]
    schedule: DeclaredSchedule = Field(default=NOT_GIVEN)
    continuous: bool = Field(
        default=False, description="Each minute; from the gateway, behind each flush."
    )


def read_flow(
    body: object, config: GatewayConfig, gateway: str, kinds: Collection[str] = KINDS
) -> Flow:
    """Read a declaration, as ``POST /admin/flows`` accepts it.

    Args:
        config: the gateway's; what is read from the gateway is checked against its schemas.

    Raises:
        FlowRefused: it is malformed, or it could not move anything; names every fault.
    """
    declared, faults = read(DeclaredFlow, body)
    unfit = [
        *_end_faults(declared, config, kinds),
        *_source_faults(declared, kinds),
        *_schedule_faults(declared),
    ]
    refuse(FlowRefused, "flow", [*faults, *apart_from(faults, unfit)])
    source, to = _source(declared, gateway), _to(declared)
    every = _every_minutes(declared)
    if source is not None:  # no more often than its destination may be written
        every = max(every, ceil(to.pace.gather_ms / 60_000))
    return Flow(to.name, source, to, every)


def _end_faults(
    declared: DeclaredFlow, config: GatewayConfig, kinds: Collection[str]
) -> Iterator[Fault]:
    from_gateway = declared.source == GATEWAY
    # The gateway does not know the columns of rows that come from elsewhere.
    known = config if from_gateway else GatewayConfig()
    yield from rows_faults(declared, declared.filter, "filter", known)
    end = declared.destination
    if from_gateway and end == GATEWAY:
        yield Fault("destination", "is the source as well: nothing would move")
    if not isinstance(end, DeclaredDatabaseEnd):
        return
    path = "destination.database"
    yield from kind_faults(end.database, kinds, path, from_gateway=from_gateway)
    tables = named(declared.tables)
    for path, message in place_faults(end, end.database, tables, known, registered=from_gateway):
        yield Fault(f"destination.{path}", message)


def _source_faults(declared: DeclaredFlow, kinds: Collection[str]) -> Iterator[Fault]:
    source, end = declared.source, declared.destination
    if not isinstance(source, DeclaredDatabaseSource):
        return
    yield from kind_faults(source.database, kinds, "source.database")
    tables = named(declared.tables)
    if len(tables) not in range(1, FLOW_TABLES_MAX + 1):
        yield Fault("tables", f"name 1 to {FLOW_TABLES_MAX} tables of the database")
    into = end.secret if isinstance(end, DeclaredDatabaseEnd) else None
    if not source.plain and source.secret and source.secret == into:
        yield Fault("destination.secret", "is the source as well: nothing would move")
    if "plain" not in source.model_fields_set:
        return
    if source.database != ICEBERG:
        yield Fault("source.plain", "tables of other writers are read of iceberg; of a PostgreSQL "
                    "or MySQL by the connector of its name")  # fmt: skip
    if "gateway" in source.model_fields_set:
        yield Fault("source.gateway", "plain tables are no gateway's: leave out one of them")
    plain: Any = source.plain
    if plain == {}:
        yield Fault("source.plain",
                    'must be {"name": {"table": "namespace.table", "key": […]}}')  # fmt: skip
    missing = sorted(filter(None, tables - plain.keys())) if plain else []
    if missing:
        yield Fault("tables", f"say in source.plain which table is {', '.join(missing)}")


def _schedule_faults(declared: DeclaredFlow) -> Iterator[Fault]:
    if "schedule" not in declared.model_fields_set:
        return
    if declared.continuous:
        yield Fault("schedule", "a flow is continuous or has a schedule")
    if declared.source == GATEWAY:
        yield Fault("schedule", "what comes from the gateway follows each flush: leave it out, or "
                    "pause the flow")  # fmt: skip


def _every_minutes(declared: DeclaredFlow) -> int:
    """Return how often it is polled; 0 if it is fed by flushes."""
    if declared.source == GATEWAY:
        return 0
    if declared.continuous:
        return CONTINUOUS_MINUTES
    given = "schedule" in declared.model_fields_set
    return declared.schedule.every_minutes if given else SCHEDULE_MINUTES_DEFAULT


def _source(declared: DeclaredFlow, gateway: str) -> Source:
    match declared.source:
        case DeclaredConnectorSource() as source:
            return ConnectorSource(source.connector, source.configuration)
        case DeclaredDatabaseSource() as source:
            plain = {
                name: PlainTable(one.table, one.key, one.columns)
                for name, one in source.plain.items()
            }
            owner = "" if plain else source.gateway or gateway
            return DatabaseSource(source.database, source.secret, owner, plain)
        case _:
            return None


def _to(declared: DeclaredFlow) -> Destination:
    tables, rows = named(declared.tables), rows_of(declared.filter)
    maps, end = MappingProxyType(declared.maps()), declared.destination
    if not isinstance(end, DeclaredDatabaseEnd):
        return Destination(declared.name, "", "", tables, rows, maps=maps)
    names = MappingProxyType(dict(end.table_names))
    return Destination(
        declared.name, end.database, end.secret, tables, rows, names, end.deletes, maps
    )
