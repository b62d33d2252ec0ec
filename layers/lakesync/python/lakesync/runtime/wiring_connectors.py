"""Builds what registers connectors and polls them, runs actions and takes webhooks.

Part of `lakesync.runtime.wiring`.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from lakesync.connectors.port import Outside
from lakesync.core.flows import CONNECTORS, DATABASES
from lakesync.ports import Usage
from lakesync.runtime import observe, wiring
from lakesync.runtime.deliver import asks_database, database_opener
from lakesync.runtime.polls import EventBridgePolls, Secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lakesync.actions.service import ActionAdmin, ActionService, RunNote
    from lakesync.buffer.admin_stores import ItemConnectors
    from lakesync.connectors.connector_admin import ConnectorAdmin
    from lakesync.connectors.incoming_webhooks import Webhooks
    from lakesync.connectors.large_polls import LargePolls
    from lakesync.connectors.poll import Route
    from lakesync.connectors.polls import Polls
    from lakesync.core.messages import Push, PushReceipt
    from lakesync.flows.flow_admin import FlowAdmin
    from lakesync.flows.routes import FlowRoutes
    from lakesync.gateway.destination_admin import DestinationAdmin
    from lakesync.ports import ActionRuns, Buffer, HandlerStore
    from lakesync.runtime.api.admin import DeleteNow
    from lakesync.runtime.observe import Handler, Seconds
    from lakesync.runtime.settings import (
        ActionSettings,
        AdminSettings,
        Aws,
        BufferSettings,
        IngestSettings,
        PollSettings,
        WebhookSettings,
    )

    P = TypeVar("P", bound=Polls)

# --- connectors and flows -------------------------------------------------------------------------


_OVERHEAD_BYTES: Final = 150
"""About what a delta is on the wire beside its values."""


def connector_store(settings: BufferSettings) -> ItemConnectors:
    """Return the connectors in the buffer's table."""
    from lakesync.buffer.admin_stores import ItemConnectors  # noqa: PLC0415

    return ItemConnectors(wiring.item_store(settings, settings.buffer_table))


def connector_admin(settings: AdminSettings) -> ConnectorAdmin:
    """Return the registry of connectors; imported when a route first needs it."""
    from lakesync.connectors.connector_admin import ConnectorAdmin  # noqa: PLC0415
    from lakesync.runtime.invocations import ASK_S, sources_asked_by  # noqa: PLC0415

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
        wiring.store(settings),
        wall_clock=wiring.wall_clock,
        outside=outside(settings)._replace(
            asks=sources_asked_by(wiring.invoker(settings, settings.flow_function, ASK_S))
        ),
    )


def also_removing(
    delete_now: DeleteNow, *registries: Callable[[], ConnectorAdmin | ActionAdmin]
) -> DeleteNow:
    """Return a function that deletes a gateway's connectors and handlers first, with secrets."""

    def delete(gateway: str, user: str) -> Mapping[str, object]:
        for registry in registries:
            registry().remove_all(gateway)
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
    from lakesync.runtime.polls import SchemaReports  # noqa: PLC0415

    events = cache(lambda: wiring.client(settings, "events", answer_s_max=2, attempts=1))
    reports = SchemaReports(wiring.audit(settings), settings.schema_event_bus, events)
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
    from lakesync.connectors.port import Storage  # noqa: PLC0415
    from lakesync.connectors.registry import definition_from  # noqa: PLC0415

    storage = Storage(wiring.objects(settings, settings.lake_bucket), gateway, name)
    routes = _flow_routes(settings, _parts(settings), side_by_side=True)
    return routes.route(gateway, name, definition_from(definition), storage)


def poll_now(settings: Aws, machine: str, gateway: str, name: str) -> None:
    """Begin a poll, and do not wait for it."""
    made = cache(lambda service: wiring.client(settings, service))
    EventBridgePolls(made, "", machine, "").poll_now(gateway, name)


