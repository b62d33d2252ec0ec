"""Tables that gateways share: found, declared, removed, and read as those of one gateway.

It uses the caller's own permissions: to read the tables, and the documents of shares in the bucket;
in Glue ``GetTable``, ``CreateTable``, ``UpdateTable`` and ``DeleteTable``, ``CreateDatabase``.
"""

from __future__ import annotations

import base64
import operator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from lakesync.analysis.connection import UsageFault
from lakesync.analysis.lake import (
    ROW_ID,
    Lake,
    Needed,
    declared_columns,
    described,
    glue_views,
    open_catalogue,
)
from lakesync.core.names import folded, lake_tables
from lakesync.errors import AdapterFailed
from lakesync.materialise.change_files import arrow_type
from lakesync.materialise.lake_schema import (
    EVENTS_TABLE,
    GATEWAY,
    KIND,
    KINDS,
    STATE_TABLE,
    WRITTEN,
    LakeColumn,
    delete_wins,
)
from lakesync.materialise.sharing import (
    GATEWAY_COLUMN,
    OWN_COLUMNS,
    Member,
    Share,
    SharedViews,
    Shares,
    check_share,
    shared_database,
    size_fault,
)
from lakesync.materialise.work_queue import LakeStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import pyarrow as pa

    from lakesync.analysis.connection import Aws
    from lakesync.analysis.lake import Comparison
    from lakesync.analysis.past import AsOf

# --- administration -------------------------------------------------------------------------------


LOOKS: Final = 8
"""Databases that are read concurrently."""
_SHARED: Final = (STATE_TABLE.name, EVENTS_TABLE.name)


def shares_of(aws: Aws) -> Shares:
    return Shares(LakeStore(aws.client("s3"), aws.output("LakeBucket")))


def views_of_shares(aws: Aws, shares: Shares) -> SharedViews | None:
    """Return the views of shares in Glue's catalogue; None if the stack has another."""
    if not described(aws).is_glue:
        return None
    return SharedViews(glue_views(aws), shares, aws.output("DatabasePrefix"), aws.stack_id)


def declare(aws: Aws, name: str, table: str, gateways: str) -> Share:
    """Create or renew a share: its document, over all existing tables. Safe to repeat."""
    shares, wanted = shares_of(aws), Share(name, table, gateways)
    check_share(wanted)
    before = shares.read(name)
    if before is not None and folded(before.table) != folded(table):
        raise UsageFault(f"{name} is the table {before.table} already: choose another name by --as")
    members = dict(_members(aws, wanted, set()))
    if fault := size_fault(Share(name, table, gateways, members)):
        raise UsageFault(fault.replace("by a pattern", "by --gateways"))
    gone = (before.members.keys() if before else set()) - members.keys()

    def declared(current: Share | None) -> Share:
        kept = {} if current is None else current.members
        # The spelling of columns is that of the first table, and stays.
        now = {one: kept[one] for one in kept if one not in gone} | members
        return Share(name, table, gateways, now)

    declared_now = shares.change(name, declared)
    # Tables that a run created meanwhile are not in the share yet.
    for gateway, member in _members(aws, wanted, set(members)):
        declared_now = shares.change(name, lambda s: s and s.with_member(gateway, member))  # noqa: B023 - called at once
    return declared_now or wanted


def keep_views(aws: Aws, shares: Shares, name: str) -> bool:
    """Update the views of a share to its document; return whether the catalogue has views."""
    views = views_of_shares(aws, shares)
    if views is None:
        return False
    if faults := views.keep(name):
        raise AdapterFailed("; ".join(f"{view}: {fault}" for view, fault in faults.items()))
    return True


def withdraw(aws: Aws, name: str) -> bool:
    """Remove a share and its views; return whether it existed. Safe to repeat."""
    shares = shares_of(aws)
    was = shares.read(name)
    shares.remove(name)
    if views := views_of_shares(aws, shares):
        views.drop(was or Share(name, name))
    return was is not None


