"""What the built-in handlers share: declared actions, and the meaning of a vendor's answer.

To a handler that asks with `lakesync.connectors.http`, a vendor's answer means: refused, not begun,
or outcome unknown.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import Field, field_validator

from lakesync.actions.engine import Done, SupportedAction, check_schema
from lakesync.connectors.http import CREDENTIALS
from lakesync.connectors.sql.sql_settings import Settings
from lakesync.errors import (
    ActionFailed,
    AdapterFailed,
    AdapterQuotaExceeded,
    AdapterRefused,
    AdapterUnreachable,
    LakeSyncError,
    NotFound,
    OutcomeUnknown,
    ValidationFailed,
)
from lakesync.result import Err, Ok

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lakesync.actions.engine import Run
    from lakesync.result import Result

# --- declared actions -----------------------------------------------------------------------------


DECLARED_MAX = 50
"""Actions of one handler."""
DROPS_REPEATS: Any = Field(
    default=False,
    description="The receiver does nothing for an id that it has had: then what may have been sent "
    "is sent again, instead of leaving its outcome unknown.",
)
ActionName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]


class DeclaredAction(Settings):
    """One action: its name, and the schema of its parameters."""

    name: ActionName
    description: str = Field("", max_length=500)
    params: dict[str, Any] = Field(
        default_factory=lambda: {"type": "object"},
        description="A JSON Schema of the parameters, draft 2020-12 unless it says another.",
    )

    @field_validator("params")
    @classmethod
    def _is_schema(cls, value: dict[str, Any]) -> dict[str, Any]:
        try:
            check_schema(value)
        except ValidationFailed as error:
            raise ValueError(error.message) from None
        return value

    def supported(self) -> SupportedAction:
        """Return its description for the list of actions."""
        return SupportedAction(self.name, self.description, self.params)


def message_of(run: Run, seconds: float) -> bytes:
    """Return an action as the JSON that outside systems receive.

    Args:
        run: the action.
        seconds: the time of sending, since 1970.
    """
    body = {
        "id": run.run_id,
        "type": run.action,
        "timestamp": datetime.fromtimestamp(seconds, UTC).isoformat(),
        "gateway": run.gateway,
        "clientId": run.client_id,
        "user": run.user,
        "data": run.params,
    }
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


def unique(actions: Sequence[DeclaredAction]) -> None:
    """Refuse a name that is declared twice.

    Raises: ValueError: a name is declared twice.
    """
    names = [action.name for action in actions]
    if len(set(names)) < len(names):
        raise ValueError("an action is declared twice")


# --- answers of vendors ---------------------------------------------------------------------------


T = TypeVar("T")


def done(work: Callable[[], Mapping[str, Any]]) -> Result[Done, LakeSyncError]:
    """Do something; a refusal by the other side is final, and reported to the client."""
    try:
        return Ok(Done(work()))
    except LakeSyncError as error:
        return Err(meaning(error))


def written(write: Callable[[], T]) -> T:
    """Ask for a change.

    Raises:
        OutcomeUnknown: the request was sent, and no answer arrived that states the outcome.
        LakeSyncError: it was not carried out.
    """
    try:
        return write()
    except (AdapterUnreachable, AdapterQuotaExceeded, AdapterRefused):
        raise
    except AdapterFailed as error:
        raise OutcomeUnknown(error.message) from error


def meaning(error: LakeSyncError) -> LakeSyncError:
    """Return what an error of asking means for the client."""
    if isinstance(error, AdapterRefused) and error.field == CREDENTIALS:
        # Somebody will mend them: the action stays open until then.
        return AdapterFailed(error.message, retry_after_s=60)
    if isinstance(error, AdapterRefused | NotFound):
        return ActionFailed(error.message)
    return error
