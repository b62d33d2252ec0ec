"""Names of a source's tables and columns: how settings write them, how statements quote them.

In settings a dot separates the schema from the table. A part in double quotes is taken as it is,
dots included, as in SQL: ``"a.b"``, ``public."a.b"``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from lakesync.adapters.sql.dialect import Dialect

_LAST_QUOTED: Final = re.compile(r'(?:(?P<schema>.*)\.)?"(?P<table>(?:[^"]|"")+)"', re.DOTALL)
_NO_DOT: Final = "\0"
"""Stands for a dot that separates nothing; no name has it."""
_DERIVED: Final = "lakesync_rows"
_QUOTED: Final = re.compile(r'"(?:[^"]|"")+"', re.DOTALL)


def place_of(name: str) -> tuple[str, str]:
    """Return the schema of a table that settings name, empty if they do not say, and its name."""
    match = _LAST_QUOTED.fullmatch(name)
    if match is not None:
        return _plain(match["schema"] or ""), match["table"].replace('""', '"')
    schema, _, table = name.rpartition(".")
    return _plain(schema), table


def written(table: str) -> str:
    """Return how settings write a table of the connection's own schema."""
    if "." not in table and not table.startswith('"'):
        return table
    doubled = table.replace('"', '""')
    return f'"{doubled}"'


def quoted_table(dialect: Dialect, name: str) -> str:
    """Return a table that settings name, as part of a statement with parameters."""
    return ".".join(quoted_name(dialect, part) for part in place_of(name) if part)


def bare_table(dialect: Dialect, name: str) -> str:
    """Return it as part of a statement without parameters, in which no ``%`` is doubled."""
    return quoted_table(dialect, name).replace("%%", "%")


def derived_table(query: str) -> str:
    """Return a query as a table, as part of a statement with parameters.

    A comment at its end ends with its line. What is no query by itself must not come here: the
    database is asked first.
    """
    return f"(\n{query.replace('%', '%%')}\n) AS {_DERIVED}"


def quoted_name(dialect: Dialect, name: str) -> str:
    """Return one name, a column's, as part of a statement with parameters."""
    return dialect.quote(name.replace(".", _NO_DOT)).replace(_NO_DOT, ".")


def _plain(part: str) -> str:
    return part[1:-1].replace('""', '"') if _QUOTED.fullmatch(part) else part
