"""Determines what a query reads of its tables: columns, and filters that can be pushed down.

DuckDB plans the query over tables of one empty row, and the plan shows which columns each scan
reads and which filters it applies. A filter that is not understood here is left out, so more is
read than needed, never less; DuckDB applies all of them again.
"""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa

_NAME: Final = r'"((?:[^"]|"")+)"'
_LITERAL: Final = (
    r"(?:(?:DATE|TIMESTAMPTZ|TIMESTAMP) )?'(?:[^']|'')*'|-?\d+|true|false"
    r"|CAST\('-?[\d.]+' AS DECIMAL\(\d+, ?\d+\)\)"
)
_COMPARED: Final = re.compile(rf"{_NAME} (=|<|<=|>|>=) ({_LITERAL})")
_LISTED: Final = re.compile(rf"{_NAME} IN \(((?:{_LITERAL})(?:, (?:{_LITERAL}))*)\)")
_TEXT: Final = re.compile(r"'(?:[^']|'')*'")
_AND: Final = ") AND ("
_ONE: Final = re.compile(_LITERAL)
_SCAN: Final = "PYTHON_ARROW_SCAN"


class Comparison(NamedTuple):
    """A filter on one column."""

    column: str
    operator: str
    """``in``, or a comparison operator."""
    values: tuple[object, ...]


class Needed(NamedTuple):
    """The columns and rows that are read of a table."""

    columns: frozenset[str]
    comparisons: tuple[Comparison, ...] = ()


def needed(database: Any, sql: str, schemas: Mapping[str, pa.Schema]) -> dict[str, Needed]:
    """Return what a query reads of each of its tables.

    Args:
        database: an empty DuckDB database, in which the tables' names are free.
        sql: the query.
        schemas: the schemas of the tables that it names.
    """
    import pyarrow as pa
    from pyarrow import dataset

    for name, schema in schemas.items():
        row = pa.table([pa.nulls(1, field.type) for field in schema], schema=schema)
        database.register(name, dataset.dataset(row))
    try:
        scans = list(_scans(database, sql))
    except (IndexError, KeyError, TypeError, ValueError):  # no plan, as for two statements
        return {name: Needed(frozenset(schema.names)) for name, schema in schemas.items()}
    finally:
        for name in schemas:
            database.unregister(name)
    columns = {name for scan in scans for name in _listed(scan.get("Projections"))}
    filters = [text for scan in scans for text in _listed(scan.get("Filters"))]
    columns |= {name for text in filters for name in _names(text)}
    comparisons = [one for text in filters for one in comparisons_in(text)]
    # A plan does not name a scan's table, so filters are used only if there is one table.
    pushed = tuple(comparisons) if len(scans) == 1 else ()
    return {
        name: Needed(frozenset(columns & set(schema.names)) or frozenset(schema.names[:1]), pushed)
        for name, schema in schemas.items()
    }


def comparisons_in(text: str) -> Iterator[Comparison]:
    """Yield the comparisons of a pushed filter, as far as they can be parsed."""
    inner = text.strip()
    while inner.startswith("(") and inner.endswith(")"):
        inner = inner[1:-1]
    # Text that contains what looks like the end of a filter is not parsed.
    if " OR " in inner or any(_AND in text for text in _TEXT.findall(inner)):
        return
    for part in inner.split(_AND):
        if match := _COMPARED.fullmatch(part):
            column, operator, literal = match.groups()
            yield Comparison(column.replace('""', '"'), operator, (_value(literal),))
        elif match := _LISTED.fullmatch(part):
            values = tuple(_value(one) for one in _ONE.findall(match[2]))
            yield Comparison(match[1].replace('""', '"'), "in", values)


def as_expression(comparisons: tuple[Comparison, ...], lake_names: Mapping[str, str]) -> Any:
    """Return comparisons as an expression of PyIceberg.

    Args:
        comparisons: by the names that columns were written under.
        lake_names: the lake's names of columns, by those.
    """
    from pyiceberg import expressions

    make: Any = expressions  # its own types know nothing of positions
    kinds = {
        "=": make.EqualTo,
        "<": make.LessThan,
        "<=": make.LessThanOrEqual,
        ">": make.GreaterThan,
        ">=": make.GreaterThanOrEqual,
    }
    whole = make.AlwaysTrue()
    for one in comparisons:
        name = lake_names.get(one.column, one.column)
        is_list = one.operator == "in"
        narrower = (
            make.In(name, one.values) if is_list else kinds[one.operator](name, one.values[0])
        )
        whole = make.And(whole, narrower)
    return whole


def _scans(database: Any, sql: str) -> Iterator[dict[str, Any]]:
    rows = database.execute(f"EXPLAIN (FORMAT json) {sql}").fetchall()
    waiting = [node for row in rows for node in json.loads(row[1])]
    while waiting:
        node = waiting.pop()
        if node["name"].strip() == _SCAN:
            yield node["extra_info"]
        waiting += node.get("children", [])


def _listed(value: object) -> list[str]:
    if value is None:
        return []
    return [str(one) for one in value] if isinstance(value, list) else [str(value)]


def _names(text: str) -> Iterator[str]:
    # Without literals: a text may contain what looks like a name.
    for name in re.findall(_NAME, _TEXT.sub("", text)):
        yield name.replace('""', '"')


def _value(literal: str) -> object:
    if literal.startswith("CAST("):
        return Decimal(literal.split("'")[1])
    if literal in {"true", "false"}:
        return literal == "true"
    kind, quote, text = literal.partition("'")
    if not quote:
        return int(literal)
    text = text.removesuffix("'").replace("''", "'")
    if kind.startswith("TIMESTAMP"):
        text = re.sub(r"([+-]\d\d)$", r"\1:00", text.replace(" ", "T"))
    return text
