"""Queries of the lake's tables on this machine, by DuckDB: SQL, and the history of many rows.

SQL may come from somewhere else than the person who runs it: it reads and writes no file, loads no
extension, sees no variable of this program, and changes none of this. It answers with the given
tables alone: none of DuckDB's own, some of whose names a synced table may have (``pg_class``). A
condition (`--where`) is on current or former values, for a thousand rows at a time.

History: a table's deltas in commit order, and from them that of many rows, row by row. The lake
keeps every delta that ever changed a register, for as long as the table is kept: no snapshot has to
be there. What it has not taken yet is read from the buffer, behind the lake's mark and up to what
is final, so that each commit counts once. Law H1: ``docs/spec/history.md``.

For each row with a commit in a span, all deltas since its beginning are needed. So the lake's
changes table is read twice: the span for the rows' ids, all of it for their deltas. DuckDB keeps
those of these rows alone, in a file, and sorts them, so memory does not grow with the history. Law
H3: ``docs/spec/history.md``.
"""

from __future__ import annotations

import heapq
import json
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, groupby, islice
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from lakesync.adapters.database import PlacedDelta, Position
from lakesync.analysis.connection import UsageFault
from lakesync.analysis.lake import declared_columns, history, written_names
from lakesync.core.column_types import Unfit, sql_value
from lakesync.core.delta import NULL, Op, known_delta
from lakesync.core.layout import MAIN_LANE
from lakesync.core.merge import EMPTY, apply, as_read, view
from lakesync.core.names import CHANGES_SUFFIX, folded
from lakesync.errors import NotFound
from lakesync.log.read import ReadBarrier, read_all
from lakesync.materialise.change_files import arrow_type
from lakesync.materialise.lake_rows import carried
from lakesync.materialise.lake_schema import delete_wins
from lakesync.ports import NO_HEAD
from lakesync.wire.records import decode_records

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from lakesync.analysis.lake import Lake, Needed
    from lakesync.analysis.past import AsOf
    from lakesync.core.clock import Stamp
    from lakesync.core.delta import CanonicalJson, Delta
    from lakesync.core.merge import RowState
    from lakesync.ports import Buffer

# --- a database for SQL of others -----------------------------------------------------------------


_CLOSED: Final[dict[str, Any]] = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",
}
_FUNCTIONS: Final = frozenset(
    {"generate_series", "json_each", "json_tree", "range", "repeat", "repeat_row", "unnest"}
)
"""Functions that give rows of what they are given, and of nothing else."""
_REFERENCES: Final = frozenset({"BASE_TABLE", "TABLE_FUNCTION", "SHOW_REF"})
_NONE_YET: Final = "none yet: push something, then `lakesync flush --wait`"
_NO_QUERY: Final = "the query was refused: it gives no rows; begin it with SELECT, and give one"


def own_database(*settings: str) -> Any:
    import duckdb

    database = duckdb.connect(config=_CLOSED)
    for setting in settings:
        database.execute(f"SET {setting}")
    database.execute("SET lock_configuration = true")
    return database


def named_tables(database: Any, sql: str, tables: Collection[str]) -> set[str]:
    """Return those of some tables that a query names, in any spelling; refuse all others."""
    ((text,),) = database.execute("SELECT json_serialize_sql(?)", [sql]).fetchall()
    tree = json.loads(text)
    if tree["error"]:
        if tree["error_type"] == "not implemented":
            raise UsageFault(_NO_QUERY)
        database.sql(sql)  # raises what is wrong with it
    if len(tree["statements"]) != 1:
        raise UsageFault(_NO_QUERY)
    own = {name.lower(): name for name in tables}
    parts = {one["key"].lower() for cte in _nodes(tree, "cte_map") for one in cte["map"]}
    internal = database.execute("SELECT lower(view_name) FROM duckdb_views() WHERE internal")
    parts -= {name for (name,) in internal.fetchall()}
    named = set()
    for node in _references(tree):
        if node["type"] == "TABLE_FUNCTION":
            function = node["function"]["function_name"]
            if function.lower() not in _FUNCTIONS:
                raise UsageFault(f"the query was refused: it may not call {function}")
            continue
        name, schema = node["table_name"], node["catalog_name"] or node["schema_name"]
        if not name and node["type"] == "SHOW_REF":  # of what follows it
            continue
        if name.lower() in own and schema.lower() in {"", "main"}:
            named.add(own[name.lower()])
        elif schema or name.lower() not in parts:
            shown = f"{schema}.{name}" if schema else name
            known = ", ".join(sorted(tables)) or _NONE_YET
            raise NotFound(f"there is no table {shown} in the lake; tables in the lake: {known}")
    return named


