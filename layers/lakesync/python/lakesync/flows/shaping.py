"""What a flow's filter and map make of rows: of a source's deltas, and of samples in its plan.

A row that no longer passes the filter is deleted at the destination; one that was never there
leaves no trace.

Cleans rows that a flow delivered by another map, when it delivers them again. A flow that is
declared again, or delivers everything again, finds rows that it delivered by a former map. A merge
would keep columns that only the former map delivered. So until a table was read whole once, each
row is compared with the one at the destination.

Rules of remapping
    1. A note in the flow's storage says that a table is clean. It is written at once if nothing was
       delivered yet, else once the whole table was read, and is removed together with the flow's
       cursors.
    2. In a database nobody else writes these rows: a row is deleted, and written again with a stamp
       just above. In a gateway others may write them: columns that the flow wrote and no longer
       delivers become null.
    3. From a source that may omit columns (a log of changes), a missing column means nothing: only
       columns that the current map cannot produce are removed.

A flow is planned before it is declared: its tables, rows, and columns at the destination. At most
`PLAN_ROWS_MAX` rows of a table are read. From a connector that creates something at its source
nothing is read.

Laws Y1, Y2, Y6, Y8: ``docs/spec/flows.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from lakesync.connectors.port import FEED, BroughtRows
from lakesync.core.column_map import map_delta
from lakesync.core.delta import NULL, Op, canonical, known_delta
from lakesync.core.flows import DatabaseSource
from lakesync.core.merge import EMPTY, apply, as_read, view
from lakesync.core.visibility import rule_columns
from lakesync.errors import LakeSyncError
from lakesync.flows.database_sources import PlainSource
from lakesync.result import Ok
from lakesync.wire.records import decode_row_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from lakesync.adapters.database import DatabaseAdapter
    from lakesync.connectors.port import Connector, Storage
    from lakesync.core.column_map import ColumnMap
    from lakesync.core.delta import CanonicalJson, Delta
    from lakesync.core.destinations import Destination
    from lakesync.core.flows import Flow
    from lakesync.core.merge import RowState
    from lakesync.ports import Buffer, Rows

    CountsRows = Callable[[str, Flow], Mapping[str, Any]]
    """Returns the result of `of_database` for a gateway's flow; runs where the database can be
    reached."""

ROWS_LOOKED_UP_MAX: Final = 250
"""Rows of the gateway that are read at a time: nearly always a MB at the most."""


class Shaping:
    """Decides about deltas of whole rows and maps them; one for each poll.

    Args:
        remapping: cleans rows that a former declaration delivered.
    """

    def __init__(self, to: Destination, there: There, remapping: Remapping) -> None:
        self._to = to
        self._there = there
        self._remapping = remapping
        self._viewer = to.viewer()
        self._columns: dict[str, frozenset[str] | None] = {}

    def __call__(self, deltas: Sequence[Delta]) -> list[Delta]:
        wanted = [one for one in deltas if not self._to.tables or one.table in self._to.tables]
        passes = [self._passes(one) for one in wanted]
        present = self._present([one for one, shown in zip(wanted, passes, strict=True)
                                 if not shown])  # fmt: skip
        shaped: list[Delta] = []
        for one, shown in zip(wanted, passes, strict=True):
            row = (one.table, one.row_id)
            if shown:
                present.add(row)
                shaped.append(map_delta(self._to.map_of(one.table), one))
            elif row in present:
                present.discard(row)
                shaped.append(
                    known_delta(Op.DELETE, one.table, one.row_id, one.client_id, one.hlc, ())
                )
        return self._remapping.corrected(shaped)

    def _passes(self, delta: Delta) -> bool:
        if delta.op is Op.DELETE:
            return False
        table = delta.table
        if table not in self._columns:
            is_filtered = self._to.is_filtered(table)
            self._columns[table] = self._to.rows.columns(table) if is_filtered else None
        columns = self._columns[table]
        return columns is None or self._viewer.sees(table, rule_columns(delta.columns, columns))

    def _present(self, hidden: Sequence[Delta]) -> set[tuple[str, str]]:
        """Return the rows of deltas that exist at the destination; others need no deletion."""
        states = states_of(self._there, hidden)
        return {row for row, state in states.items() if view(state) is not None}


class InGateway:
    """The rows of a gateway: `lakesync.flows.shaping.There`."""

    def __init__(self, rows: Rows, gateway: str) -> None:
        self._rows = rows
        self._gateway = gateway

    def states(self, table: str, row_ids: Sequence[str]) -> dict[str, RowState]:
        states: dict[str, RowState] = {}
        for start in range(0, len(row_ids), ROWS_LOOKED_UP_MAX):
            some = [(table, row_id) for row_id in row_ids[start : start + ROWS_LOOKED_UP_MAX]]
            for (_, row_id), stored in self._rows.rows(self._gateway, some).items():
                states[row_id] = decode_row_state(stored.state)
        return states

    def has_rows(self, table: str) -> bool:
        """Return whether a table has any rows, deleted ones too."""
        first = self._rows.scan_rows(self._gateway, table, "", 1)
        return bool(first.rows or first.place)


class InDatabase:
    """The rows of a database: `lakesync.flows.shaping.There`."""

    def __init__(self, database: DatabaseAdapter) -> None:
        self._database = database

    def states(self, table: str, row_ids: Sequence[str]) -> Mapping[str, RowState]:
        return self._database.rows_of(table, row_ids).unwrap() if row_ids else {}

    def has_rows(self, table: str) -> bool:
        """Return whether a table has any rows, deleted ones too."""
        return bool(self._database.rows_after(table, "", 1).unwrap().rows)


# --- remapping ------------------------------------------------------------------------------------


_FOLDER: Final = "mapped"
TIMES_MAX: Final = 64
"""How often a row that did not change at its source may be rewritten: each time its stamp is one
higher."""


class There(Protocol):
    """The rows at a flow's destination."""

    def states(self, table: str, row_ids: Sequence[str]) -> Mapping[str, RowState]:
        """Return the states of those rows of a table that exist."""
        ...

    def has_rows(self, table: str) -> bool:
        """Return whether a table has, or had, any rows."""
        ...


