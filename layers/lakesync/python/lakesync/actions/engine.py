"""The interface of an action handler, and the engine that runs each action exactly once.

A handler does what clients request, at one outside system; exactly once is meant as far as the
outside allows. A handler of your own is found by its entry point; see ``docs/actions.md``.

Rules of the engine
    1. Before an action is run, its run is begun by a conditional write, which only one of several
       competitors wins.
    2. A final outcome is written before it is reported: done, or refused for good. An action that
       may be retried is written as open: nothing happened.
    3. A run whose lease has expired, or whose answer was lost, is not run again before its handler
       was asked whether it was done. If the handler cannot determine this, the outcome is unknown
       for good.
    4. Everything that can be refused without the outside system is refused before the run begins,
       and is not remembered: with other permissions the same action may run.

Parameters are checked against their JSON Schema before anything runs. Schemas are written by an
administrator, parameters by a client: patterns are matched in linear time, references to other
documents are never fetched, and no value of a client is repeated in a fault.

Laws X1-X4: ``docs/spec/actions.md``.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import closing
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias

from lakesync.core.clock import stamp
from lakesync.core.messages import Action, ActionOutcome, refusal
from lakesync.errors import (
    ActionInvalid,
    ActionOutcomeUnknown,
    ActionRunning,
    AdapterFailed,
    Contention,
    Fault,
    LakeSyncError,
    OutcomeUnknown,
    Retry,
    Unavailable,
    ValidationFailed,
)
from lakesync.ports import ActionKey, ActionRun, RunState
from lakesync.result import Err, Ok, Result

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import jsonschema_rs
    from pydantic import BaseModel

    from lakesync.connectors.port import Outside
    from lakesync.ports import ActionRuns, WallClock


class Asker(NamedTuple):
    """Who asks for an action, by a token that was verified."""

    user: str
    claims: Mapping[str, Any]
    is_administrator: bool


@dataclass(frozen=True, slots=True)
class SupportedAction:
    """One thing that a handler can do."""

    name: str
    description: str = ""
    params_schema: Mapping[str, Any] = field(default_factory=lambda: {"type": "object"})
    """A JSON Schema; parameters are checked against it before anything runs."""


@dataclass(frozen=True, slots=True)
class Run:
    """One action, as its handler gets it: allowed, and with parameters that fit the schema."""

    run_id: str
    """The same for all attempts, and for no other action: pass it to an outside system that
    supports idempotency keys. 32 hexadecimal digits.
    """
    gateway: str
    client_id: str
    user: str
    action: str
    params: Mapping[str, Any]
    seconds: float
    """How long the handler may take."""
    claims: Mapping[str, Any] = field(default_factory=dict)
    """The claims of the caller's verified token, which `Permission` has already decided by. Of an
    action that is looked up or run again they are those of whoever asked last.
    """


@dataclass(frozen=True, slots=True)
class Done:
    """The action was done, with this result."""

    data: Mapping[str, Any] = field(default_factory=dict)


class Unfinished(Enum):
    """What a handler may report of an action that was begun and is not known to be done."""

    NOT_DONE = "not done"
    """It was not done, or doing it again does nothing twice: it is run again."""
    UNKNOWN = "unknown"
    """It may have been done, and this cannot be determined."""


NOT_DONE: Final = Unfinished.NOT_DONE
UNKNOWN: Final = Unfinished.UNKNOWN
Looked: TypeAlias = Done | Unfinished
"""What a look at the outside system gave."""


class ActionHandler(Protocol):
    """Runs clients' actions at one outside system.

    An action that was not done, and may be retried unchanged, raises an error with a retry class;
    one that the other side refuses for good raises `lakesync.errors.ActionFailed`, whose message
    the client reads; one whose outcome is unknown, because an answer was lost, raises
    `lakesync.errors.OutcomeUnknown`. Any other exception of a handler counts as unknown too.
    """

    def supported_actions(self) -> Sequence[SupportedAction]:
        """Return its actions, without a request to the outside system."""
        ...

    def execute(self, run: Run) -> Result[Done, LakeSyncError]:
        """Do it, within ``run.seconds``."""
        ...

    def lookup(self, run: Run) -> Result[Looked, LakeSyncError]:
        """Return whether an action was done, after a crash or a lost answer."""
        ...

    def close(self) -> None:
        """Close connections. Safe to repeat."""
        ...


@dataclass(frozen=True)
class HandlerType:
    """A type of action handler: what an entry point of the group ``lakesync.actions`` names."""

    name: str
    title: str
    configuration: type[BaseModel]
    """Its settings; secrets are of pydantic's ``SecretStr``."""
    make: Callable[[Any, Outside], ActionHandler]
    """Creates a handler from settings. Calls no other system; raises
    `lakesync.errors.ValidationFailed` if the operator does not allow it.
    """


# --- the engine -----------------------------------------------------------------------------------


RUN_MS_MAX: Final = 10_000
"""How long one action may take: API Gateway waits 30 s for all of a request."""
LEASE_MS: Final = 60_000
"""For how long no other process runs an action that was begun: longer than its function lives."""
TRIES_MAX: Final = 5
"""How often a lost race for a run is looked at again."""
_LOST: Final = (
    "it was begun, and whether it was done is not known: look at the other side before you run it "
    "again, as another action"
)