def _references(tree: object) -> Iterator[dict[str, Any]]:
    """Yield the nodes of a query that name tables or functions in their place."""
    return (node for node in _dicts(tree) if node.get("type") in _REFERENCES)


def _nodes(tree: object, key: str) -> Iterator[dict[str, Any]]:
    return (node[key] for node in _dicts(tree) if isinstance(node.get(key), dict))


def _dicts(tree: object) -> Iterator[dict[str, Any]]:
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            yield node
            waiting += node.values()
        elif isinstance(node, list):
            waiting += node


# --- queries --------------------------------------------------------------------------------------


class Tables(Protocol):
    """The tables for queries: those of a gateway, or those that gateways share."""

    def names(self) -> list[str]: ...

    def schema(
        self, name: str, wanted: AsOf | None = None, *, all_columns: bool = False
    ) -> pa.Schema: ...

    def read(
        self,
        name: str,
        wanted: AsOf | None = None,
        *,
        all_columns: bool = False,
        needed: Needed | None = None,
    ) -> pa.Table: ...


def run(
    lake: Tables,
    sql: str,
    moment: AsOf | None = None,
    *,
    all_columns: bool = False,
    changes: bool = False,
) -> pa.Table:
    import duckdb

    from lakesync.analysis.lake import needed

    database = own_database()
    try:
        names = set(lake.names())
        wanted = named_tables(database, sql, names)
        sources = {
            name: name + CHANGES_SUFFIX if changes and name + CHANGES_SUFFIX in names else name
            for name in names
            if name in wanted
        }
        schemas = {
            name: lake.schema(source, moment, all_columns=all_columns)
            for name, source in sources.items()
        }
        needs = needed(database, sql, schemas)
        for name, source in sources.items():
            rows = lake.read(source, moment, all_columns=all_columns, needed=needs[name])
            database.register(name, rows)
        answer: pa.Table = database.sql(sql).to_arrow_table()
        return answer  # noqa: TRY300 - DuckDB's faults above are the same
    except duckdb.Error as exc:
        first = str(exc).strip().splitlines()[0]
        raise UsageFault(f"the query was refused: {first}") from exc
    finally:
        database.close()


# --- conditions -----------------------------------------------------------------------------------


_ROWS: Final = 1_000


def matching(
    diffs: Iterable[RowDiff], where: str, columns: Mapping[str, tuple[str, str]]
) -> Iterator[RowDiff]:
    """Yield the rows that meet a condition, before or after; all if there is no condition.

    It is on the columns by their names in the lake: each has its type, and its name on the wire.
    """
    if not where:
        yield from diffs
        return
    import duckdb

    rows = iter(diffs)
    part: list[RowDiff] = []

    with own_database("TimeZone = 'UTC'") as database:
        # Evaluated without rows too, so that an invalid condition is always refused.
        while part or (part := list(islice(rows, _ROWS))) or where:
            try:
                hits = database.from_arrow(_table(part, columns)).filter(where).project("_place")
                places = {place for (place,) in hits.fetchall()}
            except duckdb.Error as exc:
                sentence = str(exc).strip().splitlines()[0]
                raise UsageFault(f"--where was refused: {sentence}") from exc
            yield from (diff for place, diff in enumerate(part) if place in places)
            if len(part) < _ROWS:
                return
            part = []


