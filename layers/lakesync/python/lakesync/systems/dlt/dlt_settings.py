"""How a connector of dlt is configured: its tables, its source, and the secrets of that.

dlt's configuration of a REST API, ``RESTAPIConfig``, as far as JSON can express it. Names are dlt's
own. Fields for functions or Python objects are left out, and secrets can only be referenced.

Secrets are referenced where they are used, and stored separately. A secret is written as
``{"secret": "<name>"}``; its value is in the setting ``secrets``, which is stored as a secret and
never shown.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NotRequired, TypeVar
from urllib.parse import parse_qsl, urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    SecretStr,
    Tag,
    model_validator,
)
from typing_extensions import TypedDict

from lakesync.connectors.pages import identifier
from lakesync.connectors.port import (
    TABLES_POLLED_MAX,
    Host,
    Name,
    NamedTable,
    Settings,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Self

# --- secrets --------------------------------------------------------------------------------------


SECRETS_MAX = 16
"""Secrets of one connector of dlt."""
_SECRET: Final = re.compile(
    r"pass(word|wd|phrase)|secret|credential|bearer|^(token|auth|authorization)$"
    r"|(api|access|auth|private|session|refresh)(key|token)"
)
"""What a secret is called, in lower case, without what parts the words."""
_SECRET_PARAMETER: Final = re.compile(rf"^key$|{_SECRET.pattern}")
"""The same for an address or a form, where a key is nearly always an API key."""


class _Reference(TypedDict):
    secret: str


def _is_reference(value: object) -> object:
    if name_of(value) is None:
        raise ValueError(
            'this is a secret: write {"secret": "<name>"} here, and its value under that name in '
            "secrets"
        )
    return value


def _parsed(value: object) -> object:
    """Return secrets as registered, or as stored: as JSON text."""
    return json.loads(value) if isinstance(value, str) else value


def unnamed_in(body: object) -> Iterator[str]:
    """Yield the names of fields of a JSON body that look like secrets and are written out."""
    parts = body.items() if isinstance(body, dict) else ()
    for name, value in parts:
        if _is_written_out(value) and _SECRET.search(_plain(name)):
            yield name
        else:
            yield from unnamed_in(value)
    if isinstance(body, list):
        for part in body:
            yield from unnamed_in(part)


def unnamed_parameters(parameters: object) -> Iterator[str]:
    """Yield the same for parameters: a dictionary, a form as text, or a request's address."""
    if isinstance(parameters, str):
        parameters = dict(parse_qsl(urlsplit(parameters).query or parameters))
    for name, value in parameters.items() if isinstance(parameters, dict) else ():
        if _is_written_out(value) and _SECRET_PARAMETER.search(_plain(name)):
            yield name


def _is_written_out(value: object) -> bool:
    """Return whether a value is literal; dlt replaces placeholders in braces."""
    if isinstance(value, str):
        return value != "" and not (value.startswith("{") and value.endswith("}"))
    return isinstance(value, int | float) and not isinstance(value, bool)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z]", "", name.lower())


SecretReference = Annotated[_Reference, BeforeValidator(_is_reference)]
"""Where a secret belongs."""
Secrets = Annotated[
    dict[str, SecretStr],
    BeforeValidator(_parsed),
    Field(
        max_length=SECRETS_MAX,
        description='Values of secrets, by the names that {"secret": "<name>"} has elsewhere.',
        json_schema_extra={"writeOnly": True},
    ),
]
"""The values of secrets, by name."""


def name_of(value: object) -> str | None:
    """Return the name of the secret that is referenced here; None without a reference."""
    if isinstance(value, dict) and value.keys() == {"secret"}:
        name = value["secret"]
        return name if isinstance(name, str) and name else None
    return None


def names_in(value: object) -> Iterator[str]:
    """Yield the names of all secrets that belong somewhere in a JSON value."""
    name = name_of(value)
    if name is not None:
        yield name
    elif isinstance(value, dict):
        for part in value.values():
            yield from names_in(part)
    elif isinstance(value, list):
        for part in value:
            yield from names_in(part)


def revealed(value: Any, secrets: Mapping[str, SecretStr]) -> Any:
    """Return a copy of a JSON value with its secrets in their places."""
    name = name_of(value)
    if name is not None:
        return secrets[name].get_secret_value()
    if isinstance(value, dict):
        return {key: revealed(part, secrets) for key, part in value.items()}
    if isinstance(value, list):
        return [revealed(part, secrets) for part in value]
    return value


# --- a REST API -----------------------------------------------------------------------------------


P = TypeVar("P", str, dict[str, Any])

STRICT = ConfigDict(extra="forbid", hide_input_in_errors=True)
_SECRET_HEADER: Final = re.compile(r"auth|token|key|secret|cookie|password", re.IGNORECASE)
Method = Literal["GET", "POST", "get", "post"]
Paginator = str | dict[str, Any]
Key = str | list[str]