def states_of(there: There, deltas: Sequence[Delta]) -> dict[tuple[str, str], RowState]:
    """Return the states of the rows of deltas, by table and row id; one read for each table."""
    by_table: dict[str, dict[str, None]] = {}
    for one in deltas:
        by_table.setdefault(one.table, {})[one.row_id] = None
    return {
        (table, row_id): state
        for table, row_ids in by_table.items()
        for row_id, state in there.states(table, list(row_ids)).items()
    }


class Remapping:
    """Corrects the deltas of tables that are not clean; one object for each poll.

    Args:
        is_shared: whether others may write these rows as well.
        is_partial: whether the source may omit columns.
    """

    def __init__(
        self,
        to: Destination,
        there: There,
        storage: Storage,
        *,
        is_shared: bool,
        is_partial: bool,
    ) -> None:
        self._to = to
        self._there = there
        self._storage = storage
        self._is_shared = is_shared
        self._is_partial = is_partial
        self._clean: dict[str, bool] = {}

    def corrected(self, deltas: Sequence[Delta]) -> list[Delta]:
        """Return deltas, with those that clean their rows, in their order. Safe to repeat."""
        doubted = [one for one in deltas if not self._is_clean(one.table)]
        if not doubted:
            return list(deltas)
        states = {(one.table, one.row_id): EMPTY for one in doubted}
        states |= states_of(self._there, doubted)
        corrected: list[Delta] = []
        for one in deltas:
            row = (one.table, one.row_id)
            given = [one]
            if row in states:
                given = self._put(one, states[row])
                for each in given:
                    states[row] = apply(states[row], each)
            corrected += given
        return corrected

    def read_whole(self, table: str) -> None:
        """Note that a whole table was delivered by the current declaration. Safe to repeat."""
        if self._clean.get(table) is False:
            self._note(table)

    def _is_clean(self, table: str) -> bool:
        if table not in self._clean:
            self._clean[table] = bool(self._storage.read(_FOLDER, table))
            if not self._clean[table] and not self._there.has_rows(table):
                self._note(table)
        return self._clean[table]

    def _note(self, table: str) -> None:
        self._storage.write(True, _FOLDER, table)
        self._clean[table] = True

    def _put(self, delta: Delta, there: RowState) -> list[Delta]:
        """Return a row's delta, or the deltas that clean the row.

        The new row comes first, then the deletion of the old one: after a crash in between, both
        exist.
        """
        if delta.op is not Op.INSERT:
            return [delta]
        stale, is_lost = self._stale(delta, there), self._is_lost(delta, there)
        if not stale and not is_lost:
            return [delta]
        if self._is_shared:
            stamps = [delta.hlc, *(there.columns[name][0] for name in stale)]
            stamps += [there.deleted] if is_lost else []
        else:
            stamps = [there.alive, there.deleted, *(one[0] for one in there.columns.values())]
        above = max(delta.hlc - 1, *stamps)
        if above > delta.hlc + TIMES_MAX:
            return [delta]  # the stored row is newer: its change will be delivered too
        if not self._is_shared:
            return [_at(delta, Op.INSERT, above + 1), _at(delta, Op.DELETE, above, {})]
        brought = dict(delta.columns)
        columns = {name: brought.get(name, NULL) for name in sorted(stale)}
        columns = brought | columns if is_lost else columns
        return [delta, _at(delta, Op.INSERT if is_lost else Op.UPDATE, above + 1, columns)]

    def _is_lost(self, delta: Delta, there: RowState) -> bool:
        """Return whether a deletion by the flow covers a row.

        The flow's filter was another then, or the row was rewritten earlier.
        """
        if delta.hlc > there.deleted or (self._is_partial and view(there) is None):
            return False
        return view(there) is None or any(name not in there.columns for name, _ in delta.columns)

    def _stale(self, delta: Delta, there: RowState) -> set[str]:
        """Return the columns of a row that a merge would keep, but the flow does not deliver."""
        brought, column_map = dict(delta.columns), self._to.map_of(delta.table)
        stale = set()
        for name, (hlc, client_id, value) in there.columns.items():
            if client_id != delta.client_id:
                continue
            if name not in brought:
                is_left = self._is_partial and _makes(column_map, name)
                if not is_left and not (self._is_shared and value == NULL):
                    stale.add(name)
            elif brought[name] != value and delta.hlc <= hlc <= delta.hlc + TIMES_MAX:
                stale.add(name)
        return stale


