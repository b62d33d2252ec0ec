"""Administration of flows: plan, declare, show, pause, run, backfill, remove.

A flow from the gateway is stored as a declared destination, every other flow as a connector, both
under the flow's name. Laws Y4, Y7, Y10: ``docs/spec/flows.md``.
"""

from __future__ import annotations

from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

from lakesync.adapters.database_types import database_kinds
from lakesync.connectors.definition import Definition
from lakesync.connectors.registered import asked
from lakesync.connectors.registry import configured, connector_type, tables_of
from lakesync.connectors.storage import Storage
from lakesync.core.destinations import NAME
from lakesync.core.flows import (
    FLOW,
    ConnectorSource,
    DatabaseSource,
    Flow,
    flow_of_destination,
    flow_to_json,
    flow_to_stored,
)
from lakesync.core.flows_json import read_flow
from lakesync.errors import Conflict, NotFound, ValidationFailed
from lakesync.flows.backfill import NO_TIME_IN_GATEWAY, check_not_behind, cursors_since
from lakesync.flows.declaring import (
    as_destination,
    check_source,
    flow_of,
    hidden_in,
    public,
    says_same,
    shown_flow,
)
from lakesync.flows.plan import of_connector, of_gateway, of_source
from lakesync.flows.status import delivered_status, polled_status

if TYPE_CHECKING:
    from lakesync.connectors.admin import ConnectorAdmin
    from lakesync.core.clock import Stamp
    from lakesync.flows.plan import CountsRows
    from lakesync.gateway.destinations import AsksDatabase, DestinationAdmin
    from lakesync.ports import Buffer, ConnectorStore, WallClock


