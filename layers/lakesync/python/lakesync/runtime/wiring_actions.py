"""Builds what runs actions and registers handlers. Part of `lakesync.runtime.wiring`."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final

from lakesync.runtime import observe, wiring, wiring_connectors

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lakesync.actions.admin import ActionAdmin
    from lakesync.actions.service import ActionService, RunNote
    from lakesync.connectors.outside import Outside
    from lakesync.ports import ActionRuns, HandlerStore
    from lakesync.runtime.api.deletion import DeleteNow
    from lakesync.runtime.settings import AdminSettings, BufferSettings
    from lakesync.runtime.settings_actions import ActionSettings
    from lakesync.runtime.settings_connectors import WebhookSettings

_ANSWER_S_MAX: Final = 6
"""How long an AWS service may take: with two seconds to connect, less than an action has."""


def handler_store(settings: BufferSettings) -> HandlerStore:
    """Return the action handlers in the buffer's table."""
    from lakesync.buffer.actions import DynamoHandlers  # noqa: PLC0415
    from lakesync.runtime.wiring_dynamo import dynamo  # noqa: PLC0415

    return DynamoHandlers(settings.buffer_table, dynamo(settings))


def runs(settings: ActionSettings | WebhookSettings) -> ActionRuns:
    """Return the records of actions that ran, in a table of their own."""
    from lakesync.buffer.actions import DynamoRuns  # noqa: PLC0415
    from lakesync.runtime.wiring_dynamo import dynamo  # noqa: PLC0415

    return DynamoRuns(settings.actions_table, dynamo(settings))


def action_admin(settings: AdminSettings) -> ActionAdmin:
    """Return the registry of action handlers; imported when a route first needs it."""
    from lakesync.actions.admin import ActionAdmin  # noqa: PLC0415

    return ActionAdmin(
        handler_store(settings),
        wiring_connectors.secrets(settings, settings.action_secrets),
        outside(settings),
    )


def action_service(settings: ActionSettings) -> ActionService:
    """Return the service behind ``functions/actions``."""
    from lakesync.actions.service import ActionService  # noqa: PLC0415

    return ActionService(
        handler_store(settings),
        runs(settings),
        wiring_connectors.secrets(settings, settings.action_secrets),
        outside(settings),
        token=wiring.Randomness().token,
        wall_clock=wiring.wall_clock,
        audit=audit,
        bug=lambda error: observe.bug(error, route="actions"),
        epoch=wiring.buffer(settings).epoch,
    )


def outside(settings: AdminSettings | ActionSettings) -> Outside:
    """Return the hosts and AWS services that the operator lets handlers use."""
    from lakesync.connectors.outside import Outside  # noqa: PLC0415

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


def and_actions(actions: Callable[[], ActionAdmin], delete_now: DeleteNow) -> DeleteNow:
    """Get a function that deletes a gateway's action handlers, with secrets, then the gateway."""

    def delete(gateway: str, user: str) -> Mapping[str, object]:
        actions().remove_all(gateway)
        return delete_now(gateway, user)

    return delete
