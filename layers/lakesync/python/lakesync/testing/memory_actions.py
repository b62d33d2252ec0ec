"""`MemoryActions`: a test's own functions as actions of a `MemoryGateway`, each run once."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, NamedTuple

from lakesync.actions.engine import Engine, Prepared
from lakesync.actions.params import check_params
from lakesync.actions.port import UNKNOWN, Done, SupportedAction
from lakesync.buffer.memory_actions import MemoryRuns
from lakesync.core.actions import (
    Action,
    ActionAnswers,
    ActionDescription,
    ActionOutcome,
    ActionRefused,
    refusal,
)
from lakesync.core.clock import stamp
from lakesync.errors import ActionNotSupported, LakeSyncError
from lakesync.result import Err, Ok, Result

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lakesync.actions.port import Looked, Run
    from lakesync.core.actions import ActionPush
    from lakesync.ports import WallClock


class _Asker(NamedTuple):
    user: str
    claims: Mapping[str, Any]
    is_administrator: bool = True


class _Function:
    """`lakesync.actions.ActionHandler` of one function."""

    def __init__(self, function: Callable[[Mapping[str, Any]], Mapping[str, Any] | None]) -> None:
        self._function = function

    def supported_actions(self) -> list[SupportedAction]:
        """Tell nothing: the gateway knows."""
        return []

    def execute(self, run: Run) -> Result[Done, LakeSyncError]:
        """Call it; what it raises of `lakesync.errors` is how it failed."""
        try:
            return Ok(Done(self._function(run.params) or {}))
        except LakeSyncError as error:
            return Err(error)

    def lookup(self, run: Run) -> Result[Looked, LakeSyncError]:
        """Tell that nobody knows: a function is not asked what it did."""
        del run
        return Ok(UNKNOWN)

    def close(self) -> None:
        """Hold nothing."""


class MemoryActions:
    """Actions of one gateway in memory, by the code that runs them in a deployed one."""

    def __init__(self, wall_clock: WallClock) -> None:
        self._wall_clock = wall_clock
        self._known: dict[tuple[str, str], tuple[_Function, ActionDescription]] = {}
        self._engine = Engine(
            MemoryRuns(),
            self._prepared,
            token=lambda: uuid.uuid4().hex,
            wall_clock=wall_clock,
            note=lambda _: None,
        )

    def add(
        self,
        connector: str,
        description: ActionDescription,
        function: Callable[[Mapping[str, Any]], Mapping[str, Any] | None],
    ) -> None:
        """Let a function be an action."""
        self._known[connector, description.action_type] = _Function(function), description

    def run(self, push: ActionPush) -> ActionAnswers:
        """Answer a client that asks for actions."""
        results = tuple(self._one(action) for action in push.actions)
        return ActionAnswers(results, stamp(self._wall_clock()))

    def _one(self, action: Action | ActionRefused) -> ActionOutcome:
        if isinstance(action, ActionRefused):
            return refusal(action.action_id, action.error)
        asker: Any = _Asker(action.client_id, {})
        try:
            return self._engine.run("test", asker, action)[0]
        except LakeSyncError as error:
            return refusal(action.action_id, error)

    def _prepared(self, _gateway: str, _asker: object, action: Action) -> Prepared:
        known = self._known.get((action.connector, action.action_type))
        if known is None:
            raise ActionNotSupported("there is no such action here: name it by `on_action`")
        function, description = known
        if description.params_schema:
            check_params(description.params_schema, action.params)
        return Prepared(lambda: function)

    def discover(self) -> dict[str, list[ActionDescription]]:
        """Answer a client that asks which actions there are."""
        connectors: dict[str, list[ActionDescription]] = {}
        for (connector, _), (_, description) in sorted(self._known.items()):
            connectors.setdefault(connector, []).append(description)
        return connectors