def _makes(column_map: ColumnMap, name: str) -> bool:
    is_named = name in column_map.constant or name in column_map.rename.values()
    return is_named or column_map.target(name) == name


def _at(
    delta: Delta, op: Op, hlc: int, columns: Mapping[str, CanonicalJson] | None = None
) -> Delta:
    """Return another delta of the same row, with the same columns unless others are passed."""
    named = delta.columns if columns is None else tuple(columns.items())
    return known_delta(op, delta.table, delta.row_id, delta.client_id, hlc, named)


# --- plans ----------------------------------------------------------------------------------------


PLAN_ROWS_MAX: Final = 5_000
"""Rows of a table that a plan reads."""
PLAN_TABLES_MAX: Final = 20
"""Tables of which a plan reads rows; of further ones it only lists the columns."""
_PAGE_ROWS: Final = 1_000


def plan_of_gateway(flow: Flow, buffer: Buffer, gateway: str) -> list[dict[str, Any]]:
    """Return what a flow from a gateway would move of its current rows."""
    config = buffer.config(gateway)
    tables = [table for table in sorted({*config.schemas, *config.tables}) if flow.to.wants(table)]
    planned: list[dict[str, Any]] = []
    for number, table in enumerate(tables):
        schema = config.schemas.get(table)
        columns = [one.name for one in schema.columns] if schema else sorted(config.tables[table])
        entry: dict[str, Any] = {"table": table, "columns": _mapped(flow, table, columns)}
        if number < PLAN_TABLES_MAX and not config.appends(table):
            entry |= _counted_in_gateway(flow, buffer, gateway, table)
        planned.append(entry)
    return planned


def plan_of_connector(
    flow: Flow, connector: Connector, tables: Mapping[str, str], now_ms: int, *, reads: bool
) -> list[dict[str, Any]]:
    """Return what a flow from a connector would move.

    Args:
        tables: the source's tables, each with its name in the gateway.
        reads: whether its first page may be read.

    Raises:
        LakeSyncError: the source's tables cannot be listed.
    """
    there = {one.name: one.columns for one in connector.discover().unwrap()}
    planned: list[dict[str, Any]] = []
    for source, table in tables.items():
        if source == FEED or (flow.to.tables and table not in flow.to.tables):
            continue
        columns = [one.name for one in there.get(source, ())]
        entry: dict[str, Any] = {"table": table, "columns": _mapped(flow, table, columns)}
        if reads and len(planned) < PLAN_TABLES_MAX:
            page = connector.read(source, "", rows_max=_PAGE_ROWS, poll_ms=now_ms)
            if isinstance(page, Ok):
                rows = [one.columns for one in page.value.changes if one.columns is not None]
                encoded = [{name: canonical(value) for name, value in row.items()} for row in rows]
                entry |= _counted(flow, table, encoded) | {"hasMore": page.value.has_more}
        planned.append(entry)
    return planned


