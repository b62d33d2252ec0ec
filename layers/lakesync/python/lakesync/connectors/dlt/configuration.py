"""How a connector of dlt is configured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator
from typing_extensions import TypedDict

from lakesync.connectors.deltas import identifier
from lakesync.connectors.dlt.references import SecretReference, Secrets, names_in
from lakesync.connectors.dlt.rest import STRICT, Incremental, Key, RestApi, resource_names
from lakesync.connectors.sql.configuration import (
    TABLES_POLLED_MAX,
    Host,
    Name,
    NamedTable,
    Settings,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self


def _stays_below(value: str) -> str:
    if ".." in value or "\\" in value or value.startswith("/"):
        raise ValueError("it leads out of the folder: leave out .., \\ and a leading /")
    return value


Below = Annotated[str, Field(min_length=1, max_length=512), AfterValidator(_stays_below)]


class Hints(TypedDict):
    """dlt's hints of a resource: the arguments of `apply_hints`."""

    __pydantic_config__ = STRICT  # type: ignore[misc]  # as pydantic reads it

    primary_key: NotRequired[Key]
    write_disposition: NotRequired[Literal["append", "merge", "replace"]]
    columns: NotRequired[dict[str, dict[str, Any]]]
    incremental: NotRequired[Incremental]


class DltTable(NamedTable):
    """One resource that is read."""

    name: Name = Field(description="The resource, by dlt's name.")
    as_: Name | None = Field(None, alias="as", description="Its name in the gateway.")
    changed_at: Name | None = Field(
        None,
        description="What of a row tells when it changed last, as a JSON path; else incremental's "
        "cursor, if that is a time.",
    )
    hints: Hints | None = Field(None, description="dlt's hints, in the place of the source's own.")

    @property
    def table(self) -> str:
        """The table's name in the gateway."""
        return self.as_ or identifier(self.name)


class SqlDatabase(Settings):
    """What dlt's source ``sql_database`` reads."""

    kind: Literal["postgresql", "mysql"]
    host: Host
    port: int | None = Field(None, ge=1, le=65535)
    database: Name
    user: Name
    password: SecretReference
    schema_: Name | None = Field(None, alias="schema", description="Else the user's own.")
    tls: Literal["verify", "encrypt", "off"] = "encrypt"


class SqlUrl(Settings):
    """What dlt's source ``sql_database`` reads, by an URL of SQLAlchemy."""

    url: SecretReference = Field(
        description="Such as mssql+pymssql://user:password@host:1433/database; its driver is "
        "installed with the deployment, and the operator lists its host.",
    )  # fmt: skip
    schema_: Name | None = Field(None, alias="schema", description="Else the user's own.")
    tls: Literal["verify", "encrypt", "off"] = Field(
        "encrypt", description="Of PostgreSQL and MySQL; other drivers have their own."
    )


def _form_of(value: object) -> str:
    is_url = "url" in value if isinstance(value, dict) else isinstance(value, SqlUrl)
    return "url" if is_url else "parts"


AnySql = Annotated[
    Annotated[SqlDatabase, Tag("parts")] | Annotated[SqlUrl, Tag("url")], Discriminator(_form_of)
]


class Files(Settings):
    """Some files, which are a table."""

    name: Name
    glob: Below = Field(description="Which, below the folder: orders/*.jsonl, orders/**/*.csv.")
    format: Literal["jsonl", "csv"] = "jsonl"


class Filesystem(Settings):
    """What dlt's source ``filesystem`` reads."""

    bucket_url: Below = Field(
        pattern=r"^(s3|file)://[^?#\s]+$",
        description="s3://bucket/folder, which the operator of the stack must list.",
    )  # fmt: skip
    files: list[Files] = Field(min_length=1, max_length=TABLES_POLLED_MAX)


class DltSettings(Settings):
    """One of dlt's sources: exactly one of rest, sqlDatabase, filesystem and source."""

    rest: RestApi | None = Field(None, description="dlt's configuration of a REST API.")
    sql_database: AnySql | None = None
    filesystem: Filesystem | None = None
    source: Name | None = Field(
        None, description="A source that the deployment installed, by its entry point's name."
    )
    arguments: dict[str, Any] = Field(default_factory=dict, description="What source is made of.")
    secrets: Secrets = Field(default_factory=dict)
    tables: list[DltTable] = Field(
        default_factory=list, max_length=TABLES_POLLED_MAX,
        description="Which resources are read; of rest and filesystem else all.",
    )  # fmt: skip

    @model_validator(mode="after")
    def _is_one_source(self) -> Self:
        kinds = [self.rest, self.sql_database, self.filesystem, self.source]
        if sum(kind is not None for kind in kinds) != 1:
            raise ValueError("name one of rest, sqlDatabase, filesystem and source")
        if self.arguments and self.source is None:
            raise ValueError("arguments are for source")
        return self

    @model_validator(mode="after")
    def _tables_exist(self) -> Self:
        names = [table.name for table in self.tables]
        if len(set(names)) < len(names):
            raise ValueError("a table is named twice")
        known = self.resources()
        if known is None and not names:
            raise ValueError("tables: name what is read")
        missing = [name for name in names if known is not None and name not in known]
        if missing:
            raise ValueError(f"tables: there is no resource {', '.join(missing)}")
        if known is not None and len(set(known)) < len(known):
            raise ValueError("a resource is named twice")
        return self

    @model_validator(mode="after")
    def _secrets_are_there(self) -> Self:
        database = self.sql_database
        secret = database.url if isinstance(database, SqlUrl) else database and database.password
        places = [self.rest, self.arguments, secret]
        missing = sorted({name for place in places for name in names_in(place)} - {*self.secrets})
        if missing:
            raise ValueError(f"secrets: there is no value of {', '.join(missing)}")
        return self

    def resources(self) -> list[str] | None:
        """Return the resources that the settings name; None if the source must list them."""
        if self.rest is not None:
            return resource_names(self.rest)
        if self.filesystem is not None:
            return [files.name for files in self.filesystem.files]
        return None

    def read(self) -> dict[str, DltTable]:
        """Return the tables that are read, by dlt's name."""
        tables = self.tables or [
            DltTable(name=name, **{"as": None}) for name in self.resources() or ()
        ]
        return {table.name: table for table in tables}

    def named(self) -> Mapping[str, str]:
        """Return the tables by dlt's name, with the gateway's."""
        return {name: table.table for name, table in self.read().items()}
