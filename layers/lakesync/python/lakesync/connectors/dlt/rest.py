"""dlt's configuration of a REST API, ``RESTAPIConfig``, as far as JSON can express it.

Names are dlt's own. Fields for functions or Python objects are left out, and secrets can only be
referenced: see `lakesync.connectors.dlt.references`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NotRequired, TypeVar

from pydantic import AfterValidator, ConfigDict, Field
from typing_extensions import TypedDict

from lakesync.connectors.dlt.references import (
    SecretReference,
    name_of,
    unnamed_in,
    unnamed_parameters,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    """Return the names of its resources."""
    return [each if isinstance(each, str) else each["name"] for each in api["resources"]]
