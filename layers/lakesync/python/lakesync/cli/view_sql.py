"""SQL that makes a view of a table in the lake: its rows, without what LakeSync keeps for itself.

The one place where such SQL is written. Names are quoted, whatever they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lakesync.cli.faults import UsageFault
from lakesync.core.names import CHANGES_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lakesync.cli.lake import Lake

QUOTES: Final = {"athena": '"', "duckdb": '"', "spark": "`", "trino": '"'}
"""By engine, what stands around a name."""
SUFFIX: Final = "_rows"
"""What the name of a view ends with, behind that of its table in the lake."""


def views(lake: Lake, table: str | None, engine: str) -> Iterator[tuple[str, str]]:
    """Give the statement for each table, or for one, by the view's name; histories have none.

    Raises:
        UsageFault: a table has the name that a view would get.
    """
    quote = QUOTES[engine]
    taken = {lake.table(name).name()[-1] for name in lake.names()}
    for name in lake.names_of(table):
        if name.endswith(CHANGES_SUFFIX):
            continue
        columns, is_filtered = lake.columns_of_rows(name)
        database, lake_name = lake.table(name).name()[-2:]
        view = lake_name + SUFFIX
        if view in taken:
            raise UsageFault(f"{view} is a table already, so {name} can have no view of that name")
        shown = ", ".join(_quoted(column, quote) for column in columns)
        source = _qualified(quote, database, lake_name)
        where = f" WHERE NOT {_quoted('_is_deleted', quote)}" if is_filtered else ""
        select = f"SELECT {shown} FROM {source}{where}"  # noqa: S608 - quoted
        yield view, f"CREATE OR REPLACE VIEW {_qualified(quote, database, view)} AS {select}"


def _qualified(quote: str, *names: str) -> str:
    return ".".join(_quoted(name, quote) for name in names)


def _quoted(name: str, quote: str) -> str:
    return quote + name.replace(quote, quote * 2) + quote
