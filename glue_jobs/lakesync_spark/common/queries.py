"""Queries as text: what a transform is made of, until Spark is asked once.

A `DataFrame` asks Java for each column and has its plan looked through again for each step: of a
merge of a hundred deltas that was half of the planning. Text costs nothing until it is a query.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING
from uuid import uuid4

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pyspark.sql import DataFrame


def selected(rows: str, columns: Iterable[str], condition: str = "") -> str:
    """Give a query of some columns.

    Args:
        rows: the name of a table or view, or a query.
        columns: SQL, with their names where they need one.
        condition: which rows; all of them without.
    """
    source = f"({rows})" if " " in rows else rows
    where = f" WHERE {condition}" if condition else ""
    return f"SELECT {', '.join(columns)} FROM {source}{where}"  # noqa: S608 - names of ours


def with_constants(rows: str, values: Mapping[str, str]) -> str:
    """Add columns that hold the same value in each row, another one for each commit.

    As data: Spark compiles the code that it generates, and remembers it by its text. A literal
    number is part of that text, and each commit would have the same code compiled anew; an array is
    handed to the code, whatever is in it.

    Args:
        rows: as in `selected`.
        values: SQL literals, by the names of the columns.
    """
    fields = ", ".join(f"'{name}', {literal}" for name, literal in values.items())
    return selected(rows, ("*", f"inline(array(named_struct({fields})))"))


def asked(rows: DataFrame, text: Callable[[str], str]) -> DataFrame:
    """Ask Spark for what is made of rows.

    Args:
        rows: any.
        text: gives the query, out of the name of the rows.
    """
    with view_of(rows) as name:
        # What is written is taken as it was said, and would be analysed once more: behind an alias
        # stands what was analysed.
        return rows.sparkSession.sql(text(name)).alias("rows")


@contextmanager
def view_of(rows: DataFrame) -> Iterator[str]:
    """Give the name of rows, for as long as queries are made of them."""
    name = f"lakesync_{uuid4().hex}"  # a session has one name space for all threads
    rows.createOrReplaceTempView(name)
    try:
        yield name
    finally:
        rows.sparkSession.catalog.dropTempView(name)