def plan_of_source(flow: Flow, gateway: str, counts: CountsRows) -> dict[str, Any]:
    """Return what a flow from a database would move; a missing database is not a fault."""
    try:
        return dict(counts(gateway, flow))
    except LakeSyncError as error:
        tables = [{"table": table} for table in sorted(flow.to.tables)]
        return {"tables": tables, "message": f"Its rows are not counted: {error.message}."}


def plan_of_database(
    flow: Flow, database: DatabaseAdapter, has_time: Callable[[], bool]
) -> dict[str, Any]:
    """Return what a flow from a database would move of its current rows.

    Returns:
        The tables, and a sentence on those that do not exist.

    Raises:
        LakeSyncError: the database does not answer.
    """
    there = database.tables().unwrap()
    planned: list[dict[str, Any]] = []
    for table in sorted(flow.to.tables):
        entry: dict[str, Any] = {"table": table}
        schema = there.get(table)
        if schema is not None:
            columns = [one.name for one in schema.columns]
            entry["columns"] = _mapped(flow, table, columns)
        if table in there and len(planned) < PLAN_TABLES_MAX and has_time():
            page = database.rows_after(table, "", PLAN_ROWS_MAX).unwrap()
            delete_wins = schema is not None and schema.delete_wins
            states = (as_read(one, delete_wins=delete_wins) for one in page.rows.values())
            rows = [row for state in states if (row := view(state)) is not None]
            entry |= _counted(flow, table, rows) | {"hasMore": page.has_more}
        planned.append(entry)
    missing = sorted(flow.to.tables - there.keys())
    said = f"It has no table {', '.join(missing)}." if missing else "It has all the tables."
    return {"tables": planned, "message": said}


def plan_of_plain(flow: Flow, database: DatabaseAdapter) -> dict[str, Any]:
    """Return what a flow from other writers' tables would move, from the first page of each.

    Raises:
        LakeSyncError: one does not exist, or has no such key.
    """
    assert isinstance(flow.source, DatabaseSource)  # noqa: S101 - nothing else is plain
    wanted = {name: flow.source.plain[name] for name in sorted(flow.to.tables)}
    source = PlainSource(database, wanted, _nothing_brought)
    message = source.check().unwrap()
    tables = plan_of_connector(flow, source, {name: name for name in wanted}, 0, reads=True)
    return {"tables": tables, "message": message}


def _nothing_brought(table: str, place: str) -> BroughtRows:  # noqa: ARG001 - as `TellsBrought`
    """Return no rows: a plan delivers none."""
    return BroughtRows((), "")


def _counted_in_gateway(flow: Flow, buffer: Buffer, gateway: str, table: str) -> dict[str, Any]:
    rows: list[Mapping[str, CanonicalJson]] = []
    config = buffer.config(gateway)
    place, has_more = "", True
    while has_more and len(rows) < PLAN_ROWS_MAX:
        page = buffer.scan_rows(gateway, table, place, _PAGE_ROWS)
        views = (view(config.as_read(table, decode_row_state(one.state))) for _, one in page.rows)
        rows += [row for row in views if row is not None]
        place, has_more = page.place, bool(page.place)
    return _counted(flow, table, rows) | {"hasMore": has_more}


def _counted(flow: Flow, table: str, rows: Iterable[Mapping[str, CanonicalJson]]) -> dict[str, Any]:
    viewer, columns = flow.to.viewer(), flow.to.rows.columns(table)
    is_filtered = flow.to.is_filtered(table)
    passing = [
        not is_filtered or viewer.sees(table, rule_columns(row.items(), columns)) for row in rows
    ]
    return {"rows": len(passing), "passing": sum(passing)}


def _mapped(flow: Flow, table: str, columns: Iterable[str]) -> list[str]:
    column_map = flow.to.map_of(table)
    targets = [target for name in columns if (target := column_map.target(name)) is not None]
    return targets + sorted(column_map.constant)
