"""Polls of registered connectors for the state machine, one at a time for each connector.

A poll has its connector's lease, and every save is conditional on the lease's number. After a crash
no other process polls until the lease ends; a process that resumes after that cannot save anything.

Changes of a source's schema are noticed: columns that are new, gone or of another type. Before a
poll, at most each quarter of an hour, a connector that tells its columns is asked for them, and
they are compared with those of before, which are kept in its storage. Other settings make other
columns: they are the first of their own, and no change.

Law N7: ``docs/spec/connectors.md``.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from lakesync.connectors.missing_rows import brought_by
from lakesync.connectors.pages import client_id_of
from lakesync.connectors.poll import JOB_START_MS, Poll, Polled, Route
from lakesync.connectors.port import KEPT_BYTES, NOTHING_ALLOWED, Storage, TellsColumns, digest
from lakesync.connectors.registry import definition_from, made_connector, secret_name
from lakesync.connectors.state import DeadLetters, Deletions, counts_first, state_from
from lakesync.core.column_types import widens
from lakesync.core.flows import FLOW
from lakesync.errors import AdapterRefused, Conflict, LakeSyncError
from lakesync.result import Err

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from lakesync.connectors.poll import MakesRoutes, Saves
    from lakesync.connectors.port import Connector, Outside, SourceTable
    from lakesync.connectors.registry import Definition
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
            lease: `Step.lease` of the call before in the same execution; 0 for its first.
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
                name, route, save=save, letters=DeadLetters(storage, counts_first(state, save)),
                deletions=Deletions(storage), wall_clock=self._wall_clock,
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
        return self._secrets.get(secret) != self._secrets.get_anew(secret)

    def _route(self, gateway: str, name: str, definition: Definition, storage: Storage) -> Route:
        if definition.type == FLOW and self._flows is not None:
            return self._flows.route(gateway, name, definition, storage)
        connector, tables = made_connector(
            self._secrets, storage, self._outside, gateway, name, definition
        )
        return Route(connector, tables, lambda push: self._push(gateway, push))


# --- the source's schema --------------------------------------------------------------------------


LOOK_MS: Final = 900_000
"""How long the columns that a source told are taken to be its columns."""
CHANGES_KEPT_MAX: Final = 20
"""Changes of a source's schema that a connector's state has: the latest."""
NOTE: Final = "note"
"""Nothing is lost: a new column, a wider type."""
WARNING: Final = "warning"
"""Values may be other ones, of the same type."""
SEVERE: Final = "severe"
"""Something is gone, or rows may no longer fit their schema."""
_PATH: Final = ("columns",)


@dataclass(frozen=True)
class SchemaChange:
    """One change of a source's schema."""

    at_ms: int
    """When it was noticed."""
    table: str
    """The source's name for the table."""
    column: str
    """Empty for a change of the table itself."""
    severity: str
    change: str
    """What changed, as words for people."""


class SourceSchema:
    """The columns of one connector's source."""

    def __init__(self, storage: Storage, definition: Definition) -> None:
        self._storage = storage
        self._unsaved: dict[str, Any] | None = None
        self._of = digest(definition.type, str(sorted(definition.configuration.items())))

    def look(self, connector: Connector, state: PollState, now_ms: int) -> list[SchemaChange]:
        """Return what changed since the previous look, and add it to the state.

        The state is to be saved before `keep` is called. A source that does not answer is looked at
        again with the next poll, which says what is wrong.
        """
        self._unsaved = None
        if not isinstance(connector, TellsColumns) or now_ms - state.looked_ms < LOOK_MS:
            return []
        answered = connector.columns()
        if isinstance(answered, Err):
            return []
        now = {table.name: _described(table) for table in answered.value}
        stored = self._storage.read(*_PATH) or {}
        changes: list[SchemaChange] = []
        if stored.get("of") == self._of:
            changes = [SchemaChange(now_ms, *one) for one in _changes(stored["tables"], now)]
        if (stored.get("of"), stored.get("tables")) != (self._of, now):
            self._unsaved = {"of": self._of, "tables": now}
        state.looked_ms = now_ms
        known = [{**each, "at_ms": 0} for each in state.schema_changes]
        # Killed before the columns were kept, it notices the same once more.
        latest = known[-len(changes) :] if changes else []
        fresh = [each for each in changes if {**asdict(each), "at_ms": 0} not in latest]
        state.schema_changes += [asdict(each) for each in fresh]
        del state.schema_changes[:-CHANGES_KEPT_MAX]
        return fresh

    def keep(self) -> None:
        """Keep the columns that were told, for the next look."""
        if self._unsaved is not None:
            self._storage.write(self._unsaved, *_PATH)


def _described(table: SourceTable) -> dict[str, Any]:
    columns = {
        column.name: [column.type, column.source_type, column.nullable] for column in table.columns
    }
    return {"key": list(table.key), "columns": columns}


def _changes(
    before: Mapping[str, Any], now: Mapping[str, Any]
) -> Iterator[tuple[str, str, str, str]]:
    """Yield the table, the column, the severity and the words of each change."""
    for table, was in before.items():
        if table not in now:
            yield table, "", SEVERE, "the table is gone, or may no longer be read"
            continue
        if was["key"] != now[table]["key"]:
            keys = [", ".join(each["key"]) or "none" for each in (was, now[table])]
            yield table, "", SEVERE, f"its key was {keys[0]}, and is {keys[1]}"
        for column, severity, words in _of_columns(was["columns"], now[table]["columns"]):
            yield table, column, severity, words


def _of_columns(
    before: Mapping[str, Any], now: Mapping[str, Any]
) -> Iterator[tuple[str, str, str]]:
    for column in [*before, *(name for name in now if name not in before)]:
        if column not in now:
            yield column, SEVERE, "is gone; its last values stay"
        elif column not in before:
            yield column, NOTE, f"is new: {_named(now[column])}"
        elif before[column][:2] != now[column][:2]:
            words = f"was {_named(before[column])}, and is {_named(now[column])}"
            yield column, _severity(before[column], now[column]), words
        elif before[column][2] != now[column][2]:
            yield column, NOTE, "may be null now" if now[column][2] else "may no longer be null"


def _severity(was: list[Any], now: list[Any]) -> str:
    if was[0] == now[0]:
        return WARNING
    return NOTE if widens(was[0], now[0]) else SEVERE


def _named(column: list[Any]) -> str:
    kind, source_type = column[0], column[1]
    return f"{source_type} ({kind})" if source_type and source_type != kind else str(kind)