def _table(part: Sequence[RowDiff], columns: Mapping[str, tuple[str, str]]) -> pa.Table:
    """Return both sides of rows as a table, each with the row's index."""
    import pyarrow as pa

    sides = [
        (place, diff.row_id, side)
        for place, diff in enumerate(part)
        for side in (diff.before, diff.after)
        if side is not None
    ]
    names = written_names(list(columns), {name: wire for name, (_, wire) in columns.items()})
    arrays: dict[str, Any] = {
        "_place": pa.array([place for place, _, _ in sides], pa.int64()),
        "_id": pa.array([row_id for _, row_id, _ in sides], pa.string()),
    }
    for name, (kind, wire) in zip(names, columns.values(), strict=True):
        values = [_value(kind, side.get(wire)) for _, _, side in sides]
        arrays[name] = pa.array(values, arrow_type(kind))
    return pa.table(arrays)


def _value(kind: str, text: CanonicalJson | None) -> object:
    try:
        return sql_value(kind, text)
    except Unfit:
        return None


# --- deltas ---------------------------------------------------------------------------------------


ROW_DELTAS_MAX: Final = 1_000_000
"""The maximum number of deltas of one row that are read."""
TAIL_DELTAS_MAX: Final = 1_000_000
"""The maximum number of deltas of the log that are read: more must reach the lake first."""
_SLICE_DELTAS_MAX: Final = 10_000
_HEAD: Final = ("_commit", "_ordinal", "_op", "_id", "_client_id", "_hlc", "_columns", "_texts")


@dataclass(frozen=True)
class Tail:
    """The part of the log behind the lake's mark."""

    deltas: tuple[PlacedDelta, ...] = ()
    """The deltas, in commit order."""
    until: Stamp = 0
    """Everything up to this commit was read."""
    trimmed: Stamp = 0
    """Up to this commit the log may be trimmed, so it must be in the lake."""
    tables: frozenset[str] = frozenset()
    """The gateway's tables."""
    delete_wins: frozenset[str] = frozenset()
    """The delete-wins tables among them."""


def read_tail(
    buffer: Buffer, gateway: str, after: Stamp, wants: Callable[[Delta], bool] = lambda _: True
) -> Tail:
    """Return the wanted deltas that were committed after the lake's mark."""
    log = ReadBarrier(buffer).raise_heads(gateway, after)
    placed: list[PlacedDelta] = []
    for entry in read_all(buffer, log, (after, log.top), _SLICE_DELTAS_MAX):
        for ordinal, delta in enumerate(decode_records(entry.records)):
            if wants(delta):
                placed.append(PlacedDelta(Position(entry.stamp, ordinal), delta))
        if len(placed) > TAIL_DELTAS_MAX:
            raise UsageFault(
                f"more than {TAIL_DELTAS_MAX:,} deltas are not in the lake yet: "
                "run `lakesync flush --wait` first"
            )
    placed.sort(key=lambda each: each.position)
    trimmed = log.heads.get(MAIN_LANE, NO_HEAD).trimmed
    tables = frozenset((*log.config.schemas, *log.config.tables))
    delete_wins = frozenset(filter(log.config.delete_wins, tables))
    return Tail(tuple(placed), log.top, trimmed, tables, delete_wins)


