"""Values that are another one for each commit, as columns of data.

Spark compiles the code that it generates, and remembers it by its text. A literal number is part of
that text: what a merge of a hundred deltas costs is then the compiling of code that is the same but
for its commit. An array is handed to the code, whatever is in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame


def with_constants(rows: DataFrame, values: Mapping[str, str]) -> DataFrame:
    """Add columns that hold the same value in each row.

    Args:
        rows: any.
        values: SQL literals, by the names of the columns.
    """
    fields = ", ".join(f"'{name}', {literal}" for name, literal in values.items())
    return rows.selectExpr("*", f"inline(array(named_struct({fields})))")
