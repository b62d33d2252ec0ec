"""A DuckDB database for a user's SQL: it reaches the tables that it is given, and nothing else.

Rules of this module
    1. SQL may come from somewhere else than the person who runs it: it reads and writes no file,
       loads no extension, sees no variable of this program, and changes none of this.
    2. It answers with the given tables alone. DuckDB has tables of its own under names that a
       synced table may have (``duckdb_tables``, ``pg_class``); none of them is an answer.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from lakesync.cli.faults import UsageFault
from lakesync.errors import NotFound

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

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