class Prepared(NamedTuple):
    """An action that may run: its parameters fit, its client may run it, its handler can."""

    make: Callable[[], ActionHandler]
    """Makes the handler, with its secrets."""


class Engine:
    """Runs one action at a time.

    Args:
        prepare: refuses what may not run; raises `LakeSyncError`.
        note: receives exceptions that a handler must not raise.
    """

    def __init__(
        self,
        runs: ActionRuns,
        prepare: Callable[[str, Asker, Action], Prepared],
        *,
        token: Callable[[], str],
        wall_clock: WallClock,
        note: Callable[[BaseException], None],
    ) -> None:
        self._runs = runs
        self._prepare = prepare
        self._token = token
        self._wall_clock = wall_clock
        self._note = note

    def run(self, gateway: str, asker: Asker, action: Action) -> tuple[ActionOutcome, bool]:
        """Run an action, or return its recorded outcome, and whether its handler was called.

        Raises:
            LakeSyncError: nothing was begun, or the outcome cannot be determined now.
        """
        key = ActionKey(gateway, action.client_id, action.action_id, action.idempotency_key)
        digest = action.digest()
        for _ in range(TRIES_MAX):
            seen = self._runs.get(key)
            if seen is not None:
                remembered = _remembered(seen, digest, self._wall_clock())
                if remembered is not None:
                    return replace(remembered, action_id=action.action_id), False
            prepared = self._prepare(gateway, asker, action)
            begun = self._begin(key, seen, digest)
            if begun is not None:
                died = seen is not None and seen.state is RunState.RUNNING
                outcome = self._perform(key, begun, prepared, _run_of(key, begun, asker, action),
                                        died=died)  # fmt: skip
                return replace(outcome, action_id=action.action_id), True
        raise Contention("others ask for the same action at the same time; try again in a moment")

    def _begin(self, key: ActionKey, seen: ActionRun | None, digest: str) -> ActionRun | None:
        now_ms = self._wall_clock()
        first = seen.action_id if seen else key.action_id
        run = ActionRun(first, digest, RunState.RUNNING, self._token(), now_ms + LEASE_MS)
        try:
            return run if self._runs.begin(key, seen, run, now_ms) else None
        except Unavailable:
            # The answer may have been lost: then it is begun, and by us.
            stored = self._runs.get(key)
            if stored is not None and stored.owner == run.owner:
                return run
            raise

    def _perform(
        self, key: ActionKey, begun: ActionRun, prepared: Prepared, run: Run, *, died: bool
    ) -> ActionOutcome:
        """Call the handler, store the state of the run, and return the outcome."""
        try:
            handler = prepared.make()
        except LakeSyncError:
            # The lease of a run that died ends at once; of a new run nothing happened.
            state = RunState.RUNNING if died else RunState.OPEN
            self._end(key, replace(begun, state=state, until_ms=0))
            raise
        with closing(handler):
            result = self._asked(handler, run, died=died)
        data_or_error = self._final(key, begun, result)
        if isinstance(data_or_error, LakeSyncError):
            raise data_or_error
        return data_or_error

    def _asked(
        self, handler: ActionHandler, run: Run, *, died: bool
    ) -> Result[Done, LakeSyncError]:
        """Run the action, or determine its outcome; it is determined later if unknown."""
        if died:
            looked = self._looked(handler, run)
            if looked is not None:
                return looked
        result = self._caught(lambda: handler.execute(run))
        if isinstance(result, Err) and isinstance(result.error, OutcomeUnknown):
            looked = self._looked(handler, run)
            if looked is not None:
                return looked
            return Err(Unavailable("the answer was lost, and nothing was done; send it again"))
        return result

    def _looked(self, handler: ActionHandler, run: Run) -> Result[Done, LakeSyncError] | None:
        looked = self._caught(lambda: handler.lookup(run))
        if isinstance(looked, Err):
            return Err(OutcomeUnknown(f"it is unknown whether it was done: {looked.error}"))
        if isinstance(looked.value, Done):
            return Ok(looked.value)
        return Err(ActionOutcomeUnknown(_LOST)) if looked.value is UNKNOWN else None

    def _caught(self, call: Callable[[], Result[Any, LakeSyncError]]) -> Result[Any, LakeSyncError]:
        try:
            return call()
        except LakeSyncError as error:
            return Err(error)
        except Exception as exc:  # noqa: BLE001 - a handler may be anybody's: nobody knows what it did
            self._note(exc)
            return Err(OutcomeUnknown(f"the action handler failed: {type(exc).__name__}"))

    def _final(
        self, key: ActionKey, begun: ActionRun, result: Result[Done, LakeSyncError]
    ) -> ActionOutcome | LakeSyncError:
        """Store the state of a run after its handler was called."""
        if isinstance(result, Ok):
            outcome = done_outcome(key.action_id, result.value, self._wall_clock())
        elif isinstance(result.error, OutcomeUnknown):
            # Whoever asks next finds a run that died.
            self._end(key, replace(begun, until_ms=0))
            return ActionRunning("whether it was done is not known yet; ask again in a moment")
        elif result.error.retry is Retry.LATER:
            self._end(key, replace(begun, state=RunState.OPEN, until_ms=0))
            return result.error
        else:
            outcome = refusal(key.action_id, result.error)
        ended = replace(begun, state=RunState.ENDED, until_ms=0, outcome=written_outcome(outcome))
        self._end(key, ended)
        return outcome

    def _end(self, key: ActionKey, run: ActionRun) -> None:
        """Store the outcome; it is reported even if that fails, and determined again on request."""
        for tries in range(TRIES_MAX):
            try:
                self._runs.end(key, run, self._wall_clock())
            except (Unavailable, AdapterFailed) as error:
                if tries == TRIES_MAX - 1:
                    self._note(error)
            else:
                return


