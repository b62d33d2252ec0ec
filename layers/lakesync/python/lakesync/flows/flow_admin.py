"""Administration of flows: plan, declare, show, pause, run, backfill, remove.

A flow from the gateway is stored as a declared destination, every other flow as a connector, both
under the flow's name.

Moves a polled flow's cursors back, to deliver changes since a time again. A cursor is never moved
forward, so unread rows are not skipped, and a table whose first read is not complete stays where it
is. A source without change times is refused.

Laws Y4, Y5, Y7, Y10: ``docs/spec/flows.md``.
"""

from __future__ import annotations

from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from lakesync.adapters.database_types import database_kinds
from lakesync.connectors.port import FEED, Storage
from lakesync.connectors.registry import (
    BUILT_IN,
    Definition,
    asked,
    configured,
    connector_type,
    definition_from,
    secret_names,
    secrets_in,
    shown,
    tables_of,
)
from lakesync.connectors.state import state_from
from lakesync.core.clock import stamp_ms
from lakesync.core.destinations import NAME
from lakesync.core.flows import (
    FLOW,
    LAKES,
    ConnectorSource,
    DatabaseSource,
    Flow,
    flow_from_stored,
    flow_of_destination,
    flow_to_json,
    flow_to_stored,
)
from lakesync.declare import refuse
from lakesync.declare.flows import read_flow
from lakesync.errors import Conflict, Fault, FlowRefused, LakeSyncError, NotFound, ValidationFailed
from lakesync.flows.database_sources import RESTORED, begun_at, place_from
from lakesync.flows.shaping import plan_of_connector, plan_of_gateway, plan_of_source

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from lakesync.connectors.connector_admin import ConnectorAdmin
    from lakesync.core.clock import Stamp
    from lakesync.flows.shaping import CountsRows
    from lakesync.gateway.destination_admin import AsksDatabase, DestinationAdmin, DestinationReport
    from lakesync.ports import Buffer, ConnectorStore, StoredConnector, WallClock


class FlowAdmin:
    """Declares and shows the flows of gateways.

    Args:
        counts: returns what a flow from a database would move, as `shaping.plan_of_database` does.
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
            self._destinations.check(gateway, lambda _: flow.to, asks=asks)
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
                answer["tables"] = plan_of_connector(
                    flow, connector, tables, self._now_ms(), reads=reads
                )
        elif flow.source is None:
            answer["tables"] = plan_of_gateway(flow, self._buffer, gateway)
        else:
            answer |= plan_of_source(flow, gateway, self._counts)
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
            self._destinations.declare(gateway, flow.name, lambda _: flow.to, asks=False)
        elif answer["isNew"]:
            answer |= self._begin(gateway, flow, asks=asks)
        else:
            self._connectors.complete(gateway, flow.name, hidden_in(flow))
        return answer

    def _begin(self, gateway: str, flow: Flow, *, asks: bool) -> dict[str, str]:
        """Register a flow that is polled; return its source's answer."""
        said: dict[str, str] = {}
        self._connectors.check_free(gateway, flow.name)
        if asks and isinstance(flow.source, DatabaseSource):
            self._ask(gateway, flow.source.kind, flow.source.secret)
        if isinstance(flow.source, ConnectorSource):
            kind, given = connector_type(flow.source.type), flow.source.configuration
            settings = configured(kind, dict(given))
            with closing(self._connectors.made(kind, settings, gateway, flow.name)) as connector:
                said = {"message": asked(connector)} if asks else {}
        definition = Definition(FLOW, flow_to_stored(public(flow)), flow.every_minutes)
        self._connectors.begin(gateway, flow.name, definition, hidden_in(flow))
        return said

    def _ask(self, gateway: str, kind: str, secret: str) -> None:
        if self._asks is not None:
            self._asks(gateway, kind, secret)

    def declared(self, gateway: str, name: str) -> dict[str, Any] | None:
        """Return a flow's declaration, without secrets; None if there is none."""
        flow = self._declared(gateway, name)
        return None if flow is None else flow_to_json(flow)

    def all(self, gateway: str) -> list[dict[str, Any]]:
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
            self._connectors.rewind(gateway, name, moved)
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


# --- declarations ---------------------------------------------------------------------------------


_DLT: Final = "dlt"
_NOT_TO_LAKES: Final = (
    "dlt and connectors of your own have no room beside Iceberg in one function: lead them into "
    "the gateway, or into a database, and a flow from there to Iceberg"
)


def flow_of(stored: StoredConnector) -> Flow | None:
    definition = definition_from(stored.definition)
    if definition.type != FLOW:
        return None
    return flow_from_stored(
        stored.name, definition.configuration, definition.every_minutes, paused=definition.paused
    )


def check_source(flow: Flow) -> None:
    """Check the settings of a flow's connector, and that it reads the named tables.

    Raises:
        FlowRefused: they are invalid.
    """
    if not isinstance(flow.source, ConnectorSource):
        return
    try:
        kind = connector_type(flow.source.type)
        settings = configured(kind, dict(flow.source.configuration))
        tables = {*tables_of(kind, settings).values()}
    except LakeSyncError as error:
        at = f"source.{error.field}" if error.field else "source"
        fault = Fault(at.replace("source.type", "source.connector"), error.message)
        refuse(FlowRefused, "flow", [fault])
        raise
    if flow.place == LAKES and not (flow.source.type in BUILT_IN and flow.source.type != _DLT):
        refuse(FlowRefused, "flow", [Fault("source.connector", _NOT_TO_LAKES)])
    unknown = sorted(({*flow.to.tables} | {*flow.to.maps} | flow.to.rows.tables()) - tables)
    message = f"its source gives {', '.join(sorted(tables))}"
    faults = [Fault("tables", f"there is no table {name}: {message}") for name in unknown]
    refuse(FlowRefused, "flow", faults)