def flow_handler(settings: PollSettings, seconds: Seconds) -> Handler:
    """Return the handler of ``functions/flow``."""
    from lakesync.runtime.invocations import (  # noqa: PLC0415
        with_counts,
        with_questions,
        with_source_questions,
    )
    from lakesync.runtime.polls import ingest_handler  # noqa: PLC0415

    opened = database_opener(settings, settings.secret_prefix, settings.database_hosts)
    counting = with_counts(ingest_handler(polls(settings), seconds), opened, seconds)
    objects = wiring.objects(settings, settings.lake_bucket)
    return with_source_questions(with_questions(counting, opened), objects, outside(settings))


def flow_admin(
    settings: AdminSettings, destinations: DestinationAdmin, connectors: ConnectorAdmin
) -> FlowAdmin:
    """Return the registry of flows; imported when a route first needs it."""
    from lakesync.flows.flow_admin import FlowAdmin  # noqa: PLC0415
    from lakesync.runtime.invocations import COUNT_S, counted_by  # noqa: PLC0415

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
    service, quotas = wiring.push_service(settings), wiring.quotas(settings)

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


# --- actions --------------------------------------------------------------------------------------


_ANSWER_S_MAX: Final = 6
"""How long an AWS service may take: with two seconds to connect, less than an action has."""


def handler_store(settings: BufferSettings) -> HandlerStore:
    """Return the action handlers in the buffer's table."""
    from lakesync.buffer.admin_stores import ItemHandlers  # noqa: PLC0415

    return ItemHandlers(wiring.item_store(settings, settings.buffer_table))


def runs(settings: ActionSettings | WebhookSettings) -> ActionRuns:
    """Return the records of actions that ran, in a table of their own."""
    from lakesync.buffer.admin_stores import ItemRuns  # noqa: PLC0415

    return ItemRuns(wiring.item_store(settings, settings.actions_table))


def action_admin(settings: AdminSettings) -> ActionAdmin:
    """Return the registry of action handlers; imported when a route first needs it."""
    from lakesync.actions.service import ActionAdmin  # noqa: PLC0415

    return ActionAdmin(
        handler_store(settings),
        secrets(settings, settings.action_secrets),
        action_outside(settings),
    )


def action_service(settings: ActionSettings) -> ActionService:
    """Return the service behind ``functions/actions``."""
    from lakesync.actions.service import ActionService  # noqa: PLC0415

    return ActionService(
        handler_store(settings),
        runs(settings),
        secrets(settings, settings.action_secrets),
        action_outside(settings),
        token=wiring.Randomness().token,
        wall_clock=wiring.wall_clock,
        audit=audit,
        bug=lambda error: observe.bug(error, route="actions"),
        epoch=wiring.buffer(settings).epoch,
    )


def action_outside(settings: AdminSettings | ActionSettings) -> Outside:
    """Return the hosts and AWS services that the operator lets handlers use."""

    @cache
    def client(service: str) -> Any:
        # One attempt: the action's handler decides whether another may be made.
        return wiring.client(settings, service, answer_s_max=_ANSWER_S_MAX, attempts=1)

    return Outside(settings.action_hosts, client, settings.database_hosts)


def audit(note: RunNote) -> None:
    """Log who ran which action, and its outcome; parameters and results are confidential."""
    fields = {
        "gateway": note.gateway,
        "user": note.user,
        "client": note.client_id,
        "actionId": note.action_id,
        "connector": note.connector,
        "actionType": note.action_type,
        "outcome": note.code or "DONE",
        "wasRun": note.was_run,
        "ms": note.took_ms,
    }
    observe.logger.info("action", extra=fields)
    observe.count("ActionsFailed" if note.code else "ActionsDone")


# --- webhooks -------------------------------------------------------------------------------------


def webhooks(settings: WebhookSettings) -> Webhooks:
    """Return the service behind ``functions/webhook``; it records webhooks beside actions."""
    from lakesync.connectors.incoming_webhooks import Webhooks  # noqa: PLC0415

    return Webhooks(
        connector_store(settings),
        secrets(settings, settings.connector_secrets),
        wiring.objects(settings, settings.lake_bucket),
        pushing(settings),
        wiring.buffer(settings),
        runs(settings),
        wall_clock=wiring.wall_clock,
        outside=outside(settings),
    )
