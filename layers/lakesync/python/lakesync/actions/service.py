"""What clients may ask about actions: run them, and which there are."""

from __future__ import annotations

import time
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lakesync.actions.admin import made, secret_name, supported
from lakesync.actions.definition import Registration, stored_registration
from lakesync.actions.engine import RUN_MS_MAX, Engine, Prepared
from lakesync.actions.params import check_params
from lakesync.core.actions import Action, ActionAnswers, ActionDescription, ActionOutcome, refusal
from lakesync.core.clock import stamp
from lakesync.core.epoch import check_identity
from lakesync.errors import (
    ActionNotSupported,
    Forbidden,
    InternalError,
    LakeSyncError,
    NotFound,
    RateLimited,
    Unavailable,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lakesync.actions.permission import Asker
    from lakesync.actions.port import SupportedAction
    from lakesync.connectors.outside import Outside
    from lakesync.core.actions import ActionPush
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