def leave_shares(aws: Aws, gateway: str) -> None:
    """Remove a gateway from all shares, before its tables are dropped. Safe to repeat."""
    shares = shares_of(aws)
    views = views_of_shares(aws, shares)
    for share in shares.all():
        if gateway not in share.members:
            continue
        left = shares.change(share.name, lambda s: s and s.without(gateway))
        if views is not None and left is not None and not left.members:
            views.drop(left)
        keep_views(aws, shares, share.name)


def share_states(aws: Aws) -> Iterator[dict[str, object]]:
    shares = shares_of(aws)
    views = views_of_shares(aws, shares)
    for share in shares.all():
        wrong = {} if views is None else views.wrong(share)
        yield {
            "share": share.name,
            "database": shared_database(aws.output("DatabasePrefix")),
            "table": share.table,
            "gateways": share.gateways,
            "tables": len(share.members),
            "columns": len(share.columns()),
            "wrong": "; ".join(f"{view}: {why}" for view, why in wrong.items()),
        }


def _members(aws: Aws, share: Share, known: set[str]) -> Iterator[tuple[str, Member]]:
    """Yield the tables that belong to a share, by gateway, except those of known gateways."""
    catalogue, prefix = open_catalogue(aws), f"{aws.output('DatabasePrefix')}_"
    names = {one[-1] for one in catalogue.list_namespaces() if one[-1].startswith(prefix)}
    databases = sorted(names - {shared_database(aws.output("DatabasePrefix"))})

    def look(database: str) -> tuple[str, Member] | None:
        return _member(catalogue, database, share)

    with ThreadPoolExecutor(LOOKS) as looks:
        for one in looks.map(look, databases):
            if one is not None and one[0] not in known:
                yield one


def _member(catalogue: Any, database: str, share: Share) -> tuple[str, Member] | None:
    from pyiceberg.exceptions import NoSuchPropertyException, NoSuchTableError

    for name in dict.fromkeys(lake_tables(share.table)):
        try:
            table = catalogue.load_table((database, name))
        except (NoSuchTableError, NoSuchPropertyException):  # no table, or not one of Iceberg
            continue
        said = table.properties
        gateway, kind = said.get(GATEWAY, ""), said.get(KIND, "")
        if kind not in _SHARED or not share.wants(gateway, said.get(WRITTEN, name)):
            continue
        columns = [LakeColumn(n, t, w) for n, (t, w) in declared_columns(table).items()]
        wins = delete_wins(said)
        return gateway, Member(database, name, KINDS[kind].name, tuple(columns), delete_wins=wins)
    return None


# --- reading --------------------------------------------------------------------------------------


_COMPARES: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "=": operator.eq, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


class SharedLake:
    """The stack's shares, as of the creation of this object."""

    def __init__(self, aws: Aws, shares: list[Share]) -> None:
        self._aws = aws
        self._shares = {share.name: share for share in shares}

    def names(self) -> list[str]:
        return sorted(self._shares)

    def schema(
        self, name: str, wanted: AsOf | None = None, *, all_columns: bool = False
    ) -> pa.Schema:
        import pyarrow as pa

        del wanted
        columns = [(column.written, column.type) for column in self._shares[name].columns()]
        own = OWN_COLUMNS.items() if all_columns else ()
        head = ((GATEWAY_COLUMN, "string"), (ROW_ID, "string"))
        return pa.schema([(each, arrow_type(kind)) for each, kind in (*head, *columns, *own)])

    def read(
        self,
        name: str,
        wanted: AsOf | None = None,
        *,
        all_columns: bool = False,
        needed: Needed | None = None,
    ) -> pa.Table:
        """Return the rows of all gateways, as `Lake.read` returns those of one.

        A gateway that a filter excludes is not read; one without the table then has no rows.
        """
        import pyarrow as pa

        share = self._shares[name]
        schema = self.schema(name, all_columns=all_columns)
        if needed is not None:
            schema = pa.schema([field for field in schema if field.name in needed.columns])
        compared = () if needed is None else needed.comparisons
        members = [one for one in share.members.items() if _is_asked_for(one[0], compared)]

        def rows(member: tuple[str, Member]) -> pa.Table:
            part = _Part(self._aws, share, *member)
            return part.read(schema, wanted, compared, all_columns=all_columns)

        with ThreadPoolExecutor(LOOKS) as looks:
            return pa.concat_tables([schema.empty_table(), *looks.map(rows, members)])


