"""The action handlers of a gateway: registered by administrators, run by clients.

Administration of action handlers: registered, listed, removed. Secrets are removed from the
settings before anything else is stored, and are passed only to the handler itself.

The types of action handlers: those of this package, and those that others add by entry point. A
package adds a type by an entry point of the group ``lakesync.actions`` that names a `HandlerType`.

Law X6: ``docs/spec/actions.md``.

Permissions of an action handler: which roles, token claims and parameters may run what. A
permission names actions and conditions; all of its conditions must be true, and one permission is
enough. Conditions compare as sync rules do (`lakesync.core.rules`): a missing value matches
nothing. Administrators of the gateway run everything; without permissions nobody else runs
anything. Law X5.
"""

from __future__ import annotations

import json
import time
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple

from pydantic import (
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    model_validator,
)

from lakesync.actions.engine import RUN_MS_MAX, Engine, HandlerType, Prepared, check_params
from lakesync.adapters.database_types import loaded
from lakesync.connectors.port import Settings
from lakesync.connectors.registry import configured, secret_names
from lakesync.core.clock import stamp
from lakesync.core.delta import canonical
from lakesync.core.gateway_identity import check_identity
from lakesync.core.messages import Action, ActionAnswers, ActionDescription, ActionOutcome, refusal
from lakesync.core.rules import (
    CLAIM_PREFIX,
    OPERATORS,
    VALUES_MAX,
    ClaimFilter,
    claim_of,
    condition,
    is_operand,
)
from lakesync.core.visibility import passes, resolved
from lakesync.declare import checked
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
    from typing import Self

    from lakesync.actions.engine import ActionHandler, Asker, SupportedAction
    from lakesync.connectors.port import Outside
    from lakesync.core.messages import ActionPush
    from lakesync.core.rules import Operand
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
        secrets: those of the handlers.
        outside: what the operator lets handlers use.
        token: gives a name that is never given again.
        bug: receives faults of ours, or of a handler.
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
            asker: the caller, by a verified token.
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
    "eventbridge": "lakesync.actions.declared_actions:EVENTBRIDGE",
    "jira": "lakesync.systems.jira.jira_actions:JIRA",
    "mysql": "lakesync.systems.mysql.mysql_source:MYSQL",
    "postgres": "lakesync.systems.postgres.postgres_source:POSTGRES",
    "salesforce": "lakesync.systems.salesforce.salesforce_actions:SALESFORCE",
    "sqs": "lakesync.actions.declared_actions:SQS",
    "stepfunctions": "lakesync.actions.declared_actions:STEP_FUNCTIONS",
    "webhook": "lakesync.actions.declared_actions:WEBHOOK",
}


def handler_type(name: str) -> HandlerType:
    """Return a type of action handler by its name.

    Raises:
        NotFound: there is none of that name, or it cannot be imported here.
    """
    return loaded(GROUP, BUILT_IN, name, HandlerType, "action handler")


# --- permissions ----------------------------------------------------------------------------------


CONDITIONS_MAX = 16
"""Conditions of one permission, of claims and of parameters each."""
PERMISSIONS_MAX = 20
"""Permissions of one action handler."""
Value = StrictStr | StrictBool | StrictInt | StrictFloat
Operator = Literal["eq", "neq", "in", "gt", "lt", "gte", "lte"]
assert set(Operator.__args__) == set(OPERATORS)  # type: ignore[attr-defined]  # noqa: S101


class _Condition(Settings):
    """One comparison."""

    op: Operator
    value: Value | Annotated[list[Value], Field(min_length=1, max_length=VALUES_MAX)]

    @model_validator(mode="after")
    def _comparable(self) -> Self:
        values = self.value if isinstance(self.value, list) else [self.value]
        if not all(map(is_operand, values)):
            raise ValueError("a value is text, a number that a double holds, true or false")
        return self

    def operand(self) -> Operand:
        if isinstance(self.value, list):
            return tuple(self.value)
        if isinstance(self.value, str) and self.value.startswith(CLAIM_PREFIX):
            return claim_of(self.value.removeprefix(CLAIM_PREFIX))
        return self.value