class LakeChanges:
    """The deltas of one table in the lake."""

    def __init__(self, lake: Lake, table: str) -> None:
        spelled = (name.removesuffix(CHANGES_SUFFIX) for name in lake.names())
        self.table = next((name for name in spelled if folded(name) == folded(table)), table)
        """The table's name on the wire, as the lake spells it."""
        name = f"{self.table}{CHANGES_SUFFIX}"
        names = lake.names()
        self._table = lake.table(name) if name in names else None
        if self._table is None and self.table in names:
            events = lake.table(self.table)
            self._table = events if events.properties.get("lakesync.kind") == "events" else None
        self.is_append = name not in names and self._table is not None
        """Whether it is an append table: each delta is one row, never changed."""
        moments = [] if self._table is None else history(self._table)
        self.until: Stamp = moments[-1].applied if moments else 0
        """Everything up to this commit is in the lake."""

    def delete_wins(self, tail: Tail | None) -> bool:
        """Return whether the table is a delete-wins table, by the lake or by the log."""
        if self._table is not None and delete_wins(self._table.properties):
            return True
        return tail is not None and self.table in tail.delete_wins

    @property
    def exists(self) -> bool:
        return self._table is not None

    @property
    def columns(self) -> Mapping[str, tuple[str, str]]:
        """The table's columns by their names in the lake: type, and name on the wire."""
        return {} if self._table is None else declared_columns(self._table)

    def of_row(self, row_id: str) -> list[PlacedDelta]:
        """Return all deltas of a row, in commit order; statistics decide which files are read."""
        from pyiceberg.expressions import EqualTo

        placed: list[PlacedDelta] = []
        make: Any = EqualTo  # its own type knows nothing of positions
        for batch in self.scan(make("_id", row_id)):
            placed += self.placed(batch)
            if len(placed) > ROW_DELTAS_MAX:
                raise UsageFault(
                    f"the row has more than {ROW_DELTAS_MAX:,} deltas: "
                    f"ask with `lakesync query … --changes` for some of them"
                )
        return sorted(placed, key=lambda each: each.position)

    def scan(self, rows: Any, only: tuple[str, ...] | None = None) -> Iterator[pa.RecordBatch]:
        yield from self.reader(rows, only) or ()

    def reader(self, rows: Any, only: tuple[str, ...] | None = None) -> pa.RecordBatchReader | None:
        """Return the table's rows, unordered, file by file; None if there is no table."""
        if self._table is None:
            return None
        fields = {field.name for field in self._table.schema().fields}
        wanted = only or tuple(name for name in (*_HEAD, *self.columns) if name in fields)
        return self._table.scan(rows, selected_fields=wanted).to_arrow_batch_reader()

    def placed(self, batch: pa.RecordBatch | pa.Table) -> Iterator[PlacedDelta]:
        columns = self.columns
        for row in batch.to_pylist():
            delta = known_delta(
                Op[row.get("_op", Op.INSERT.name)],
                self.table,
                row["_id"],
                row["_client_id"],
                row["_hlc"],
                tuple(sorted(carried(row, columns))),
            )
            yield PlacedDelta(Position(row["_commit"], row["_ordinal"]), delta)


# --- histories ------------------------------------------------------------------------------------


MEMORY_MIB_MAX: Final = 1_024
"""DuckDB's limit of memory; the rest is in a file."""
_IDS_FILTERED_MAX: Final = 200
"""Row ids for which the lake's file statistics decide which files are read."""
_SORTED_ROWS: Final = 10_000

Past = tuple[str, "Iterator[PlacedDelta]"]
"""A row's id, and its deltas in commit order."""


class RowDiff(NamedTuple):
    """A row before and after. A null column equals an absent one."""

    row_id: str
    before: Mapping[str, CanonicalJson] | None
    """Its columns that were not null; None if the row did not exist."""
    after: Mapping[str, CanonicalJson] | None
    newest: Stamp = 0
    """The greatest stamp of the row's deltas."""
    unseen: tuple[str, ...] = ()
    """Columns that an insert would show: in delete-wins tables, those written after the delete."""

    @property
    def change(self) -> str:
        if self.before is None:
            return "inserted"
        return "deleted" if self.after is None else "changed"

    @property
    def columns(self) -> list[str]:
        before, after = self.before or {}, self.after or {}
        names = sorted(before.keys() | after.keys())
        return [name for name in names if before.get(name) != after.get(name)]


