"""Reads the tables that gateways share, as `lakesync.cli.lake.Lake` reads those of one gateway."""

from __future__ import annotations

import base64
import operator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from lakesync.cli.faults import UsageFault
from lakesync.cli.lake import ROW_ID, Lake
from lakesync.cli.lake_shares import shares_of
from lakesync.cli.pushdown import Needed
from lakesync.materialise.shared_views import GATEWAY_COLUMN, OWN_COLUMNS
from lakesync.materialise.typed_arrow import arrow_type

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pyarrow as pa

    from lakesync.cli.asof import AsOf
    from lakesync.cli.aws import Aws
    from lakesync.cli.pushdown import Comparison
    from lakesync.materialise.sharing import Member, Share

LOOKS: Final = 8
"""Gateways whose tables are read concurrently."""
_COMPARES: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "=": operator.eq, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


class SharedLake:
    """The stack's shares, as of the creation of this object."""

    def __init__(self, aws: Aws, shares: list[Share]) -> None:
        self._aws = aws
        self._shares = {share.name: share for share in shares}

    def names(self) -> list[str]:
        """Return the names of the shares."""
        return sorted(self._shares)

    def schema(
        self, name: str, wanted: AsOf | None = None, *, all_columns: bool = False
    ) -> pa.Schema:
        """Return the schema of what `read` returns, with the current columns."""
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
        """Return the rows of all gateways, as `lakesync.cli.lake.Lake.read` returns those of one.

        A gateway that a filter excludes is not read; one without the table at that time has no
        rows.
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
    """Return the tables that a stack's gateways share."""
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
