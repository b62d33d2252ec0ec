"""The parts that carry out a polled flow: its source, its filter and map, its destination.

Which flows a job may read is decided here; whether a table of such a flow is large, by
`lakesync.connectors.poll`.

The schemas of a flow's tables at a database: the source's, extended as that changes. A new column
at the source is added; a dropped one stays. If a column's new type is not a widening of its old
one, the old type stays: rows that do not fit become dead letters, and the others are delivered.

A database as the destination of a polled flow: accepts pushes as the gateway does. Each push is one
commit in each table that it changes, behind the table's mark. Deltas without effect are left out,
so a repeated page is not written again.

Laws Y3, Y5, Y8, Y11: ``docs/spec/flows.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lakesync.adapters.database import PlacedDelta, Position, SideBySide, TableBatch
from lakesync.connectors.poll import PAGE_ROWS_MAX, Route
from lakesync.connectors.port import FEED, BroughtRows
from lakesync.connectors.registry import made_connector
from lakesync.core.clock import stamp, stamp_ms
from lakesync.core.column_types import widens
from lakesync.core.delta import COLUMNS_MAX
from lakesync.core.destinations import KINDS
from lakesync.core.flows import FLOW, DatabaseSource, flow_from_stored, place_of_type
from lakesync.core.merge import EMPTY, apply, view
from lakesync.core.messages import DeltaOutcome, OutcomeKind, PushReceipt
from lakesync.core.names import folded, is_identifier
from lakesync.core.schema import Column, TableSchema
from lakesync.errors import ConstraintViolated, Contention
from lakesync.flows.database_sources import LedgerSource, PlainSource
from lakesync.flows.shaping import InDatabase, InGateway, Remapping, Shaping

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from lakesync.adapters.database import DatabaseAdapter, DeadLetter, DestinationDatabase
    from lakesync.connectors.port import Connector, Outside, SourceColumn, Storage, TellsBrought
    from lakesync.connectors.registry import Definition
    from lakesync.core.clock import Stamp
    from lakesync.core.delta import Delta
    from lakesync.core.destinations import Destination
    from lakesync.core.flows import Flow
    from lakesync.core.merge import RowState
    from lakesync.core.messages import Push
    from lakesync.ports import Rows, SecretStore, WallClock

    OpenDatabase = Callable[[str, str, str, str], DestinationDatabase]
    """Opens the database at the URL in a gateway's secret, for the tables of one keeper."""

# --- routes ---------------------------------------------------------------------------------------


