"""Actions: requests of a client for work in an outside system, and their outcomes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from lakesync.core.delta import CLIENT_ID_BYTES_MAX, check_client_id
from lakesync.core.values import canonical
from lakesync.errors import ActionInvalid, InvalidInput, LakeSyncError, Retry

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lakesync.core.clock import Stamp

ACTIONS_MAX: Final = 25
"""Actions in one request. They run one after another, and API Gateway waits at most 30 s."""
ACTION_ID_BYTES_MAX: Final = 128
"""Length of an action's id, and of its idempotency key."""
PARAMS_BYTES_MAX: Final = 65_536
"""Parameters of one action, as JSON. EventBridge and SQS accept 256 KB, fields beside them
included."""


@dataclass(frozen=True, slots=True)
class Action:
    """An action that a client requests. Made by `checked_action`, and valid."""

    action_id: str
    client_id: str
    hlc: Stamp
    connector: str
    """The registered name of the action handler that runs it; the field has existing clients' word.
    """
    action_type: str
    params: Mapping[str, Any]
    idempotency_key: str = ""
    """Actions of one client with the same key are one action; empty for no key."""

    def digest(self) -> str:
        """Return a digest of the request: one id may not be used for two different requests."""
        asked = {"connector": self.connector, "type": self.action_type, "params": self.params}
        return hashlib.sha256(canonical(asked)).hexdigest()


@dataclass(frozen=True, slots=True)
class ActionRefused:
    """A malformed action. It is refused alone; its neighbours are run."""

    action_id: str
    error: LakeSyncError


@dataclass(frozen=True, slots=True)
class ActionPush:
    """A client's actions, in the order in which they are run."""

    client_id: str
    actions: tuple[Action | ActionRefused, ...]
    epoch: str = ""
    """The epoch of the gateway that they are meant for; empty if the client knows none."""


@dataclass(frozen=True, slots=True)
class ActionOutcome:
    """The outcome of one action: ``data`` if it was done, else ``code`` and its sentence."""

    action_id: str
    data: Mapping[str, Any] = field(default_factory=dict)
    server_hlc: Stamp = 0
    code: str = ""
    message: str = ""
    retryable: bool = False
    """The same action may be sent again unchanged: nothing was done, or the outcome is known later.
    """

    @property
    def is_done(self) -> bool:
        """Return whether the action was done."""
        return not self.code


@dataclass(frozen=True, slots=True)
class ActionAnswers:
    """The outcomes of a client's actions, one for each."""

    results: tuple[ActionOutcome, ...]
    server_hlc: Stamp


@dataclass(frozen=True, slots=True)
class ActionDescription:
    """An action that a caller may run."""

    action_type: str
    description: str
    params_schema: Mapping[str, Any]


def refusal(action_id: str, error: LakeSyncError) -> ActionOutcome:
    """Return the outcome for an error, without what the error says of the systems behind it."""
    retryable = error.retry is Retry.LATER
    message = error.public_message or error.message
    return ActionOutcome(action_id, code=error.code, message=message, retryable=retryable)


def checked_action(fields: Action) -> Action:
    """Return an action if it is valid.

    Raises:
        ActionInvalid: a name, an id or the parameters are malformed or too large.
    """
    try:
        check_client_id(fields.client_id)
    except InvalidInput as error:
        raise ActionInvalid(error.message, field="clientId") from None
    _text(fields.action_id, "actionId", ACTION_ID_BYTES_MAX)
    _text(fields.connector, "connector", CLIENT_ID_BYTES_MAX)
    _text(fields.action_type, "actionType", CLIENT_ID_BYTES_MAX)
    if fields.idempotency_key:
        _text(fields.idempotency_key, "idempotencyKey", ACTION_ID_BYTES_MAX)
    if not isinstance(fields.params, dict):
        raise ActionInvalid("params must be a JSON object", field="params")
    try:
        size = len(canonical(fields.params))
    except InvalidInput as error:
        raise ActionInvalid(f"params: {error.message}", field="params") from None
    if size > PARAMS_BYTES_MAX:
        raise ActionInvalid(
            f"params take {size} bytes, and {PARAMS_BYTES_MAX} are allowed: store what is large "
            "elsewhere, and send where it is",
            field="params",
        )
    return fields


def _text(value: object, name: str, bytes_max: int) -> None:
    try:
        size = len(value.encode()) if isinstance(value, str) else 0
    except UnicodeEncodeError:
        size = 0
    if not 0 < size <= bytes_max:
        raise ActionInvalid(f"{name} must be text of 1 to {bytes_max} bytes", field=name)
