"""Queries as text: transforms are composed as SQL, and Spark analyses the result once.

A `DataFrame` calls Java for each column and analyses its plan again at each step, which was half of
the planning of a merge of a hundred deltas. Text costs nothing until it is a query.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING
from uuid import uuid4

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pyspark.sql import DataFrame


def selected(rows: str, columns: Iterable[str], condition: str = "") -> str:
    """Return a query of some columns.

    Args:
        rows: the name of a table or view, or a query.
        columns: SQL, with their names where they need one.
        condition: which rows; all of them without.
    """
    source = f"({rows})" if " " in rows else rows
    where = f" WHERE {condition}" if condition else ""
    return f"SELECT {', '.join(columns)} FROM {source}{where}"  # noqa: S608 - names of ours


def with_constants(rows: str, values: Mapping[str, str]) -> str:
    """Add columns with one value for all rows, which differs from commit to commit.

    The values are passed as data. Spark caches its generated code by the code's text, and a literal
    number would be part of that text, so each commit would compile the code again. An array is
    passed to the code as a reference.

    Args:
        rows: as in `selected`.
        values: SQL literals, by the names of the columns.
    """
    fields = ", ".join(f"'{name}', {literal}" for name, literal in values.items())
    return selected(rows, ("*", f"inline(array(named_struct({fields})))"))


def asked(rows: DataFrame, text: Callable[[str], str]) -> DataFrame:
    """Return a data frame of a query on rows.

    Args:
        text: gives the query for the rows' view name.
    """
    with view_of(rows) as name:
        # What is written is taken as it was said, and would be analysed once more: behind an alias
        # stands what was analysed.
        return rows.sparkSession.sql(text(name)).alias("rows")


@contextmanager
def view_of(rows: DataFrame) -> Iterator[str]:
    """Yield the name of rows, for as long as queries are made of them."""
    name = f"lakesync_{uuid4().hex}"  # all threads share a session's name space
    rows.createOrReplaceTempView(name)
    try:
        yield name
    finally:
        rows.sparkSession.catalog.dropTempView(name)