@contextmanager
def pasts(
    changes: LakeChanges,
    tail: Sequence[PlacedDelta],
    span: tuple[Stamp, Stamp],
    only: Collection[str] = (),
) -> Iterator[Iterator[Past]]:
    """Yield the deltas of each row with a commit in a span, up to the span's end; by row id.

    What was at the first commit of the span is not in it. ``only`` are the rows; empty for all.
    """
    import pyarrow as pa
    from pyiceberg.expressions import And, GreaterThan, In, LessThanOrEqual

    make: Any = (And, GreaterThan, In, LessThanOrEqual)  # their types know nothing of positions
    both, above, among, up_to = make
    after, until = span
    newer = [one for one in tail if one.position.commit <= until]
    ids = {one.delta.row_id for one in newer if one.position.commit > after}
    ids &= set(only) or ids
    with _workbench() as database:
        database.execute("CREATE TABLE touched (_id VARCHAR)")
        in_span = both(above("_commit", after), up_to("_commit", until))
        if only:
            in_span = both(in_span, among("_id", tuple(only)))
        in_log = pa.RecordBatch.from_pydict({"_id": pa.array(sorted(ids), pa.string())})
        for batch in chain([in_log], changes.scan(in_span, ("_id",))):
            database.register("batch", batch)
            database.execute("INSERT INTO touched SELECT DISTINCT _id FROM batch")
        lake = _sorted(database, changes, up_to("_commit", until))
        # Rows whose commits in the span are all in the lake have none in the log, which is later.
        touched = sorted((one for one in newer if one.delta.row_id in ids), key=_place)
        merged = heapq.merge(lake, touched, key=_place)
        yield groupby(merged, key=attrgetter("delta.row_id"))


def row_diffs(
    rows: Iterable[Past], keeps: Callable[[PlacedDelta], bool], *, delete_wins: bool = False
) -> Iterator[RowDiff]:
    """Yield the rows that differ between the deltas that are kept, and all of them. Pure."""
    for row_id, placed in rows:
        state = before = EMPTY
        newest = 0
        for one in placed:
            newest = max(newest, one.delta.hlc)
            state = apply(state, one.delta)
            if keeps(one):
                before = apply(before, one.delta)
        was, now = (as_read(one, delete_wins=delete_wins) for one in (before, state))
        unseen = () if now is state else tuple(sorted(state.columns))
        diff = RowDiff(row_id, shown(was), shown(now), newest, unseen)
        if diff.before != diff.after:
            yield diff


def shown(state: RowState) -> dict[str, CanonicalJson] | None:
    columns = view(state)
    if columns is None:
        return None
    return {name: value for name, value in columns.items() if value != NULL}


def _place(one: PlacedDelta) -> tuple[str, object]:
    return one.delta.row_id, one.position


@contextmanager
def _workbench() -> Iterator[Any]:
    import duckdb

    with tempfile.TemporaryDirectory(prefix="lakesync-") as folder:
        database = duckdb.connect(str(Path(folder, "rows.duckdb")))
        try:
            database.execute(f"SET memory_limit = '{MEMORY_MIB_MAX}MiB'")
            database.execute("SET TimeZone = 'UTC'")
            yield database
        finally:
            database.close()


def _sorted(database: Any, changes: LakeChanges, rows: Any) -> Iterator[PlacedDelta]:
    """Yield the lake's deltas of the affected rows, by row id and commit."""
    from pyiceberg.expressions import And, In

    distinct = "SELECT DISTINCT _id FROM touched LIMIT ?"
    ids = [i for (i,) in database.execute(distinct, [_IDS_FILTERED_MAX]).fetchall()]
    make: Any = (And, In)
    both, among = make
    if len(ids) < _IDS_FILTERED_MAX:
        if not ids:
            return
        rows = both(rows, among("_id", ids))
    reader = changes.reader(rows)
    if reader is None:
        return
    database.register("reader", reader)
    kept = "SELECT * FROM reader SEMI JOIN touched USING (_id)"
    database.execute(f"CREATE TABLE deltas AS {kept}")
    ordered = database.sql("FROM deltas ORDER BY _id, _commit, _ordinal")
    for batch in ordered.to_arrow_reader(_SORTED_ROWS):
        yield from changes.placed(batch)
