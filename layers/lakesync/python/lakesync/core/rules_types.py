"""Checks of rules against schemas: does a column exist, may it be compared so, or left out?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lakesync.core.comparing import instant, number
from lakesync.core.names import folded
from lakesync.core.rules import ORDERED, Claim
from lakesync.errors import Fault

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lakesync.core.rules import Filter
    from lakesync.core.schema import TableSchema

_NUMBERS: Final = ("number", "integer", "decimal")
_INSTANTS: Final = ("timestamp", "date")
_UNORDERED: Final = ("boolean", "bytes", "null")
"""Column types without an order that a filter could use."""


def faults_of(
    item: Filter, path: str, tables: list[str], schemas: Mapping[str, TableSchema]
) -> tuple[list[Fault], list[Fault]]:
    """Return why a filter cannot be evaluated on tables with a schema, and which lack its column.

    A filter of all tables may name a column that only some of them have.

    Args:
        item: the filter.
        path: its path in the rules.
        tables: the tables of its bucket; none means all.
        schemas: every registered table.
    """
    known = {
        table: {column.name: column.type for column in schemas[table].columns}
        for table in (tables or schemas)
        if table in schemas
    }
    having = [table for table in known if item.column in known[table]]
    at = f"{path}.column"
    missing = [Fault(at, f"table {table} has no column {item.column}")
               for table in sorted(known.keys() - set(having)) if tables]  # fmt: skip
    if known and not having and not tables:
        missing = [Fault(at, f"no table with a schema has a column {item.column}")]
    kinds = sorted({known[table][item.column].partition("(")[0] for table in having})
    return [
        Fault(path, message) for kind in kinds if (message := _incomparable(item, kind))
    ], missing


def omission_faults(
    column: str, at: str, tables: list[str], schemas: Mapping[str, TableSchema]
) -> tuple[list[Fault], list[Fault]]:
    """Return why a column cannot be left out of tables with a schema, and which tables lack it.

    Args:
        column: the column.
        at: its path in the rules.
        tables: the tables of the omission; none means all.
        schemas: every registered table.
    """
    known = [schemas[table] for table in sorted(tables or schemas) if table in schemas]
    lacking = [each.table for each in known if folded(column) not in _names_of(each)]
    missing = [Fault(at, f"table {table} has no column {column}") for table in lacking if tables]
    if known and len(lacking) == len(known) and not tables:
        missing = [Fault(at, f"no table with a schema has a column {column}")]
    of_keys = [each.table for each in known if folded(column) in map(folded, each.primary_key)]
    faults = [
        Fault(at, f"column {column} is of the primary key of table {table}, by which its rows are "
                  "known: it cannot be left out")
        for table in of_keys
    ]  # fmt: skip
    return faults, missing


def _names_of(schema: TableSchema) -> set[str]:
    return {folded(column.name) for column in schema.columns}


def _incomparable(item: Filter, kind: str) -> str:
    """Return why a column of a type cannot be compared so; empty if it can."""
    if kind == "json":
        return f"column {item.column} is json, which no filter can compare"
    if item.op in ORDERED and kind in _UNORDERED:
        return f"column {item.column} is {kind}, which has no order for {item.op}"
    if isinstance(item.value, Claim):
        return ""  # only a token shows a claim's type; one that cannot be compared matches nothing
    values = item.value if isinstance(item.value, tuple) else (item.value,)
    for value in values:
        text = value if isinstance(value, str) else repr(value).lower()
        if kind in _NUMBERS and (isinstance(value, bool) or number(text) is None):
            return f"column {item.column} is {kind}, and {text[:40]!r} is not a number"
        if kind in _INSTANTS and instant(text) is None:
            return f"column {item.column} is {kind}, and {text[:40]!r} is no ISO 8601 {kind}"
        if kind == "boolean" and text not in {"true", "false"}:
            return f"column {item.column} is boolean, and {text[:40]!r} is not"
    return ""