def shared_lake(aws: Aws) -> SharedLake:
    return SharedLake(aws, shares_of(aws).all())


class _Part:
    """One gateway's rows of a share."""

    def __init__(self, aws: Aws, share: Share, gateway: str, member: Member) -> None:
        self._lake = Lake(aws, gateway, member.table)
        self._gateway = gateway
        self._name = share.table
        self._columns = {
            column.written: (column.types[gateway], column.type)
            for column in share.columns()
            if gateway in column.types
        }

    def read(
        self,
        schema: pa.Schema,
        wanted: AsOf | None,
        compared: tuple[Comparison, ...],
        *,
        all_columns: bool,
    ) -> pa.Table:
        name = next(iter(self._lake.names()), None)
        if name is None:
            raise UsageFault(
                f"the table {self._name} of {self._gateway} is gone: lakesync lake share renews"
            )
        try:
            there = self._lake.schema(name, wanted, all_columns=all_columns).names
            needed = self._needed(schema.names, there, compared)
            rows = self._lake.read(name, wanted, all_columns=all_columns, needed=needed)
        except UsageFault:
            if wanted is None:
                raise
            return schema.empty_table()  # the table did not exist yet
        return self._shaped(rows, schema)

    def _needed(
        self, names: list[str], there: list[str], compared: tuple[Comparison, ...]
    ) -> Needed:
        own = {one.written for one, _ in (self._columns[n] for n in names if n in self._columns)}
        columns = (own | set(names)) & set(there) | {ROW_ID}
        # Columns of another type are compared by the caller, after conversion.
        same = {n for n, (one, kind) in self._columns.items() if n == one.written in there}
        same = {n for n in same if self._columns[n][0].type == self._columns[n][1]} | {ROW_ID}
        return Needed(frozenset(columns), tuple(one for one in compared if one.column in same))

    def _shaped(self, rows: pa.Table, schema: pa.Schema) -> pa.Table:
        import pyarrow as pa

        arrays = []
        for each in schema:
            column, _ = self._columns.get(each.name, (None, ""))
            name = each.name if column is None else column.written
            if each.name == GATEWAY_COLUMN:
                arrays.append(pa.repeat(pa.scalar(self._gateway, pa.string()), rows.num_rows))
            elif name in rows.column_names:
                arrays.append(_cast(rows[name], each.type))
            elif name == "_is_deleted":  # an append table
                arrays.append(pa.repeat(pa.scalar(value=False), rows.num_rows))
            else:
                arrays.append(pa.nulls(rows.num_rows, each.type))
        return pa.table(arrays, schema=schema)


def _is_asked_for(gateway: str, compared: tuple[Comparison, ...]) -> bool:
    for one in compared:
        if one.column != GATEWAY_COLUMN:
            continue
        is_list = one.operator == "in"
        if is_list and gateway not in one.values:
            return False
        if not is_list and not _COMPARES[one.operator](gateway, one.values[0]):
            return False
    return True


def _cast(values: pa.ChunkedArray, to: pa.DataType) -> pa.ChunkedArray:
    import pyarrow as pa

    is_bytes = pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type)
    if is_bytes and to == pa.string():
        texts = [None if one is None else base64.b64encode(one) for one in values.to_pylist()]
        return pa.chunked_array([pa.array(texts, pa.string())])
    return values.cast(to)
