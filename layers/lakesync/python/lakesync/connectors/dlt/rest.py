"""dlt's configuration of a REST API, as far as JSON can say it: its ``RESTAPIConfig``.

Names are dlt's own. What holds functions or Python objects is left out, and what is a secret can
only be named: see `lakesync.connectors.dlt.references`.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal, NotRequired

from pydantic import AfterValidator, ConfigDict, Field
from typing_extensions import TypedDict

from lakesync.connectors.dlt.references import SecretReference, name_of

STRICT = ConfigDict(extra="forbid", hide_input_in_errors=True)
_SECRET_HEADER: Final = re.compile(r"auth|token|key|secret|cookie|password", re.IGNORECASE)
Method = Literal["GET", "POST", "get", "post"]
Paginator = str | dict[str, Any]
Key = str | list[str]


def _no_secret(headers: dict[str, Any]) -> dict[str, Any]:
    for name, value in headers.items():
        if _SECRET_HEADER.search(name) and name_of(value) is None:
            raise ValueError(
                f'the header {name} is a secret: write {{"secret": "<name>"}} as its value, and '
                "that under its name in secrets"
            )
    return headers


Headers = Annotated[dict[str, str | SecretReference], AfterValidator(_no_secret)]


class Incremental(TypedDict):
    """dlt's ``incremental``: by which value of rows it is known what is new."""

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
    """The same, of an endpoint: with the parameter that it is asked by."""

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
    access_token_request_data: dict[str, Any]
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
    """What is asked for."""

    __pydantic_config__ = STRICT  # type: ignore[misc]

    path: str
    method: Method
    params: dict[str, Any]
    json: dict[str, Any]
    data: str | dict[str, Any]
    headers: Headers
    auth: Auth
    paginator: Paginator
    data_selector: str
    response_actions: list[ResponseAction]
    incremental: EndpointIncremental


class Defaults(TypedDict, total=False):
    """What holds for all resources that do not say otherwise."""

    __pydantic_config__ = STRICT  # type: ignore[misc]

    endpoint: str | Endpoint
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
    """Give the names of its resources."""
    return [each if isinstance(each, str) else each["name"] for each in api["resources"]]