def _remembered(seen: ActionRun, digest: str, now_ms: int) -> ActionOutcome | None:
    """Return the final outcome of a run; None if it may be run, or its outcome determined.

    Raises:
        ActionInvalid: the id, or the key, is that of another action.
        ActionRunning: another process is running it.
    """
    if seen.digest != digest:
        raise ActionInvalid(
            "this action id, or idempotency key, was used for another action: make a new one",
            field="actionId",
        )
    if seen.state is RunState.ENDED:
        return read_outcome(seen.outcome)
    if seen.state is RunState.RUNNING and seen.until_ms > now_ms:
        raise ActionRunning("this action is still running; ask again in a moment")
    return None


def _run_of(key: ActionKey, begun: ActionRun, asker: Asker, action: Action) -> Run:
    named = json.dumps([key.gateway, key.client_id, begun.action_id])
    run_id = hashlib.sha256(named.encode()).hexdigest()[:32]
    return Run(
        run_id, key.gateway, key.client_id, asker.user, action.action_type, action.params,
        RUN_MS_MAX / 1000, asker.claims,
    )  # fmt: skip


# --- stored outcomes ------------------------------------------------------------------------------


DATA_BYTES_MAX: Final = 131_072
"""An action's result, as JSON: it is remembered in one item, and 25 of them fit one answer."""


def done_outcome(action_id: str, done: Done, now_ms: int) -> ActionOutcome:
    """Return the outcome of an action that was done; its result is left out if it is too large."""
    data = dict(done.data)
    try:
        size = len(json.dumps(data))
    except (TypeError, ValueError):
        data = {"omitted": "the action was done; what it gave is no JSON"}
    else:
        if size > DATA_BYTES_MAX:
            data = {"omitted": f"the action was done; what it gave is over {DATA_BYTES_MAX} bytes"}
    return ActionOutcome(action_id, data, stamp(now_ms))


def written_outcome(outcome: ActionOutcome) -> bytes:
    fields = {"data": outcome.data, "hlc": outcome.server_hlc, "code": outcome.code,
              "message": outcome.message}  # fmt: skip
    return json.dumps(fields, separators=(",", ":")).encode()


def read_outcome(body: bytes) -> ActionOutcome:
    fields = json.loads(body)
    return ActionOutcome("", fields["data"], fields["hlc"], fields["code"], fields["message"])


# --- parameters -----------------------------------------------------------------------------------


SCHEMA_BYTES_MAX: Final = 16_384
"""The JSON Schema of one action's parameters."""
FAULTS_MAX: Final = 5
"""Faults of parameters that are listed at once."""
_VALIDATORS_REMEMBERED: Final = 256


def check_schema(schema: Mapping[str, Any]) -> None:
    """Refuse an invalid JSON Schema.

    Raises:
        ValidationFailed: it is invalid, is too large, or refers to another document.
    """
    text = json.dumps(schema)
    if len(text) > SCHEMA_BYTES_MAX:
        raise ValidationFailed(f"a schema of parameters has at most {SCHEMA_BYTES_MAX} bytes")
    try:
        _validator(text)
    except (ValueError, RecursionError) as exc:
        raise ValidationFailed(f"it is not a JSON Schema: {str(exc).splitlines()[0]}") from exc


def check_params(schema: Mapping[str, Any], params: Mapping[str, Any]) -> None:
    """Refuse parameters that do not fit.

    Raises:
        ActionInvalid: they do not; the message names the faults and where they are.
    """
    errors = islice(_validator(json.dumps(schema)).iter_errors(params), FAULTS_MAX)
    faults = [
        Fault("".join(f".{part}" for part in error.instance_path), error.message)
        for error in errors
    ]
    if faults:
        listed = "; ".join(f"params{fault.path}: {fault.message}" for fault in faults)
        raise ActionInvalid(f"the parameters do not fit: {listed}", field=f"params{faults[0].path}")


@lru_cache(maxsize=_VALIDATORS_REMEMBERED)
def _validator(schema: str) -> jsonschema_rs.Validator:
    # Imported where it is first needed: it is 15 MB of machine code.
    import jsonschema_rs  # noqa: PLC0415

    return jsonschema_rs.validator_for(
        schema,
        validate_formats=True,
        offline=True,
        mask="the value",
        pattern_options=jsonschema_rs.RegexOptions(),
    )