def _no_secret(headers: dict[str, Any]) -> dict[str, Any]:
    unnamed = [name for name in headers if _SECRET_HEADER.search(name)]
    _refuse("header", (name for name in unnamed if name_of(headers[name]) is None))
    return headers


def _no_parameter(parameters: P) -> P:
    _refuse("parameter", unnamed_parameters(parameters))
    return parameters


def _no_member(body: dict[str, Any]) -> dict[str, Any]:
    _refuse("member", unnamed_in(body))
    return body


def _refuse(kind: str, unnamed: Iterator[str]) -> None:
    for name in unnamed:
        raise ValueError(
            f'the {kind} {name} is a secret: write {{"secret": "<name>"}} as its value, and '
            "that under its name in secrets"
        )


Headers = Annotated[dict[str, str | SecretReference], AfterValidator(_no_secret)]
Parameters = Annotated[dict[str, Any], AfterValidator(_no_parameter)]
Address = Annotated[str, AfterValidator(_no_parameter)]
Body = Annotated[dict[str, Any], AfterValidator(_no_member)]


class Incremental(TypedDict):
    """dlt's ``incremental``: the value of rows by which new ones are recognised."""

    __pydantic_config__ = STRICT  # type: ignore[misc]  # as pydantic reads it

    cursor_path: str
    initial_value: NotRequired[str | int | float]
    last_value_func: NotRequired[Literal["max", "min"]]
    row_order: NotRequired[Literal["asc", "desc"]]
    primary_key: NotRequired[Key]
    lag: NotRequired[float]
    range_start: NotRequired[Literal["open", "closed"]]
    on_cursor_value_missing: NotRequired[Literal["raise", "include", "exclude"]]


class EndpointIncremental(Incremental, total=False):
    """The same for an endpoint, with the parameter of its requests."""

    __pydantic_config__ = STRICT  # type: ignore[misc]

    start_param: str
    end_param: str


class Auth(TypedDict, total=False):
    """How requests are authenticated."""

    __pydantic_config__ = STRICT  # type: ignore[misc]

    type: Literal["bearer", "api_key", "http_basic", "oauth2_client_credentials"]
    token: SecretReference
    name: str
    api_key: SecretReference
    location: Literal["header", "query", "param"]
    username: str | SecretReference
    password: SecretReference
    access_token_url: str
    client_id: str | SecretReference
    client_secret: SecretReference
    access_token_request_data: Parameters
    default_token_expiration: int


class Client(TypedDict):
    """The API."""

    __pydantic_config__ = STRICT  # type: ignore[misc]

    base_url: Annotated[str, Field(max_length=512, pattern=r"^https?://[^@?#\s]+$")]
    headers: NotRequired[Headers]
    auth: NotRequired[Auth]
    paginator: NotRequired[Paginator]


class ResponseAction(TypedDict, total=False):
    """What is done with an answer of some status or content."""

    __pydantic_config__ = STRICT  # type: ignore[misc]

    status_code: int | str
    content: str
    action: Literal["ignore", "raise"]


class Endpoint(TypedDict, total=False):
    """The request of an endpoint."""

    __pydantic_config__ = STRICT  # type: ignore[misc]

    path: Address
    method: Method
    params: Parameters
    json: Body
    data: Address | Parameters
    headers: Headers
    auth: Auth
    paginator: Paginator
    data_selector: str
    response_actions: list[ResponseAction]
    incremental: EndpointIncremental


class Defaults(TypedDict, total=False):
    """The defaults for all resources."""

    __pydantic_config__ = STRICT  # type: ignore[misc]

    endpoint: Address | Endpoint
    primary_key: Key
    write_disposition: str | dict[str, Any]
    columns: dict[str, dict[str, Any]]
    include_from_parent: list[str]


class Resource(Defaults):
    """A resource, which is a table."""

    __pydantic_config__ = STRICT  # type: ignore[misc]

    name: Annotated[str, Field(min_length=1, max_length=128)]


class RestApi(TypedDict):
    """dlt's configuration of a REST API."""

    __pydantic_config__ = STRICT  # type: ignore[misc]

    client: Client
    resource_defaults: NotRequired[Defaults]
    resources: Annotated[list[str | Resource], Field(min_length=1, max_length=100)]


def resource_names(api: RestApi) -> list[str]:
    return [each if isinstance(each, str) else each["name"] for each in api["resources"]]


# --- settings -------------------------------------------------------------------------------------


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
        tables = self.tables or [
            DltTable(name=name, **{"as": None}) for name in self.resources() or ()
        ]
        return {table.name: table for table in tables}

    def named(self) -> Mapping[str, str]:
        """Return the tables by dlt's name, with the gateway's."""
        return {name: table.table for name, table in self.read().items()}
