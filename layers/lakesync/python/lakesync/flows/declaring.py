"""Compiles declarations of flows to those of connectors and destinations, and compares them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lakesync.connectors.definition import definition_from
from lakesync.connectors.registered import secrets_in
from lakesync.connectors.registry import (
    BUILT_IN,
    configured,
    connector_type,
    secret_names,
    tables_of,
)
from lakesync.core.flows import FLOW, LAKES, ConnectorSource, flow_from_stored, flow_to_json
from lakesync.core.plural import plural
from lakesync.errors import Fault, FlowRefused, LakeSyncError

if TYPE_CHECKING:
    from lakesync.core.flows import Flow
    from lakesync.ports import StoredConnector

_FAULTS_SHOWN_MAX: Final = 3
_DLT: Final = "dlt"
_NOT_TO_LAKES: Final = (
    "dlt and connectors of your own have no room beside Iceberg in one function: lead them into "
    "the gateway, or into a database, and a flow from there to Iceberg"
)


def flow_of(stored: StoredConnector) -> Flow | None:
    """Return the flow that a connector is; None if it is not a flow."""
    definition = definition_from(stored.definition)
    if definition.type != FLOW:
        return None
    return flow_from_stored(
        stored.name, definition.configuration, definition.every_minutes, paused=definition.paused
    )


def check_source(flow: Flow) -> None:
    """Check the settings of a flow's connector, and that it reads the named tables.

    Raises:
        FlowRefused: they are invalid.
    """
    if not isinstance(flow.source, ConnectorSource):
        return
    try:
        kind = connector_type(flow.source.type)
        settings = configured(kind, dict(flow.source.configuration))
        tables = {*tables_of(kind, settings).values()}
    except LakeSyncError as error:
        at = f"source.{error.field}" if error.field else "source"
        raise _refused(
            [Fault(at.replace("source.type", "source.connector"), error.message)]
        ) from error
    if flow.place == LAKES and not (flow.source.type in BUILT_IN and flow.source.type != _DLT):
        raise _refused([Fault("source.connector", _NOT_TO_LAKES)])
    unknown = sorted(({*flow.to.tables} | {*flow.to.maps} | flow.to.rows.tables()) - tables)
    if unknown:
        message = f"its source gives {', '.join(sorted(tables))}"
        raise _refused(
            [Fault("tables", f"there is no table {name}: {message}") for name in unknown]
        )


def _refused(faults: list[Fault]) -> FlowRefused:
    listed = "; ".join(f"{fault.path}: {fault.message}" for fault in faults[:_FAULTS_SHOWN_MAX])
    return FlowRefused(f"{plural(len(faults), 'fault')} in the flow: {listed}", faults=faults)


def public(flow: Flow) -> Flow:
    """Return a flow without the secrets of its source."""
    if not isinstance(flow.source, ConnectorSource):
        return flow
    return flow.without(secret_names(connector_type(flow.source.type)))


def hidden_in(flow: Flow) -> dict[str, str]:
    """Return the secret settings of a flow's source."""
    if not isinstance(flow.source, ConnectorSource):
        return {}
    return secrets_in(flow.source.configuration, secret_names(connector_type(flow.source.type)))


def shown_flow(flow: Flow) -> dict[str, Any]:
    """Return a flow as administrators see it."""
    return flow_to_json(public(flow))


def says_same(declared: Flow, wanted: Flow) -> bool:
    """Return whether a declaration equals the one in force; secrets are not compared."""
    return {**shown_flow(declared), "paused": False} == {**shown_flow(wanted), "paused": False}


def as_destination(flow: Flow) -> dict[str, Any]:
    """Return a flow from the gateway as the declaration of a destination."""
    shown = flow_to_json(flow)
    ends = shown["destination"]
    return {
        "kind": ends["database"],
        "secret": ends["secret"],
        "tables": shown["tables"],
        "buckets": shown["filter"],
        "tableNames": ends["tableNames"],
        "deletes": ends["deletes"],
        "map": shown["map"],
    }
