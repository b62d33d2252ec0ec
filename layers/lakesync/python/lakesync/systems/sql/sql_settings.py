"""How a connector of a SQL database is configured: its settings, and the names of tables in them.

Names of a source's tables and columns: how settings write them, how statements quote them. In
settings a dot separates the schema from the table. A part in double quotes is taken as it is, dots
included, as in SQL: ``"a.b"``, ``public."a.b"``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence  # noqa: TC003 - pydantic reads it
from typing import TYPE_CHECKING, Final, Literal

from pydantic import (
    Field,
    SecretStr,
    model_validator,
)

from lakesync.connectors.pages import identifier
from lakesync.connectors.port import (
    FEED,
    OVERLAP_S_MAX,
    TABLES_POLLED_MAX,
    Host,
    Name,
    NamedTable,
    Settings,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

    from lakesync.adapters.sql.standard import Dialect

QUERY_CHARS_MAX = 8_000
"""The length of a query that is read in a table's place: the settings lie in one item."""


class PolledTable(NamedTable):
    """One table that is polled."""

    name: Name = Field(
        description=(
            "The table, with its schema if it is not the connection's. If a dot is part of the "
            'name, the name is in double quotes: "a.b".'
        )
    )
    as_: Name | None = Field(None, alias="as", description="Its name in the gateway.")
    query: str | None = Field(
        None, min_length=1, max_length=QUERY_CHARS_MAX,
        description=(
            "One SELECT whose rows are read in the table's place, with joins and filters; name is "
            "then what it is called, and key names its columns that identify a row."
        ),
    )  # fmt: skip
    cursor_column: Name | None = Field(
        None,
        description=(
            "A column with the time of each row's last change, with an index on it. Without one "
            "all rows are read at each poll, and compared; then deletions are noticed too."
        ),
    )
    columns: list[Name] | None = Field(None, description="Only these columns; else all.")
    key: list[Name] | None = Field(
        None,
        min_length=1,
        description="The columns that identify a row; by default the primary key.",
    )

    @property
    def table(self) -> str:
        return self.as_ or identifier(place_of(self.name)[1])

    @model_validator(mode="after")
    def _query_has_key(self) -> Self:
        if self.query and "\0" in self.query:
            raise ValueError("query: no text of a statement has a character of number 0")
        if self.query and not self.key:
            raise ValueError(
                "a query has no primary key: name its columns that identify a row, key"
            )
        return self


class PolledSettings(Settings):
    """What all databases that are polled have in common; a subclass has ``tables``."""

    tables: Sequence[PolledTable]
    overlap_s: int = Field(
        60, ge=0, le=OVERLAP_S_MAX,
        description="How long the longest transaction takes: so much is read again at each poll.",
    )  # fmt: skip
    settle_s: int = Field(
        1, ge=0, le=3_600,
        description="Changes younger than this wait for the next poll; as fine as the cursor is.",
    )  # fmt: skip

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        names = [table.name for table in self.tables]
        if len(set(names)) < len(names):
            raise ValueError("a table is named twice")
        return self

    def named(self) -> Mapping[str, str]:
        """Return the tables by the source's name, with the gateway's."""
        return {table.name: table.table for table in self.tables}

    def polled(self) -> Mapping[str, PolledTable]:
        """Return the tables by the source's name."""
        return {table.name: table for table in self.tables}


class SqlSettings(PolledSettings):
    """What PostgreSQL, MySQL and MariaDB have in common."""

    host: Host
    database: Name
    user: Name = Field(description="A user who may read the tables, and needs no more.")
    password: SecretStr
    tls: Literal["verify", "encrypt", "off"] = Field(
        "encrypt", description="verify also checks the server's certificate and name."
    )
    tables: list[PolledTable] = Field(min_length=1, max_length=TABLES_POLLED_MAX)


class CapturableSettings(SqlSettings):
    """What databases whose log can be read have in common; a subclass has ``changes``."""

    if TYPE_CHECKING:
        changes: bool

    @model_validator(mode="after")
    def _captured_or_polled(self) -> Self:
        if self.changes and any(table.cursor_column or table.query for table in self.tables):
            raise ValueError(
                "with changes no table has a cursorColumn or a query: all are captured"
            )
        return self

    def named(self) -> Mapping[str, str]:
        """Return the tables by the source's name, with the gateway's; the feed first, if any."""
        return ({FEED: ""} if self.changes else {}) | dict(super().named())


# --- names ----------------------------------------------------------------------------------------


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
