"""Actions of a gateway in one process, and an outside system that fails as it is told to."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pydantic import BaseModel, SecretStr

from lakesync.actions import Done, HandlerType, Looked, Outside, Run, SupportedAction, service
from lakesync.actions.engine import NOT_DONE, UNKNOWN, Asker
from lakesync.actions.service import ActionAdmin, ActionService, RunNote
from lakesync.adapters import database_types as types
from lakesync.buffer.admin_stores import ItemHandlers, ItemRuns
from lakesync.buffer.memory_items import MemoryItemStore
from lakesync.result import Err, Ok, Result
from tests.support.polling import MemorySecrets

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from lakesync.errors import LakeSyncError

ADMINISTRATOR = Asker("ann", {"sub": "ann"}, is_administrator=True)


class MemoryOutside:
    """An outside system: what was done there, by run, and what it does next."""

    def __init__(self) -> None:
        self.done: list[tuple[str, str, Any]] = []
        """Run ids with actions and parameters, in the order in which they were done."""
        self.tokens: list[str] = []
        self.can_tell = True
        self.drops_repeats = False
        self.before: Callable[[Run], None] | None = None
        """Called before it does something; may raise."""
        self.after: Callable[[Run], None] | None = None
        """Called after that: what it raises is an answer that is lost."""
        self.refuses: LakeSyncError | None = None
        self.lookup_fails: LakeSyncError | None = None

    def times(self, run_id: str) -> int:
        """Return how often something was done."""
        return [each[0] for each in self.done].count(run_id)


class _Settings(BaseModel):
    token: SecretStr = SecretStr("")
    actions: list[str] = ["send"]


class _Handler:
    """`lakesync.actions.ActionHandler` of a `MemoryOutside`."""

    def __init__(self, outside: MemoryOutside, settings: _Settings) -> None:
        self._outside = outside
        self._settings = settings

    def supported_actions(self) -> list[SupportedAction]:
        schema = {
            "type": "object",
            "properties": {"to": {"type": "string"}, "n": {"type": "integer"}},
            "additionalProperties": False,
        }
        return [SupportedAction(name, "Sends.", schema) for name in self._settings.actions]

    def execute(self, run: Run) -> Result[Done, LakeSyncError]:
        outside = self._outside
        outside.tokens.append(self._settings.token.get_secret_value())
        if outside.before:
            outside.before(run)
        if outside.refuses is not None:
            return Err(outside.refuses)
        if not (outside.drops_repeats and outside.times(run.run_id)):
            outside.done.append((run.run_id, run.action, run.params))
        if outside.after:
            outside.after(run)
        return Ok(Done({"n": len(outside.done)}))

    def lookup(self, run: Run) -> Result[Looked, LakeSyncError]:
        outside = self._outside
        if outside.lookup_fails is not None:
            return Err(outside.lookup_fails)
        if outside.drops_repeats:
            return Ok(NOT_DONE)
        if not outside.can_tell:
            return Ok(UNKNOWN)
        return Ok(Done({"looked": True}) if outside.times(run.run_id) else NOT_DONE)

    def close(self) -> None:
        """Hold nothing."""


def use_memory_outside(monkeypatch: pytest.MonkeyPatch) -> MemoryOutside:
    """Make ``memory`` a type of action handler, as a package does by its entry point."""
    outside = MemoryOutside()
    kind = HandlerType(
        "memory", "In memory", _Settings, lambda settings, _: _Handler(outside, settings)
    )
    entry = SimpleNamespace(name="memory", value="memory", dist=None, load=lambda: kind)

    def entry_points(*, group: str, name: str = "memory") -> list[SimpleNamespace]:
        return [entry] if (group, name) == (service.GROUP, "memory") else []

    monkeypatch.setattr(types, "entry_points", entry_points)
    return outside


@dataclass
class Acting:
    """What runs actions, and registers their handlers, without AWS."""

    handlers: ItemHandlers = field(default_factory=lambda: ItemHandlers(MemoryItemStore()))
    runs: Any = field(default_factory=lambda: ItemRuns(MemoryItemStore()))
    secrets: MemorySecrets = field(default_factory=MemorySecrets)
    outside: Outside = field(default_factory=lambda: Outside(("*",)))
    notes: list[RunNote] = field(default_factory=list)
    bugs: list[BaseException] = field(default_factory=list)
    wall_clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    epoch: str = "here"

    def __post_init__(self) -> None:
        self.admin = ActionAdmin(self.handlers, self.secrets, self.outside)
        self.service = ActionService(
            self.handlers,
            self.runs,
            self.secrets,
            self.outside,
            token=lambda: uuid4().hex,
            wall_clock=self._now_ms,
            audit=self.notes.append,
            bug=self.bugs.append,
            epoch=lambda _: self.epoch,
        )

    def _now_ms(self) -> int:
        return self.wall_clock()
