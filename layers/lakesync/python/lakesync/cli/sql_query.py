"""SQL on tables in the lake: PyIceberg reads the rows, DuckDB runs the query."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from lakesync.cli.faults import UsageFault
from lakesync.core.names import CHANGES_SUFFIX

if TYPE_CHECKING:
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

    from lakesync.cli.own_database import named_tables, own_database
    from lakesync.cli.pushdown import needed

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
