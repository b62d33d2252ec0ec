"""Polls of registered connectors for the state machine, one at a time for each connector.

A poll has its connector's lease, and every save is conditional on the lease's number. After a crash
no other process polls until the lease ends; a process that resumes after that cannot save anything.
Law N7: ``docs/spec/connectors.md``.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from lakesync.connectors.brought import brought_by
from lakesync.connectors.dead_letters import DeadLetters, counts_first
from lakesync.connectors.definition import definition_from
from lakesync.connectors.deletions import Deletions
from lakesync.connectors.deltas import client_id_of
from lakesync.connectors.large import JOB_START_MS
from lakesync.connectors.outside import NOTHING_ALLOWED
from lakesync.connectors.poll import Poll, Polled
from lakesync.connectors.port import KEPT_BYTES
from lakesync.connectors.registered import made_connector, secret_name
from lakesync.connectors.routes import Route
from lakesync.connectors.source_schema import SourceSchema
from lakesync.connectors.state import state_from
from lakesync.connectors.storage import Storage
from lakesync.core.flows import FLOW
from lakesync.errors import AdapterRefused, Conflict, LakeSyncError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lakesync.connectors.definition import Definition
    from lakesync.connectors.outside import Outside
    from lakesync.connectors.poll import Saves
    from lakesync.connectors.port import Connector
    from lakesync.connectors.routes import MakesRoutes
    from lakesync.connectors.source_schema import SchemaChange
    from lakesync.connectors.state import PollState
    from lakesync.core.messages import Push, PushReceipt
    from lakesync.ports import (
        ConnectorStore,
        ObjectStore,
        Rows,
        SecretStore,
        StoredConnector,
        WallClock,
    )

LEASE_MS: Final = 60_000
"""Longer than a polling function runs, its start included."""


class ReportsChanges(Protocol):
    """Reports changes of a source's schema, and raises nothing."""

    def __call__(self, gateway: str, name: str, changes: Sequence[SchemaChange], /) -> None:
        """Report what changed at the source of a connector."""
        ...


class Step(NamedTuple):
    """What one call of the function did."""

    status: str
    """As `Polled.status`; or ``busy``, ``paused``, ``gone`` and ``elsewhere``: nothing was read."""
    wait_s: int = 0
    lease: int = 0
    """What to come back with, for ``more`` and ``large``."""
    kept_bytes: int = 0
    """What the source keeps for this connector: `lakesync.connectors.port.KEPT_BYTES`."""
    place: str = ""
    """Where it is polled, for ``elsewhere``: `lakesync.core.flows.Flow.place`."""
    behind: int = 0
    """Intervals since the beginning of the last completed poll."""
    has_fault: bool = False
    """Whether the poll ended with a fault that needs an operator."""
    schema_changes: int = 0
    """How many changes of the source's schema were noticed in this call."""


