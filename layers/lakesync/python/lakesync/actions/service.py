"""The action handlers of a gateway: registered by administrators, run by clients.

Administration of action handlers: registered, listed, removed. Secrets are removed from the
settings before anything else is stored, and are passed only to the handler itself.

The types of action handlers: those of this package, and those that others add by entry point. A
package adds a type by an entry point of the group ``lakesync.actions`` that names a `HandlerType`.

Law X6: ``docs/spec/actions.md``.
"""

from __future__ import annotations

import time
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lakesync.actions.engine import RUN_MS_MAX, Engine, HandlerType, Prepared, check_params
from lakesync.actions.registrations import Registration, stored_registration
from lakesync.adapters.database_types import loaded, names_in
from lakesync.connectors.registry import configured, secret_names
from lakesync.core.clock import stamp
from lakesync.core.gateway_identity import check_identity
from lakesync.core.messages import Action, ActionAnswers, ActionDescription, ActionOutcome, refusal
from lakesync.errors import (
    ActionNotSupported,
    Conflict,
    Forbidden,
    InternalError,
    LakeSyncError,
    NotFound,
    RateLimited,
    Unavailable,
    ValidationFailed,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lakesync.actions.engine import ActionHandler, SupportedAction
    from lakesync.actions.registrations import Asker
    from lakesync.connectors.port import Outside
    from lakesync.core.messages import ActionPush
    from lakesync.ports import ActionRuns, HandlerStore, SecretStore, WallClock

REGISTRATIONS_REMEMBERED_MAX: Final = 64
"""Registrations that one process remembers: each is read and checked once."""
_MINUTE_S: Final = 60


class RunNote(NamedTuple):
    """One action, for the audit: who requested what, and its outcome. No parameters, no data."""

    gateway: str
    user: str
    client_id: str
    action_id: str
    connector: str
    action_type: str
    code: str
    """Empty: it was done."""
    was_run: bool
    """Whether its handler was called; else it was refused, or the recorded outcome was returned."""
    took_ms: int


class ActionService:
    """Runs actions of clients, and lists them.

    Args:
        store: the action handlers.
        runs: the record of actions.
        secrets: those of the handlers.
        outside: what the operator lets handlers use.
        token: gives a name that is never given again.
        wall_clock: the time.
        audit: receives each action.
        bug: receives faults of ours, or of a handler.
        epoch: gives a gateway's epoch.
    """

    def __init__(
        self,
        store: HandlerStore,
        runs: ActionRuns,
        secrets: SecretStore,
        outside: Outside,
        *,
        token: Callable[[], str],
        wall_clock: WallClock,
        audit: Callable[[RunNote], None],
        bug: Callable[[BaseException], None],
        epoch: Callable[[str], str],
    ) -> None:
        self._epoch = epoch
        self._store = store
        self._runs = runs
        self._secrets = secrets
        self._outside = outside
        self._wall_clock = wall_clock
        self._audit = audit
        self._bug = bug
        self._described: dict[
            tuple[str, str], tuple[bytes, Registration, Mapping[str, SupportedAction]]
        ] = {}
        self._engine = Engine(runs, self._prepared, token=token, wall_clock=wall_clock, note=bug)

    def push(
        self, gateway: str, asker: Asker, push: ActionPush, left_ms: Callable[[], int]
    ) -> ActionAnswers:
        """Run actions one after another; each has its own outcome.

        Args:
            gateway: whose.
            asker: the caller, by a verified token.
            push: the actions.
            left_ms: how long the caller still waits; an action that does not fit is not begun.

        Raises:
            AnotherGateway: they are meant for another gateway; none was run.
        """
        if push.epoch:
            check_identity(push.epoch, self._epoch(gateway))
        results = tuple(
            self._one(gateway, asker, each, left_ms)
            if isinstance(each, Action)
            else refusal(each.action_id, each.error)
            for each in push.actions
        )
        return ActionAnswers(results, stamp(self._wall_clock()))

    def discover(self, gateway: str, asker: Asker) -> dict[str, list[ActionDescription]]:
        """Return the actions that somebody may run, by the names of their handlers.

        A handler whose package cannot be imported is left out: its actions wait.
        """
        offered: dict[str, list[ActionDescription]] = {}
        for each in self._store.handlers(gateway):
            try:
                registration, actions = self._known(gateway, each.name, each.definition)
            except NotFound:
                continue
            may = [
                ActionDescription(action.name, action.description, action.params_schema)
                for action in actions.values()
                if registration.may_run(action.name, asker)
            ]
            if may:
                offered[each.name] = may
        return offered

    def _one(
        self, gateway: str, asker: Asker, action: Action, left_ms: Callable[[], int]
    ) -> ActionOutcome:
        began_ns, was_run = time.monotonic_ns(), False
        try:
            if left_ms() < RUN_MS_MAX:
                raise Unavailable("the time of this request is over; send the action again")  # noqa: TRY301
            outcome, was_run = self._engine.run(gateway, asker, action)
        except LakeSyncError as error:
            outcome = refusal(action.action_id, error)
        except Exception as exc:  # noqa: BLE001 - a bug is answered, and its neighbours go on
            self._bug(exc)
            outcome = refusal(action.action_id, InternalError("logged as a bug"))
        took_ms = (time.monotonic_ns() - began_ns) // 1_000_000
        self._audit(
            RunNote(
                gateway, asker.user, action.client_id, action.action_id, action.connector,
                action.action_type, outcome.code, was_run, took_ms,
            )
        )  # fmt: skip
        return outcome

    def _prepared(self, gateway: str, asker: Asker, action: Action) -> Prepared:
        """Refuse actions that may not run, before any request to the outside system."""
        stored = {each.name: each.definition for each in self._store.handlers(gateway)}
        definition = stored.get(action.connector)
        if definition is None:
            raise ActionNotSupported(
                f"there is no action handler {action.connector[:64]!r}; ask which there are",
                field="connector",
            )
        try:
            registration, actions = self._known(gateway, action.connector, definition)
        except NotFound as exc:  # its package is mended, and the action waits until then
            raise Unavailable(
                f"the action handler {action.connector} cannot be imported at the gateway; an "
                "administrator has to mend its package"
            ) from exc
        known = actions.get(action.action_type)
        if known is None:
            raise ActionNotSupported(
                f"{action.connector} has no action {action.action_type[:64]!r}; ask which it has",
                field="actionType",
            )
        if not registration.may_run(action.action_type, asker):
            raise Forbidden("you may not run this action")
        check_params(known.params_schema, action.params)
        if not registration.allows(action.action_type, action.params, asker):
            raise Forbidden("you may not run this action with these parameters")
        self._within_rate(gateway, registration, action)

        def make() -> Any:
            hidden = dict(self._secrets.get(secret_name(gateway, action.connector)))
            return made(registration.type, registration.configuration, hidden, self._outside)

        return Prepared(make)

    def _within_rate(self, gateway: str, registration: Registration, action: Action) -> None:
        counter = f"{action.client_id}|{registration.name}"
        now_ms = self._wall_clock()
        if not self._runs.count(gateway, counter, now_ms, registration.per_minute):
            raise RateLimited(
                f"a client may run {registration.per_minute} actions a minute here; wait",
                retry_after_s=_MINUTE_S - now_ms // 1000 % _MINUTE_S,
            )

    def _known(
        self, gateway: str, name: str, definition: bytes
    ) -> tuple[Registration, Mapping[str, SupportedAction]]:
        """Return a registration and its handler's abilities; secrets are fetched once for each."""
        known = self._described.get((gateway, name))
        if known is None or known[0] != definition:
            registration = stored_registration(definition)
            hidden = dict(self._secrets.get(secret_name(gateway, name)))
            parts = registration.type, registration.configuration, hidden, self._outside
            with closing(made(*parts)) as handler:
                known = (definition, registration, supported(handler))
            while len(self._described) >= REGISTRATIONS_REMEMBERED_MAX:
                self._described.pop(next(iter(self._described)))
            self._described[gateway, name] = known
        return known[1], known[2]


# --- administration -------------------------------------------------------------------------------


HANDLERS_MAX: Final = 50
"""Action handlers of one gateway; each with secrets costs $0.40 a month."""


class ActionAdmin:
    """Registers and shows the action handlers of gateways."""

    def __init__(self, store: HandlerStore, secrets: SecretStore, outside: Outside) -> None:
        self._store = store
        self._secrets = secrets
        self._outside = outside

    def register(self, gateway: str, wanted: Registration) -> list[str]:
        """Register an action handler; return the names of its actions.

        Raises:
            ValidationFailed: the settings are invalid, or permissions name an unknown action.
            NotFound: there is no such type.
            Conflict: the name is in use, and must not be replaced.
        """
        kind = handler_type(wanted.type)
        secret = secret_names(kind)
        before = {each.name for each in self._store.handlers(gateway)}
        if wanted.name in before and not wanted.replace:
            raise _taken(wanted.name)
        if len(before | {wanted.name}) > HANDLERS_MAX:
            raise ValidationFailed(f"a gateway has at most {HANDLERS_MAX} action handlers")
        kept: Mapping[str, str] = {}
        if before and secret:  # as they are stored: another process may have put or removed them
            kept = self._secrets.get_anew(secret_name(gateway, wanted.name))
        given = {key: str(value) for key, value in wanted.configuration.items() if key in secret}
        hidden = {key: value for key, value in kept.items() if key in secret} | given
        public = {key: value for key, value in wanted.configuration.items() if key not in secret}
        with closing(made(kind.name, public, hidden, self._outside)) as handler:
            actions = [action.name for action in handler.supported_actions()]
        _check_permissions(wanted, actions)
        body = wanted.stored(public)
        if hidden:  # first: a handler without its secrets would fail for its clients
            self._secrets.put(secret_name(gateway, wanted.name), hidden)
        if not self._store.add(gateway, wanted.name, body, replace=wanted.replace):
            raise _taken(wanted.name)
        return actions

    def all(self, gateway: str) -> list[dict[str, Any]]:
        """Return a gateway's action handlers, without secrets."""
        return [
            stored_registration(each.definition).model_dump(
                mode="json", by_alias=True, exclude={"replace"}, exclude_defaults=True
            )
            for each in self._store.handlers(gateway)
        ]

    def remove(self, gateway: str, name: str) -> None:
        """Remove an action handler with its secrets; actions that it ran are not undone.

        Raises:
            NotFound: there is none of that name.
        """
        if not self._store.remove(gateway, name):
            raise NotFound(f"there is no action handler {name!r}; list them", field="name")
        self._secrets.remove(secret_name(gateway, name))

    def remove_all(self, gateway: str) -> None:
        """Remove all of a gateway. Safe to repeat."""
        for each in self._store.handlers(gateway):
            self._secrets.remove(secret_name(gateway, each.name))
            self._store.remove(gateway, each.name)


def secret_name(gateway: str, name: str) -> str:
    """Return the name of an action handler's secret, below the stack's prefix."""
    return f"{gateway}/{name}"


def made(
    type_name: str, public: dict[str, Any], hidden: dict[str, str], outside: Outside
) -> ActionHandler:
    """Make an action handler of its settings and its secrets.

    Raises:
        ValidationFailed: they are invalid, or the operator does not allow them.
        NotFound: there is no such type.
    """
    kind = handler_type(type_name)
    return kind.make(configured(kind, {**public, **hidden}), outside)


def supported(handler: ActionHandler) -> dict[str, SupportedAction]:
    """Return what a handler can do, by name."""
    return {action.name: action for action in handler.supported_actions()}


def _check_permissions(wanted: Registration, actions: list[str]) -> None:
    for place, permission in enumerate(wanted.allow):
        if unknown := sorted(set(permission.actions) - set(actions)):
            raise ValidationFailed(
                f"it has no action {unknown[0][:64]!r}; it has {', '.join(actions)}",
                field=f"allow[{place}].actions",
            )


def _taken(name: str) -> Conflict:
    return Conflict(f"there is an action handler {name} already; say replace, or choose another")


# --- types ----------------------------------------------------------------------------------------


GROUP: Final = "lakesync.actions"
"""The group of entry points."""
BUILT_IN: Final[Mapping[str, str]] = {
    "eventbridge": "lakesync.actions.message_handlers:EVENTBRIDGE",
    "jira": "lakesync.actions.jira_actions:JIRA",
    "mysql": "lakesync.actions.sql_handlers:MYSQL",
    "postgres": "lakesync.actions.sql_handlers:POSTGRES",
    "salesforce": "lakesync.actions.salesforce_actions:SALESFORCE",
    "sqs": "lakesync.actions.message_handlers:SQS",
    "stepfunctions": "lakesync.actions.message_handlers:STEP_FUNCTIONS",
    "webhook": "lakesync.actions.message_handlers:WEBHOOK",
}


def type_names() -> list[str]:
    """Return the names of all types."""
    return names_in(GROUP, BUILT_IN)


def handler_type(name: str) -> HandlerType:
    """Return a type of action handler by its name.

    Raises:
        NotFound: there is none of that name, or it cannot be imported here.
    """
    return loaded(GROUP, BUILT_IN, name, HandlerType, "action handler")
