"""What registers connectors and polls them, as settings say.

Part of `lakesync.runtime.wiring`.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from lakesync.connectors.outside import Outside
from lakesync.core.flows import CONNECTORS, DATABASES
from lakesync.ports import Usage
from lakesync.runtime import observe, wiring, wiring_access
from lakesync.runtime.poll_schedules import EventBridgePolls
from lakesync.runtime.secrets import Secrets
from lakesync.runtime.wiring_deliver import asks_database, database_opener

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lakesync.buffer.connectors import DynamoConnectors
    from lakesync.connectors.admin import ConnectorAdmin
    from lakesync.connectors.large_polls import LargePolls
    from lakesync.connectors.polls import Polls
    from lakesync.connectors.routes import Route
    from lakesync.core.messages import Push, PushReceipt
    from lakesync.flows.admin import FlowAdmin
    from lakesync.flows.routes import FlowRoutes
    from lakesync.gateway.destinations import DestinationAdmin
    from lakesync.ports import Buffer
    from lakesync.runtime.api.deletion import DeleteNow
    from lakesync.runtime.observe import Handler
    from lakesync.runtime.settings import AdminSettings, Aws, BufferSettings
    from lakesync.runtime.settings_connectors import IngestSettings, PollSettings

    P = TypeVar("P", bound=Polls)

_OVERHEAD_BYTES: Final = 150
"""About what a delta is on the wire beside its values."""


def connector_store(settings: BufferSettings) -> DynamoConnectors:
    """Return the connectors in the buffer's table."""
    from lakesync.buffer.connectors import DynamoConnectors  # noqa: PLC0415
    from lakesync.runtime.wiring_dynamo import dynamo  # noqa: PLC0415

    return DynamoConnectors(settings.buffer_table, dynamo(settings))


def connector_admin(settings: AdminSettings) -> ConnectorAdmin:
    """Return the registry of connectors; imported when a route first needs it."""
    from lakesync.connectors.admin import ConnectorAdmin  # noqa: PLC0415
    from lakesync.runtime.database_checks import ASK_S  # noqa: PLC0415
    from lakesync.runtime.source_questions import sources_asked_by  # noqa: PLC0415

    schedules = EventBridgePolls(
        cache(lambda service: wiring.client(settings, service)),
        settings.poll_schedule_group,
        settings.poll_machine,
        settings.poll_schedule_role,
    )
    return ConnectorAdmin(
        connector_store(settings),
        secrets(settings, settings.connector_secrets),
        schedules,
        wiring.objects(settings, settings.lake_bucket),
        wiring_access.store(settings),
        wall_clock=wiring.wall_clock,
        outside=outside(settings)._replace(
            asks=sources_asked_by(wiring.invoker(settings, settings.flow_function, ASK_S))
        ),
    )


def and_connectors(connectors: Callable[[], ConnectorAdmin], delete_now: DeleteNow) -> DeleteNow:
    """Return a function that deletes a gateway's connectors, with secrets, then the gateway."""

    def delete(gateway: str, user: str) -> Mapping[str, object]:
        connectors().remove_all(gateway)
        return delete_now(gateway, user)

    return delete


def secrets(settings: Aws, prefix: str) -> Secrets:
    """Return secrets below a prefix."""
    made: Callable[[], Any] = cache(lambda: wiring.client(settings, "secretsmanager"))
    return Secrets(made, prefix)


def outside(settings: AdminSettings | IngestSettings) -> Outside:
    """Return the outside access of connectors: of AWS, what ``ConnectorPolicy`` allows."""
    return Outside(
        settings.connector_hosts,
        cache(lambda service: wiring.client(settings, service)),
        settings.database_hosts,
        settings.metric_namespaces,
    )


def polls(settings: PollSettings) -> Polls:
    """Return the polls behind ``functions/ingest`` and ``functions/flow``."""
    from lakesync.connectors.polls import Polls  # noqa: PLC0415

    return _polls(Polls, settings)


def large_polls(settings: PollSettings) -> LargePolls:
    """Return the polls behind the Glue job of flows."""
    from lakesync.connectors.large_polls import LargePolls  # noqa: PLC0415

    return _polls(LargePolls, settings)


def _polls(kind: type[P], settings: PollSettings) -> P:
    parts = _parts(settings)
    return kind(
        connector_store(settings),
        parts.kept,
        wiring.objects(settings, settings.lake_bucket),
        parts.push,
        parts.rows,
        wall_clock=wiring.wall_clock,
        outside=parts.allowed,
        flows=_flow_routes(settings, parts),
        **_reports(settings),
    )