class FlowRoutes:
    """Makes the routes of flows; `lakesync.connectors.poll.MakesRoutes`.

    Args:
        open_database: opens databases by the names of their secrets; nothing is connected yet.
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


# --- large flows ----------------------------------------------------------------------------------


def large_rows(flow: Flow, rows_min: int) -> int:
    """Return the number of unread rows from which a job reads a flow's table; 0 for never.

    Args:
        rows_min: the operator's limit for all flows, in rows; 0 for never.
    """
    # The job runs near the databases, and has the libraries for Iceberg, but no package that adds a
    # kind of database.
    source = flow.source.kind if isinstance(flow.source, DatabaseSource) else ""
    has_all = {source, flow.to.kind} <= {*KINDS, ""}
    is_connector = flow.to_gateway and not source
    return rows_min if has_all and not is_connector else 0


# --- schemas --------------------------------------------------------------------------------------


_FOLDER: Final = "schemas"


class FlowSchemas:
    """The schemas of one flow's tables; one for each poll.

    Args:
        tables: the source's tables, each with its name here.
        storage: keeps the former schema of a table.
    """

    def __init__(
        self,
        connector: Connector,
        tables: Mapping[str, str],
        to: Destination,
        storage: Storage,
        *,
        wall_clock: WallClock,
    ) -> None:
        self._connector = connector
        self._tables = tables
        self._to = to
        self._storage = storage
        self._wall_clock = wall_clock
        self._columns: dict[str, tuple[SourceColumn, ...]] | None = None
        self._schemas: dict[str, TableSchema | None] = {}
        """The schemas by table: a poll asks the source and the storage once for each."""

    def of(self, table: str) -> TableSchema | None:
        """Return the schema that a table has at the destination; None without known columns.

        Raises:
            LakeSyncError: the source's tables cannot be listed.
        """
        if table not in self._schemas:
            self._schemas[table] = self._read(table)
        return self._schemas[table]

    def _read(self, table: str) -> TableSchema | None:
        if self._columns is None:
            discovered = self._connector.discover().unwrap()
            self._columns = {
                self._tables[one.name]: one.columns
                for one in discovered
                if one.name in self._tables
            }
        columns = self._columns.get(table, ())
        before = self._storage.read(_FOLDER, table) or {"version": 0, "columns": []}
        grown = _grown(before["columns"], columns)
        if not grown:
            return None
        if grown != before["columns"]:
            version = max(before["version"] + 1, self._wall_clock() // 1_000)
            before = {"version": version, "columns": grown}
            self._storage.write(before, _FOLDER, table)
        schema = TableSchema(
            table, tuple(Column(name, kind) for name, kind in grown), before["version"]
        )
        return self._to.schema_of(table, schema)


def _grown(before: Iterable[Any], columns: Iterable[SourceColumn]) -> list[list[str]]:
    grown: dict[str, str] = dict(before)
    spelled = {folded(name) for name in grown}
    for column in columns:
        kind = grown.get(column.name)
        if kind is not None:
            grown[column.name] = column.type if widens(kind, column.type) else kind
        elif is_identifier(column.name) and folded(column.name) not in spelled:
            grown[column.name] = column.type
            spelled.add(folded(column.name))
    return [[name, kind] for name, kind in list(grown.items())[:COLUMNS_MAX]]


# --- a database as the destination ----------------------------------------------------------------


_BROUGHT_ROWS: Final = 500
_MARK_AGE_MS: Final = 3_600_000
"""How far a table's mark may be behind the clock: history is kept by its commits' times."""


class DatabaseSink:
    """Writes pushes to a database.

    Args:
        database: the destination; no other writer changes these tables.
        schema_of: gives a table's schema in the destination, None without one.
        side_by_side: whether tasks of one job write these tables at once, each its own rows.
    """

    def __init__(
        self,
        database: DestinationDatabase,
        schema_of: Callable[[str], TableSchema | None],
        *,
        wall_clock: WallClock,
        side_by_side: bool = False,
    ) -> None:
        self._database = database
        self._apart = database if side_by_side and isinstance(database, SideBySide) else None
        self._schema_of = schema_of
        self._wall_clock = wall_clock

    def push(self, push: Push) -> PushReceipt:
        """Make deltas durable in the database. Safe to repeat.

        For each table it reads the mark and the rows, and writes once; the first time, and after an
        hour, it moves the mark before that.

        Raises:
            LakeSyncError: the database refused; what was written to other tables stays.
        """
        tables: dict[str, list[tuple[int, Delta]]] = {}
        for index, delta in push.deltas:
            tables.setdefault(delta.table, []).append((index, delta))
        refused = [
            outcome for table, items in tables.items() for outcome in self._put(table, items)
        ]
        return PushReceipt(0, len(push.deltas) - len(refused), tuple(refused))

    def fence(self, table: str) -> None:
        """Move a table's mark, so that no earlier batch is accepted any more. Safe to repeat.

        This waits for a transaction that is about to commit, as that has locked the mark. So later
        reads see its changes.

        Raises:
            LakeSyncError: the database refused.
        """
        mark = self._database.mark(table).unwrap()
        self._move(table, mark)

    def _put(self, table: str, items: list[tuple[int, Delta]]) -> list[DeltaOutcome]:
        mark: Stamp | None
        if self._apart is not None:
            mark, fresh = None, self._fresh(table, items)  # no other task writes these rows
        else:
            mark, fresh = self._placed(table, items)
        letters = (
            self._insert(table, mark, fresh)
            if fresh
            else self._database.dead_letters(table).unwrap()
        )
        reasons = {letter.row_id: letter.reason for letter in letters}
        return [
            DeltaOutcome(
                index,
                delta.delta_id,
                OutcomeKind.REFUSED,
                ConstraintViolated(reasons[delta.row_id]),
            )
            for index, delta in items
            if delta.row_id in reasons
        ]

    def _placed(self, table: str, items: list[tuple[int, Delta]]) -> tuple[Stamp, list[Delta]]:
        """Return a table's mark, and the deltas that change a row as it is at that mark or later.

        The mark is read before the rows: a batch of the very next commit is skipped if another
        writer, such as one whose lease has ended, has moved the mark since. So commits do not
        follow the clock; the mark does, at least each hour.
        """
        mark = self._database.mark(table).unwrap()
        fresh = self._fresh(table, items)
        if fresh and self._wall_clock() - stamp_ms(mark) > _MARK_AGE_MS:
            mark = self._move(table, mark)
            fresh = self._fresh(table, items)
        return mark, fresh

    def _move(self, table: str, mark: Stamp) -> Stamp:
        last = max(mark + 1, stamp(self._wall_clock()))
        batch = TableBatch(table, mark, last, (), self._schema_of(table))
        self._database.insert_deltas(batch).unwrap()
        return last

    def _fresh(self, table: str, items: list[tuple[int, Delta]]) -> list[Delta]:
        row_ids = list({delta.row_id: None for _, delta in items})
        states = dict(self._database.rows_of(table, row_ids).unwrap())
        return [delta for _, delta in items if _changes(states, delta)]

    def _insert(
        self, table: str, mark: Stamp | None, deltas: list[Delta]
    ) -> tuple[DeadLetter, ...]:
        """Write deltas as the commit behind a mark; without one, beside other tasks."""
        last = stamp(self._wall_clock()) if mark is None else mark + 1
        placed = [PlacedDelta(Position(last, place), delta) for place, delta in enumerate(deltas)]
        batch = TableBatch(table, mark or 0, last, placed, self._schema_of(table))
        insert = self._database.insert_deltas if self._apart is None else self._apart.insert_apart
        inserted = insert(batch).unwrap()
        if inserted.deltas < len(placed):
            raise Contention(
                f"another writer just wrote {table}; repeat the operation", retry_after_s=1
            )
        return inserted.dead_letters


def _changes(states: dict[str, RowState], delta: Delta) -> bool:
    """Return whether a delta changes its row, and store the row's new state in ``states``."""
    before = states.get(delta.row_id, EMPTY)
    after = states[delta.row_id] = apply(before, delta)
    return after is not before


def brought_to(database: DatabaseAdapter) -> TellsBrought:
    """Return a listing of the rows that a flow delivered: all rows of its own database."""

    def brought(table: str, place: str) -> BroughtRows:
        page = database.rows_after(table, place, _BROUGHT_ROWS).unwrap()
        shown = tuple(row_id for row_id, state in page.rows.items() if view(state) is not None)
        return BroughtRows(shown, max(page.rows, key=str.encode) if page.has_more else "")

    return brought
