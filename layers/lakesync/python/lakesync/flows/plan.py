"""Plans a flow before it is declared: its tables, rows, and columns at the destination.

At most `PLAN_ROWS_MAX` rows of a table are read. From a connector that creates something at its
source nothing is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lakesync.connectors.port import FEED, Brought
from lakesync.core.flows import DatabaseSource
from lakesync.core.merge import as_read, view
from lakesync.core.values import canonical
from lakesync.core.visibility import rule_columns
from lakesync.errors import LakeSyncError
from lakesync.flows.snapshot_source import PlainSource
from lakesync.result import Ok
from lakesync.wire.row_state import decode_row_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from lakesync.adapters.database import DatabaseAdapter
    from lakesync.connectors.port import Connector
    from lakesync.core.flows import Flow
    from lakesync.core.values import CanonicalJson
    from lakesync.ports import Buffer

    CountsRows = Callable[[str, Flow], Mapping[str, Any]]
    """Returns the result of `of_database` for a gateway's flow; runs where the database can be
    reached."""

PLAN_ROWS_MAX: Final = 5_000
"""Rows of a table that a plan reads."""
PLAN_TABLES_MAX: Final = 20
"""Tables of which a plan reads rows; of further ones it only lists the columns."""
_PAGE_ROWS: Final = 1_000


def of_gateway(flow: Flow, buffer: Buffer, gateway: str) -> list[dict[str, Any]]:
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


def of_connector(
    flow: Flow, connector: Connector, tables: Mapping[str, str], now_ms: int, *, reads: bool
) -> list[dict[str, Any]]:
    """Return what a flow from a connector would move.

    Args:
        flow: the flow.
        connector: its source.
        tables: the source's tables, each with its name in the gateway.
        now_ms: the time.
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


def of_source(flow: Flow, gateway: str, counts: CountsRows) -> dict[str, Any]:
    """Return what a flow from a database would move; a missing database is not a fault."""
    try:
        return dict(counts(gateway, flow))
    except LakeSyncError as error:
        tables = [{"table": table} for table in sorted(flow.to.tables)]
        return {"tables": tables, "message": f"Its rows are not counted: {error.message}."}


def of_database(
    flow: Flow, database: DatabaseAdapter, has_time: Callable[[], bool]
) -> dict[str, Any]:
    """Return what a flow from a database would move of its current rows.

    Args:
        flow: the flow.
        database: its source.
        has_time: asked before a table's rows are read; without time they are not counted.

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


def of_plain(flow: Flow, database: DatabaseAdapter) -> dict[str, Any]:
    """Return what a flow from other writers' tables would move, from the first page of each.

    Raises:
        LakeSyncError: one does not exist, or has no such key.
    """
    assert isinstance(flow.source, DatabaseSource)  # noqa: S101 - nothing else is plain
    wanted = {name: flow.source.plain[name] for name in sorted(flow.to.tables)}
    source = PlainSource(database, wanted, _nothing_brought)
    message = source.check().unwrap()
    tables = of_connector(flow, source, {name: name for name in wanted}, 0, reads=True)
    return {"tables": tables, "message": message}


def _nothing_brought(table: str, place: str) -> Brought:  # noqa: ARG001 - as `TellsBrought`
    """Return no rows: a plan delivers none."""
    return Brought((), "")


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
    """Count rows, and those that the filter lets pass."""
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