def _reports(settings: PollSettings) -> dict[str, Any]:
    """Return what reports changes of sources' schemas, where they are recorded."""
    if not settings.audit_table:
        return {}
    from lakesync.runtime.schema_reports import SchemaReports  # noqa: PLC0415

    events = cache(lambda: wiring.client(settings, "events", answer_s_max=2, attempts=1))
    reports = SchemaReports(wiring_access.audit(settings), settings.schema_event_bus, events)
    return {"report": reports}


class _Parts(NamedTuple):
    """What polls and the routes of their flows have in common: a secret is forgotten for both."""

    kept: Secrets
    push: Callable[[str, Push], PushReceipt]
    rows: Buffer
    allowed: Outside


def _parts(settings: PollSettings) -> _Parts:
    return _Parts(
        secrets(settings, settings.connector_secrets),
        pushing(settings),
        wiring.buffer(settings),
        outside(settings),
    )


def _flow_routes(
    settings: PollSettings, parts: _Parts, *, side_by_side: bool = False
) -> FlowRoutes:
    from lakesync.flows.routes import FlowRoutes  # noqa: PLC0415

    return FlowRoutes(
        parts.kept,
        parts.push,
        parts.rows,
        database_opener(settings, settings.secret_prefix, settings.database_hosts),
        wall_clock=wiring.wall_clock,
        outside=parts.allowed,
        place=settings.place or (DATABASES if settings.secret_prefix else CONNECTORS),
        rows_min=settings.flow_job_rows,
        side_by_side=side_by_side,
    )


def route(settings: PollSettings, gateway: str, name: str, definition: bytes) -> Route:
    """Return from where to where a flow goes, for one task of a job.

    Raises:
        LakeSyncError: its source or its destination cannot be made.
    """
    from lakesync.connectors.definition import definition_from  # noqa: PLC0415
    from lakesync.connectors.storage import Storage  # noqa: PLC0415

    storage = Storage(wiring.objects(settings, settings.lake_bucket), gateway, name)
    routes = _flow_routes(settings, _parts(settings), side_by_side=True)
    return routes.route(gateway, name, definition_from(definition), storage)


def poll_now(settings: Aws, machine: str, gateway: str, name: str) -> None:
    """Begin a poll, and do not wait for it."""
    made = cache(lambda service: wiring.client(settings, service))
    EventBridgePolls(made, "", machine, "").poll_now(gateway, name)


def flow_handler(settings: PollSettings, seconds: Callable[[], float]) -> Handler:
    """Return the handler of ``functions/flow``."""
    from lakesync.runtime.database_checks import with_questions  # noqa: PLC0415
    from lakesync.runtime.flow_counts import with_counts  # noqa: PLC0415
    from lakesync.runtime.ingest import ingest_handler  # noqa: PLC0415
    from lakesync.runtime.source_questions import with_source_questions  # noqa: PLC0415

    opened = database_opener(settings, settings.secret_prefix, settings.database_hosts)
    counting = with_counts(ingest_handler(polls(settings), seconds), opened, seconds)
    objects = wiring.objects(settings, settings.lake_bucket)
    return with_source_questions(with_questions(counting, opened), objects, outside(settings))


def flow_admin(
    settings: AdminSettings, destinations: DestinationAdmin, connectors: ConnectorAdmin
) -> FlowAdmin:
    """Return the registry of flows; imported when a route first needs it."""
    from lakesync.flows.admin import FlowAdmin  # noqa: PLC0415
    from lakesync.runtime.flow_counts import COUNT_S, counted_by  # noqa: PLC0415

    return FlowAdmin(
        wiring.buffer(settings),
        destinations,
        connectors,
        connector_store(settings),
        counted_by(
            wiring.invoker(settings, settings.flow_function, COUNT_S),
            wiring.invoker(settings, settings.lake_flow_function, COUNT_S),
        ),
        wall_clock=wiring.wall_clock,
        asks=asks_database(settings, settings.flow_function),
    )


def pushing(settings: IngestSettings) -> Callable[[str, Push], PushReceipt]:
    """Return the push service, within the gateway's quota."""
    service, quotas = wiring.push_service(settings), wiring_access.quotas(settings)

    def push(gateway: str, push: Push) -> PushReceipt:
        quotas.check(gateway)
        size = sum(
            _OVERHEAD_BYTES + sum(len(name) + len(value) for name, value in delta.columns)
            for _, delta in push.deltas
        )
        usage = Usage(1, len(push.deltas), size)
        quotas.use(gateway, usage)
        receipt = service.push(gateway, push)
        observe.count("DeltasAccepted", receipt.accepted)
        observe.usage(gateway, usage)
        return receipt

    return push