class FlowAdmin:
    """Declares and shows the flows of gateways.

    Args:
        buffer: the configuration of gateways.
        destinations: declares flows from the gateway.
        connectors: registers all others.
        store: stores the connectors.
        counts: returns what a flow from a database would move: `lakesync.flows.plan.of_database`.
        wall_clock: the time.
        asks: asks the databases of polled flows; None asks none.
    """

    def __init__(
        self,
        buffer: Buffer,
        destinations: DestinationAdmin,
        connectors: ConnectorAdmin,
        store: ConnectorStore,
        counts: CountsRows,
        *,
        wall_clock: WallClock,
        asks: AsksDatabase | None = None,
    ) -> None:
        self._buffer = buffer
        self._asks = asks
        self._destinations = destinations
        self._connectors = connectors
        self._store = store
        self._counts = counts
        self._now_ms = wall_clock

    def check(self, gateway: str, body: object, *, asks: bool = True) -> Flow:
        """Read a declaration, ask its destination, and save nothing.

        Raises:
            FlowRefused: it has faults; names every one.
            Conflict: the name is in use, or the flow is declared differently.
            ValidationFailed: the destination refuses, or is unreachable.
        """
        config = self._buffer.config(gateway)
        config.check_not_deleted()
        flow = read_flow(body, config, gateway, database_kinds())
        check_source(flow)
        declared = self._declared(gateway, flow.name)
        if declared is not None and not says_same(declared, flow):
            raise Conflict(
                f"the flow {flow.name} is declared differently; remove it first, because other "
                "rows or columns need another filling",
                field="name",
            )
        if declared is None and self._store.connector(gateway, flow.name) is not None:
            raise Conflict(f"there is a connector {flow.name} already: choose another name")
        if flow.source is None:
            self._destinations.check(gateway, flow.name, as_destination(flow), asks=asks)
        elif asks and not flow.to_gateway:
            self._ask(gateway, flow.to.kind, flow.to.secret)
        return flow

    def plan(self, gateway: str, body: object, *, asks: bool = True) -> dict[str, Any]:
        """Return what a declaration would move: from where, how much; and save nothing.

        Raises:
            FlowRefused: it has faults; names every one.
            Conflict: the name is in use, or the flow is declared differently.
            ValidationFailed: its source or its destination refuses.
        """
        flow = self.check(gateway, body, asks=asks)
        is_new = self._declared(gateway, flow.name) is None
        answer: dict[str, Any] = {"flow": shown_flow(flow), "isNew": is_new}
        if not asks:
            return answer
        if isinstance(flow.source, ConnectorSource):
            kind = connector_type(flow.source.type)
            # The connector of a plan stores nothing.
            scratch = Storage.scratch(gateway, flow.name)
            settings = configured(kind, dict(flow.source.configuration))
            with closing(kind.make(settings, scratch, self._connectors.outside)) as connector:
                answer["message"] = asked(connector)
                reads = kind.forget is None  # creates nothing at its source, so it may be read
                tables = tables_of(kind, settings)
                answer["tables"] = of_connector(
                    flow, connector, tables, self._now_ms(), reads=reads
                )
        elif flow.source is None:
            answer["tables"] = of_gateway(flow, self._buffer, gateway)
        else:
            answer |= of_source(flow, gateway, self._counts)
        return answer

    def declare(self, gateway: str, body: object, *, asks: bool = True) -> dict[str, Any]:
        """Declare a flow, and start it. Safe to repeat.

        Raises:
            FlowRefused: the declaration has faults; names every one.
            Conflict: the name is in use, or the flow is declared differently.
            ValidationFailed: its source or its destination refuses.
        """
        flow = self.check(gateway, body, asks=False)
        is_new = self._declared(gateway, flow.name) is None
        if asks and is_new:
            self.check(gateway, body)
        answer = {"flow": shown_flow(flow), "isNew": is_new}
        if flow.source is None:
            self._destinations.declare(gateway, flow.name, as_destination(flow), asks=False)
        elif answer["isNew"]:
            answer |= self._begin(gateway, flow, asks=asks)
        else:
            self._connectors.keeping.complete(gateway, flow.name, hidden_in(flow))
        return answer

    def _begin(self, gateway: str, flow: Flow, *, asks: bool) -> dict[str, str]:
        """Register a flow that is polled; return its source's answer."""
        keeping, said = self._connectors.keeping, {}
        keeping.check_free(gateway, flow.name)
        if asks and isinstance(flow.source, DatabaseSource):
            self._ask(gateway, flow.source.kind, flow.source.secret)
        if isinstance(flow.source, ConnectorSource):
            kind, given = connector_type(flow.source.type), flow.source.configuration
            settings = configured(kind, dict(given))
            with closing(self._connectors.made(kind, settings, gateway, flow.name)) as connector:
                said = {"message": asked(connector)} if asks else {}
        definition = Definition(FLOW, flow_to_stored(public(flow)), flow.every_minutes)
        undo = partial(self._connectors.remove, gateway, flow.name)
        keeping.begin(gateway, flow.name, definition, hidden_in(flow), undo)
        return said

    def _ask(self, gateway: str, kind: str, secret: str) -> None:
        if self._asks is not None:
            self._asks(gateway, kind, secret)

    def declared(self, gateway: str, name: str) -> dict[str, Any] | None:
        """Return a flow's declaration, without secrets; None if there is none."""
        flow = self._declared(gateway, name)
        return None if flow is None else flow_to_json(flow)

    def all(self, gateway: str) -> list[dict[str, Any]]:
        """Return all flows, each with its status."""
        shown = [delivered_status(report) for report in self._destinations.reports(gateway)]
        now_ms = self._now_ms()
        shown += [
            polled_status(flow, stored, now_ms)
            for stored in self._store.connectors(gateway)
            if (flow := flow_of(stored)) is not None
        ]
        return sorted(shown, key=lambda one: str(one["name"]))

    def set_paused(self, gateway: str, name: str, *, paused: bool) -> None:
        """Pause a flow, or resume it where it stopped. Safe to repeat.

        Raises:
            NotFound: there is no such flow.
        """
        if self._known(gateway, name).source is None:
            self._destinations.set_paused(gateway, name, paused=paused)
        else:
            self._connectors.set_paused(gateway, name, paused=paused)

    def run(self, gateway: str, name: str) -> None:
        """Begin a poll of a flow now, without waiting for its end.

        Raises:
            NotFound: there is no such flow.
            ValidationFailed: it is fed by flushes, and is not polled.
            Conflict: it is paused.
        """
        if self._known(gateway, name).source is None:
            raise ValidationFailed(
                f"{name} follows each flush: ask for one with `lakesync flush`", field="action"
            )
        self._connectors.run(gateway, name)

    def backfill(self, gateway: str, name: str, since: Stamp = 0) -> None:
        """Have a flow deliver everything again, or all changes after a commit. Safe to repeat.

        Raises:
            NotFound: there is no such flow.
            ValidationFailed: its source cannot begin at a time.
            Conflict: it is being polled, or its source was restored from a backup.
        """
        flow = self._known(gateway, name)
        if flow.source is None:
            if since:
                raise ValidationFailed(NO_TIME_IN_GATEWAY, field="from")
            self._destinations.backfill(gateway, name)
            return
        check_not_behind(flow.source, self._store.connector(gateway, name))
        if since:
            moved = partial(cursors_since, flow.source, flow.to.tables, since)
            self._connectors.keeping.rewind(gateway, name, moved)
        else:
            self._connectors.reset(gateway, name)

    def remove(self, gateway: str, name: str) -> str:
        """Remove a flow; delivered rows stay. Return what remains at its source.

        Raises:
            NotFound: there is no such flow.
            Conflict: it is being polled, and creates something at its source.
        """
        if self._known(gateway, name).source is None:
            self._destinations.remove(gateway, name)
            return ""
        return self._connectors.remove(gateway, name)

    def _declared(self, gateway: str, name: str) -> Flow | None:
        destination = self._destinations.declared(gateway, name)
        if destination is not None:
            return flow_of_destination(destination)
        # A body may contain any name, even one that is no valid key of the store.
        stored = self._store.connector(gateway, name) if NAME.fullmatch(name) else None
        return None if stored is None else flow_of(stored)

    def _known(self, gateway: str, name: str) -> Flow:
        flow = self._declared(gateway, name)
        if flow is None:
            raise NotFound(f"there is no flow {name[:40]}", field="name")
        return flow
