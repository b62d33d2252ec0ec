"""Secrets in settings of another library: referenced where they are used, stored separately.

A secret is written as ``{"secret": "<name>"}``; its value is in the setting ``secrets``, which is
stored as a secret and never shown.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import parse_qsl, urlsplit

from pydantic import BeforeValidator, Field, SecretStr
from typing_extensions import TypedDict

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

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
