"""SQL on tables in the lake: PyIceberg reads the rows, DuckDB runs the query or the condition.

Rules of this module
    1. SQL may come from somewhere else than the person who runs it: it reads and writes no file,
       loads no extension, sees no variable of this program, and changes none of this.
    2. It answers with the given tables alone. DuckDB has tables of its own under names that a
       synced table may have (``duckdb_tables``, ``pg_class``); none of them is an answer.

A condition (`--where`) is on current or former values of rows. Columns have their types in the
lake; DuckDB evaluates it for a thousand rows at a time.
"""

from __future__ import annotations

import json
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Protocol

from lakesync.adapters.typed_values import Unfit, sql_value
from lakesync.cli.faults import UsageFault
from lakesync.cli.lake import written_names
from lakesync.core.names import CHANGES_SUFFIX
from lakesync.errors import NotFound
from lakesync.materialise.change_files import arrow_type

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from lakesync.cli.changes import RowDiff
    from lakesync.cli.lake import Needed
    from lakesync.cli.past import AsOf
    from lakesync.core.values import CanonicalJson

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
    """Return a new database in memory, with some settings; close it when done."""
    import duckdb

    database = duckdb.connect(config=_CLOSED)
    for setting in settings:
        database.execute(f"SET {setting}")
    database.execute("SET lock_configuration = true")
    return database


def named_tables(database: Any, sql: str, tables: Collection[str]) -> set[str]:
    """Return those of some tables that a query names, in any spelling.

    Raises:
        NotFound: it names another table.
        UsageFault: it calls a function that reads something else, or is no query.
    """
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

    def names(self) -> list[str]:
        """Return the tables' names."""

    def schema(
        self, name: str, wanted: AsOf | None = None, *, all_columns: bool = False
    ) -> pa.Schema:
        """Return the schema of what `read` returns."""

    def read(
        self,
        name: str,
        wanted: AsOf | None = None,
        *,
        all_columns: bool = False,
        needed: Needed | None = None,
    ) -> pa.Table:
        """Return a table's current or former rows, as `lakesync.cli.lake.Lake` does."""


def run(
    lake: Tables,
    sql: str,
    moment: AsOf | None = None,
    *,
    all_columns: bool = False,
    changes: bool = False,
) -> pa.Table:
    """Return the rows of a query.

    Raises:
        UsageFault: the SQL is invalid, or names a table that does not exist.
    """
    import duckdb

    from lakesync.cli.lake import needed

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

    Args:
        diffs: the rows.
        where: the condition; empty for none.
        columns: the columns by their names in the lake: type, and name on the wire.

    Raises:
        UsageFault: it is no condition on these columns.
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