def public(flow: Flow) -> Flow:
    if not isinstance(flow.source, ConnectorSource):
        return flow
    return flow.without(secret_names(connector_type(flow.source.type)))


def hidden_in(flow: Flow) -> dict[str, str]:
    if not isinstance(flow.source, ConnectorSource):
        return {}
    return secrets_in(flow.source.configuration, secret_names(connector_type(flow.source.type)))


def shown_flow(flow: Flow) -> dict[str, Any]:
    return flow_to_json(public(flow))


def says_same(declared: Flow, wanted: Flow) -> bool:
    """Return whether a declaration equals the one in force; secrets are not compared."""
    return {**shown_flow(declared), "paused": False} == {**shown_flow(wanted), "paused": False}


# --- status ---------------------------------------------------------------------------------------


def delivered_status(report: DestinationReport) -> dict[str, Any]:
    """Return a flow that is fed by flushes, with its status.

    Its lag is the waiting time of the oldest commit that was not delivered yet.
    """
    status: dict[str, Any] = {
        **flow_to_json(flow_of_destination(report.destination)),
        "state": report.state,
        "lagS": report.lag_ms // 1_000,
        "waiting": report.waiting,
        "deadLetters": sum(one.dead_letters for one in report.tables.values())
        + len(report.set_aside),
    }
    errors = [(one.at_ms, table, one.error) for table, one in report.tables.items() if one.error]
    if errors:
        at_ms, table, message = max(errors)
        status["lastError"] = {"error": message, "atMs": at_ms, "table": table}
    return status


def polled_status(flow: Flow, stored: StoredConnector, now_ms: int) -> dict[str, Any]:
    """Return a polled flow, with its status.

    Its lag is the time since the last completed poll began: all earlier changes are delivered.
    Before the first completed poll it is left out.
    """
    polled = shown(stored, now_ms)
    status: dict[str, Any] = {
        **flow_to_json(flow),
        "state": _state(flow, polled),
        "rows": polled["rows"],
        "polls": polled["polls"],
        "deadLetters": polled["deadLetterCount"],
    }
    return status | {
        key: polled[key] for key in ("lagS", "waitS", "jobMs", "lastError") if key in polled
    }


def _state(flow: Flow, polled: dict[str, Any]) -> str:
    if flow.paused:
        return "paused"
    if "lastError" in polled:
        return "failing"
    if polled["isReading"]:
        return "reading"
    if "waitS" in polled:
        return "waiting"
    return "current" if polled["polls"] else "filling"


# --- backfills ------------------------------------------------------------------------------------


NO_TIME_IN_GATEWAY: Final = (
    "a flow from the gateway cannot begin at a time, as its rows have the times of their edits, "
    "which may be long before they arrived; leave it out to deliver everything again: existing "
    "rows stay as they are"
)
"""The reason why no flow from a gateway can begin at a time."""


def check_not_behind(
    source: ConnectorSource | DatabaseSource, stored: StoredConnector | None
) -> None:
    """Refuse to forget the cursor of a source that is now older than the cursor.

    Raises:
        Conflict: it was restored from a backup.
    """
    cursors = state_from(stored.state).cursors.values() if stored else ()
    is_kept = isinstance(source, DatabaseSource)
    if is_kept and any(one and place_from(one).step == RESTORED for one in cursors):
        raise Conflict(
            "its source was restored from a backup, and is not as far as it was read: once "
            "something newer is committed there, all is read again by itself"
        )


def cursors_since(
    source: ConnectorSource | DatabaseSource,
    wanted: Collection[str],
    since: Stamp,
    secrets: Mapping[str, str],
    cursors: Mapping[str, str],
) -> dict[str, str]:
    """Return the new cursors of the tables whose cursors move.

    Args:
        wanted: the flow's tables, by their names here; none for all.
        since: the commit after which, or the time at which, to begin.
        cursors: the current cursors; none for a table that was not read yet.

    Raises:
        ValidationFailed: the source cannot begin at a time.
    """
    if isinstance(source, DatabaseSource) and source.plain:
        raise ValidationFailed(
            "tables of other writers are read from snapshot to snapshot, and cannot begin at a "
            "time; leave it out to deliver everything again",
            field="from",
        )
    if isinstance(source, DatabaseSource):
        moved = {table: begun_at(cursor, since) for table, cursor in cursors.items() if cursor}
    else:
        kind = connector_type(source.type)
        if kind.begins_at is None:
            raise ValidationFailed(
                f"a source of the type {source.type} cannot begin at a time; leave it out to "
                "bring everything again",
                field="from",
            )
        settings = configured(kind, {**source.configuration, **secrets})
        at_us = stamp_ms(since) * 1_000
        moved = {
            name: kind.begins_at(settings, name, cursors.get(name, ""), at_us)
            for name, table in tables_of(kind, settings).items()
            if not wanted or table in wanted or name == FEED
        }
    return {table: cursor for table, cursor in moved.items() if cursor != cursors.get(table, "")}