class ClaimCondition(_Condition):
    """What a claim of the token must be; one of several values is enough."""

    claim: Annotated[str, Field(min_length=1, max_length=200)] = Field(
        description="The claim; nested ones by a dotted path."
    )

    def holds(self, claims: Mapping[str, Any]) -> bool:
        return passes(ClaimFilter(claim_of(self.claim), self.op, self.operand()), claims)


class ParamCondition(_Condition):
    """What a parameter must be, compared with a literal or with a claim (``jwt:claim``)."""

    param: Annotated[str, Field(min_length=1, max_length=200)]

    def holds(self, params: Mapping[str, Any], claims: Mapping[str, Any]) -> bool:
        value = params.get(self.param)
        if value is None or isinstance(value, dict | list):
            return False
        return condition(self.op, resolved(self.operand(), claims))(canonical(value))


class Permission(Settings):
    """Who may run some of a handler's actions, and with which parameters."""

    actions: list[str] = Field(default_factory=list, max_length=50, description="None: all.")
    role: Literal["client", "admin"] | None = None
    claims: list[ClaimCondition] = Field(default_factory=list, max_length=CONDITIONS_MAX)
    params: list[ParamCondition] = Field(default_factory=list, max_length=CONDITIONS_MAX)

    def may_run(self, action: str, asker: Asker) -> bool:
        """Return whether somebody may run an action, with some parameters."""
        if self.actions and action not in self.actions:
            return False
        role = "admin" if asker.is_administrator else "client"
        if self.role is not None and self.role != role:
            return False
        return all(each.holds(asker.claims) for each in self.claims)

    def allows(self, action: str, params: Mapping[str, Any], asker: Asker) -> bool:
        """Return whether somebody may run an action with these parameters."""
        return self.may_run(action, asker) and all(
            each.holds(params, asker.claims) for each in self.params
        )


DEFINITION_BYTES_MAX: Final = 262_144
"""The size of a stored action handler: it is one item, of at most 400 KB."""
PER_MINUTE_MAX: Final = 6_000
"""Actions that one client may run in a minute: the greatest number that can be declared."""
NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$"


class Registration(Settings):
    """What somebody asks to register; stored without its secrets."""

    name: Annotated[str, Field(pattern=NAME)]
    type: Annotated[str, Field(min_length=1, max_length=64)]
    configuration: dict[str, Any] = Field(default_factory=dict)
    allow: list[Permission] = Field(default_factory=list, max_length=PERMISSIONS_MAX)
    per_minute: int = Field(
        60, ge=1, le=PER_MINUTE_MAX, description="What each client may run in a minute."
    )
    replace: bool = Field(
        default=False, description="Put it in place of one of that name; secrets stay."
    )

    def stored(self, configuration: Mapping[str, Any]) -> bytes:
        """Write it, with settings that hold no secrets.

        Raises:
            ValidationFailed: it is too large.
        """
        kept = self.model_copy(update={"configuration": dict(configuration), "replace": False})
        text = kept.model_dump_json(by_alias=True, exclude={"replace"}).encode()
        if len(text) > DEFINITION_BYTES_MAX:
            raise ValidationFailed(
                f"an action handler takes {DEFINITION_BYTES_MAX} bytes at the most: declare "
                "another for some of its actions",
                field="configuration",
            )
        return text

    def allows(self, action: str, params: Mapping[str, Any], asker: Asker) -> bool:
        """Return whether somebody may run an action with these parameters."""
        return asker.is_administrator or any(
            each.allows(action, params, asker) for each in self.allow
        )

    def may_run(self, action: str, asker: Asker) -> bool:
        """Return whether somebody may run an action, with some parameters."""
        return asker.is_administrator or any(each.may_run(action, asker) for each in self.allow)


def registration_from(body: object) -> Registration:
    """Read a request to register an action handler.

    Raises:
        ValidationFailed: it is invalid; every fault is named, and no value is repeated.
    """
    return checked(Registration, body, "action handler")


def stored_registration(body: bytes) -> Registration:
    """Read what `Registration.stored` wrote, in any release: unknown fields are left out."""
    fields: dict[str, Any] = json.loads(body)
    known = {field.alias or name for name, field in Registration.model_fields.items()}
    return Registration.model_validate({k: v for k, v in fields.items() if k in known})
