"""The parts that carry out a polled flow: its source, its filter and map, its destination."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakesync.connectors.poll import PAGE_ROWS_MAX
from lakesync.connectors.port import FEED
from lakesync.connectors.registered import made_connector
from lakesync.connectors.routes import Route
from lakesync.core.flows import FLOW, DatabaseSource, flow_from_stored, place_of_type
from lakesync.flows.database_sink import DatabaseSink, brought_to
from lakesync.flows.large import large_rows
from lakesync.flows.ledger_source import LedgerSource
from lakesync.flows.plain_source import PlainSource
from lakesync.flows.remapping import Remapping
from lakesync.flows.schemas import FlowSchemas
from lakesync.flows.shaping import InDatabase, InGateway, Shaping

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lakesync.adapters.row_images import DestinationDatabase
    from lakesync.connectors.definition import Definition
    from lakesync.connectors.outside import Outside
    from lakesync.connectors.port import Connector
    from lakesync.connectors.storage import Storage
    from lakesync.core.flows import Flow
    from lakesync.core.messages import Push, PushReceipt
    from lakesync.ports import Rows, SecretStore, WallClock

    OpenDatabase = Callable[[str, str, str, str], DestinationDatabase]
    """Opens the database at the URL in a gateway's secret, for the tables of one keeper."""


class FlowRoutes:
    """Makes the routes of flows; `lakesync.connectors.routes.MakesRoutes`.

    Args:
        secrets: those of connectors.
        push: pushes to a gateway.
        rows: the rows of gateways.
        open_database: opens databases by the names of their secrets; nothing is connected yet.
        wall_clock: the time.
        outside: what connectors may use.
        place: the place of this process (`lakesync.core.flows.Flow.place`); empty if it polls all
            flows.
        rows_min: the number of unread rows from which a job reads a table; 0 for never.
        side_by_side: whether these are routes of a job's tasks, which write concurrently.
    """

    def __init__(
        self,
        secrets: SecretStore,
        push: Callable[[str, Push], PushReceipt],
        rows: Rows,
        open_database: OpenDatabase,
        *,
        wall_clock: WallClock,
        outside: Outside,
        place: str = "",
        rows_min: int = 0,
        side_by_side: bool = False,
    ) -> None:
        self._secrets = secrets
        self._push = push
        self._rows = rows
        self._open_database = open_database
        self._wall_clock = wall_clock
        self._outside = outside
        self._place = place
        self._rows_min = rows_min
        self._side_by_side = side_by_side

    def elsewhere(self, definition: Definition) -> str:
        """Return the place where a connector or flow is polled; empty if it is this one."""
        if definition.type == FLOW:
            place = flow_from_stored("", definition.configuration, 0, paused=False).place
        else:
            place = place_of_type(definition.type)
        return "" if self._place in {"", place} else place

    def route(self, gateway: str, name: str, definition: Definition, storage: Storage) -> Route:
        """Return the route of a flow.

        Raises:
            LakeSyncError: its source or its destination cannot be made.
        """
        flow = flow_from_stored(
            name, definition.configuration, definition.every_minutes, paused=definition.paused
        )
        if flow.to_gateway:
            connector, tables = self._source(gateway, flow, definition, storage)
            here = InGateway(self._rows, gateway)
            remapping = Remapping(flow.to, here, storage, is_shared=True, is_partial=FEED in tables)
            return Route(
                connector, tables, lambda push: self._push(gateway, push),
                Shaping(flow.to, here, remapping),
                large_rows=large_rows(flow, self._rows_min), read_whole=remapping.read_whole,
            )  # fmt: skip
        database = self._open_database(gateway, flow.to.secret, flow.to.kind, keeper(gateway, name))
        storage.brought = brought_to(database)
        connector, tables = self._source(gateway, flow, definition, storage)
        schemas = FlowSchemas(connector, tables, flow.to, storage, wall_clock=self._wall_clock)
        sink = DatabaseSink(
            database, schemas.of, wall_clock=self._wall_clock, side_by_side=self._side_by_side
        )
        there = InDatabase(database)
        remapping = Remapping(flow.to, there, storage, is_shared=False, is_partial=FEED in tables)
        shape = Shaping(flow.to, there, remapping)
        pages = max(1, flow.to.pace.rows // PAGE_ROWS_MAX)
        return Route(
            connector, tables, sink.push, shape, pages, database.close,
            large_rows(flow, self._rows_min), flow.to.pace.job_rows, sink.fence,
            remapping.read_whole,
        )  # fmt: skip

    def _source(
        self, gateway: str, flow: Flow, definition: Definition, storage: Storage
    ) -> tuple[Connector, Mapping[str, str]]:
        if isinstance(flow.source, DatabaseSource):
            database = self._open_database(
                gateway, flow.source.secret, flow.source.kind, flow.source.gateway
            )
            names = sorted(flow.to.tables)
            if plain := flow.source.plain:
                read = {name: plain[name] for name in names}
                return PlainSource(database, read, storage.brought), {name: name for name in names}
            return LedgerSource(database, names, storage.brought), {name: name for name in names}
        connector, tables = made_connector(
            self._secrets, storage, self._outside, gateway, flow.name, definition
        )
        if FEED in tables:
            return connector, tables  # it has the changes of all tables in one sequence
        wanted = flow.to.tables
        return connector, {
            source: name for source, name in tables.items() if not wanted or name in wanted
        }


def keeper(gateway: str, name: str) -> str:
    """Return the name under which a database keeps a flow's tables, apart from all others."""
    return f"{gateway}/{name}"
