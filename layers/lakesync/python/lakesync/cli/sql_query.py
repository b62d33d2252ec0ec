"""SQL on tables in the lake: PyIceberg reads the rows, DuckDB runs the query."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from lakesync.cli.faults import UsageFault
from lakesync.core.names import CHANGES_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Collection

    import pyarrow as pa

    from lakesync.cli.asof import AsOf
    from lakesync.cli.pushdown import Needed


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

    from lakesync.cli.pushdown import needed

    database = duckdb.connect()
    try:
        wanted = {name.lower() for name in database.get_table_names(sql)}
        names = set(lake.names())
        sources = {
            name: name + CHANGES_SUFFIX if changes and name + CHANGES_SUFFIX in names else name
            for name in names
            if name.lower() in wanted
        }
        schemas = {
            name: lake.schema(source, moment, all_columns=all_columns)
            for name, source in sources.items()
        }
        needs = needed(database, sql, schemas)
        for name, source in sources.items():
            rows = lake.read(source, moment, all_columns=all_columns, needed=needs[name])
            database.register(name, rows)
        answer = database.sql(sql)
        if answer is None:
            raise UsageFault("the query was refused: it gives no rows; begin it with SELECT")
        return answer.to_arrow_table()
    except duckdb.Error as exc:
        raise UsageFault(_sentence(str(exc), lake.names())) from exc
    finally:
        database.close()


def _sentence(text: str, tables: Collection[str]) -> str:
    first = text.strip().splitlines()[0]
    if first.startswith("Catalog Error: Table"):
        known = (
            ", ".join(sorted(tables)) or "none yet: push something, then `lakesync flush --wait`"
        )
        return f"{first.removesuffix('!')}; tables in the lake: {known}"
    return f"the query was refused: {first}"
