"""How a connector of a SQL database is configured: its settings, and the names of tables in them.

The databases are PostgreSQL, MySQL and BigQuery; the settings of all connectors are `Settings`.

Names of a source's tables and columns: how settings write them, how statements quote them. In
settings a dot separates the schema from the table. A part in double quotes is taken as it is, dots
included, as in SQL: ``"a.b"``, ``public."a.b"``.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence  # noqa: TC003 - pydantic reads it
from typing import TYPE_CHECKING, Annotated, Final, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    field_validator,
    model_validator,
)
from pydantic.alias_generators import to_camel

from lakesync.adapters.network import host_fault
from lakesync.connectors.pages import identifier
from lakesync.connectors.port import FEED
from lakesync.core.names import check_table_name
from lakesync.errors import ValidationFailed

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

    from lakesync.adapters.sql.standard import Dialect

TABLES_POLLED_MAX = 100
"""Tables of one connector: their cursors lie in one item."""
QUERY_CHARS_MAX = 8_000
"""The length of a query that is read in a table's place: the settings lie in one item."""
OVERLAP_S_MAX = 86_400
"""The longest duration of a source's transaction that changes a polled table."""
SlotName = Annotated[str, Field(pattern="^[a-z0-9_]{1,63}$")]
Name = Annotated[str, Field(min_length=1, max_length=128)]


def _host(value: str) -> str:
    if fault := host_fault(value):
        raise ValueError(fault)
    return value


Host = Annotated[Name, AfterValidator(_host)]


class Settings(BaseModel):
    """Settings in JSON have names like `cursorColumn`; unknown ones are refused."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, alias_generator=to_camel, hide_input_in_errors=True
    )


class NamedTable(Settings, ABC):
    """A table of a source: its name in the gateway is one that a table may have."""

    @property
    @abstractmethod
    def table(self) -> str:
        """The table's name in the gateway."""

    @model_validator(mode="after")
    def _named_well(self) -> Self:
        try:
            check_table_name(self.table, "as")
        except ValidationFailed as error:
            raise ValueError(error.message) from error
        return self


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
        """The table's name in the gateway."""
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


class PostgresSettings(SqlSettings):
    """A PostgreSQL database, 13 or newer."""

    port: int = Field(5432, ge=1, le=65535)
    changes: bool = Field(
        default=False,
        description=(
            "Read the database's log of changes, by a replication slot: every insert, update and "
            "deletion, without asking the tables. Needs wal_level = logical."
        ),
    )
    slot: SlotName | None = Field(None, description="The slot's name; else one is made up.")
    publication: SlotName | None = Field(
        None, description="A publication to use, or to make; else it is named as the slot is."
    )

    @model_validator(mode="after")
    def _captured_or_polled(self) -> Self:
        if self.changes and any(table.cursor_column or table.query for table in self.tables):
            raise ValueError(
                "with changes no table has a cursorColumn or a query: all are captured"
            )
        if not self.changes and (self.slot or self.publication):
            raise ValueError("slot and publication are for changes: set changes to true")
        return self

    def named(self) -> Mapping[str, str]:
        """Return the tables by the source's name, with the gateway's; the feed first, if any."""
        return ({FEED: ""} if self.changes else {}) | dict(super().named())


class MySqlSettings(SqlSettings):
    """A MySQL 8 or MariaDB 10.6 database, or newer."""

    port: int = Field(3306, ge=1, le=65535)
    changes: bool = Field(
        default=False,
        description=(
            "Read the database's log of changes, as a replica does: every insert, update and "
            "deletion, without asking the tables. Needs binlog_format = ROW and "
            "binlog_row_metadata = FULL."
        ),
    )
    server_id: int | None = Field(
        None, ge=1, le=(1 << 32) - 1,
        description="Its number among those who read the log; else one is made up.",
    )  # fmt: skip

    @model_validator(mode="after")
    def _captured_or_polled(self) -> Self:
        if self.changes and any(table.cursor_column or table.query for table in self.tables):
            raise ValueError(
                "with changes no table has a cursorColumn or a query: all are captured"
            )
        if not self.changes and self.server_id:
            raise ValueError("serverId is for changes: set changes to true")
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


# --- BigQuery -------------------------------------------------------------------------------------


BYTES_BILLED_DEFAULT = 10 * 1024**3
"""What one query of a poll may be billed for, unless the settings say otherwise."""
PARTITION_DAYS_MAX = 3_650
"""The oldest partitions that a poll can be limited to."""
TOKEN_URI: Final = "https://oauth2.googleapis.com/token"  # noqa: S105 - Google's address
_NAME_PARTS_MAX: Final = 3
_KEY: Final = "the key of a service account, as JSON, with Google's token_uri"


class BigQueryTable(PolledTable):
    """One table that is polled."""

    partition_days: int | None = Field(
        None, ge=1, le=PARTITION_DAYS_MAX,
        description=(
            "Only partitions of the last days are read, for a table whose partitions are of "
            "another column than cursorColumn. Rows that change in older ones are not noticed."
        ),
    )  # fmt: skip

    @model_validator(mode="after")
    def _is_sound(self) -> Self:
        if len(self.name.split(".")) > _NAME_PARTS_MAX:
            raise ValueError("name: a table, dataset.table or project.dataset.table")
        if self.partition_days and (self.query or not self.cursor_column):
            raise ValueError(
                "partitionDays is for a table with a cursorColumn: by difference rows of other "
                "partitions would be deleted, and a query has filters of its own"
            )
        return self


class BigQuerySettings(PolledSettings):
    """A dataset of BigQuery."""

    project: Name = Field(
        pattern="^[a-z][a-z0-9-]{2,62}$", description="It runs and pays for the queries."
    )
    dataset: Name = Field(
        pattern="^[A-Za-z0-9_]+$", description="That of tables whose names state no other."
    )
    location: str = Field(
        "", pattern="^[A-Za-z0-9-]{0,40}$",
        description="The dataset's, such as EU; if empty, BigQuery determines it.",
    )  # fmt: skip
    credentials: SecretStr | None = Field(
        None,
        description="The key of a service account, as JSON; needed unless endpoint is an emulator.",
    )
    endpoint: str = Field(
        "", pattern=r"^(https?://[A-Za-z0-9.-]+(:[0-9]{1,5})?)?$",
        description="The API's address if it is not the public one; ConnectorHosts must list it.",
    )  # fmt: skip
    maximum_bytes_billed: int = Field(
        BYTES_BILLED_DEFAULT, ge=1,
        description="A poll of a table that would be billed for more is refused, at no cost.",
    )  # fmt: skip
    tables: list[BigQueryTable] = Field(min_length=1, max_length=TABLES_POLLED_MAX)

    @field_validator("credentials")
    @classmethod
    def _is_key(cls, value: SecretStr | None) -> SecretStr | None:
        """Accept what can only be exchanged at Google, for what its owner may do there.

        Federation would lend the identity of the operator's functions to whoever names a pool.
        """
        if value is None:
            return None
        try:
            key = json.loads(value.get_secret_value())
            is_key = (key["type"], key["token_uri"]) == ("service_account", TOKEN_URI)
        except (ValueError, KeyError, TypeError) as exc:
            raise ValueError(_KEY) from exc
        if not is_key:
            raise ValueError(_KEY)
        return value

    @model_validator(mode="after")
    def _has_credentials(self) -> Self:
        if self.credentials is None and not self.endpoint.startswith("http://"):
            raise ValueError(f"credentials: {_KEY}")
        return self