class Polls:
    """Polls registered connectors."""

    def __init__(
        self,
        store: ConnectorStore,
        secrets: SecretStore,
        objects: ObjectStore,
        push: Callable[[str, Push], PushReceipt],
        rows: Rows,
        *,
        wall_clock: WallClock,
        outside: Outside = NOTHING_ALLOWED,
        flows: MakesRoutes | None = None,
        report: ReportsChanges = lambda *_: None,
    ) -> None:
        self._store = store
        self._rows = rows
        self._secrets = secrets
        self._objects = objects
        self._push = push
        self._wall_clock = wall_clock
        self._outside = outside
        self._flows = flows
        self._report = report

    def poll(self, gateway: str, name: str, lease: int, has_time: Callable[[], bool]) -> Step:
        """Continue a connector's poll, or begin one.

        Args:
            gateway: whose.
            name: the connector's.
            lease: `Step.lease` of the call before in the same execution; 0 for its first.
            has_time: called before each page.
        """
        now_ms = self._wall_clock()
        stored = self._store.connector(gateway, name)
        if stored is None:
            return Step("gone")
        definition = definition_from(stored.definition)
        if definition.paused:
            return Step("paused")
        if self._flows and (at := self._flows.elsewhere(definition)):
            return Step("elsewhere", place=at)
        waits_ms = state_from(stored.state).wait_until_ms - now_ms
        if waits_ms > 0:
            return Step("busy")
        leased = self._store.lease(gateway, name, now_ms, now_ms + LEASE_MS, lease)
        if leased is None:
            return Step("busy")
        try:
            state = state_from(leased.state)
            polled = self._polled(gateway, leased, state, has_time)
            if polled.status == "done" and self._has_new_secrets(gateway, name, state, now_ms):
                polled = self._polled(gateway, leased, state, has_time)
        except Conflict:
            return Step("busy")
        lease = leased.lease if polled.status in {"more", "large"} else 0
        interval_ms = definition_from(leased.definition).every_minutes * 60_000
        behind = (now_ms - state.polled_ms) // interval_ms if state.polled_ms else 0
        return Step(
            polled.status,
            polled.wait_s,
            lease,
            kept_bytes=int(state.source.get(KEPT_BYTES, 0)),
            behind=max(behind, 0),
            has_fault=polled.status == "done" and state.fault is not None,
            schema_changes=sum(each["at_ms"] >= now_ms for each in state.schema_changes),
        )

    def _polled(
        self,
        gateway: str,
        leased: StoredConnector,
        state: PollState,
        has_time: Callable[[], bool],
    ) -> Polled:
        name = leased.name
        storage, save = self._storage(gateway, name), self._saving(gateway, leased, LEASE_MS)
        try:
            route = self._route(gateway, name, definition_from(leased.definition), storage)
        except LakeSyncError as error:
            state.note(error, self._wall_clock())
            save(state, ends=True)
            return Polled("done")
        with closing(route.connector) as connector, closing(route):
            poll = Poll(
                name, connector, route.tables, push=route.push, save=save,
                letters=DeadLetters(storage, counts_first(state, save)),
                deletions=Deletions(storage),
                wall_clock=self._wall_clock, shape=route.shape, pages=route.pages,
                large_rows=route.large_rows, fence=route.fence, read_whole=route.read_whole,
                hand_over=self._saving(gateway, leased, JOB_START_MS),
            )  # fmt: skip
            if not state.poll_ms:
                self._look(leased, storage, connector, state, save)
            return poll.run(state, has_time)

    def _look(
        self,
        leased: StoredConnector,
        storage: Storage,
        connector: Connector,
        state: PollState,
        save: Saves,
    ) -> None:
        """Notice what changed of the source's schema since the poll before."""
        schema = SourceSchema(storage, definition_from(leased.definition))
        changes = schema.look(connector, state, self._wall_clock())
        if changes:
            save(state)
            self._report(storage.gateway, leased.name, changes)
        schema.keep()

    def _storage(self, gateway: str, name: str) -> Storage:
        brought = brought_by(client_id_of(name), gateway, self._rows)
        return Storage(self._objects, gateway, name, brought)

    def _saving(self, gateway: str, leased: StoredConnector, lease_ms: int) -> Saves:
        """Return the function that saves a connector's state and extends the lease."""

        def save(state: PollState, *, ends: bool = False) -> None:
            until_ms = 0 if ends else self._wall_clock() + lease_ms
            if not self._store.save(gateway, leased.name, leased.lease, state.to_json(), until_ms):
                raise Conflict("another process polls this connector")

        return save

    def _has_new_secrets(self, gateway: str, name: str, state: PollState, since_ms: int) -> bool:
        """Return whether the source refused secrets that were changed since they were read."""
        fault = state.fault
        if fault is None or fault.code != AdapterRefused.code or fault.at_ms < since_ms:
            return False
        secret = secret_name(gateway, name)
        before = self._secrets.get(secret)
        self._secrets.forget(secret)
        return self._secrets.get(secret) != before

    def _route(self, gateway: str, name: str, definition: Definition, storage: Storage) -> Route:
        if definition.type == FLOW and self._flows is not None:
            return self._flows.route(gateway, name, definition, storage)
        connector, tables = made_connector(
            self._secrets, storage, self._outside, gateway, name, definition
        )
        return Route(connector, tables, lambda push: self._push(gateway, push))
