"""A request as it arrives at AWS's door, and a question that AWS asks about it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class UnknownCallError(Exception):
    """A request of which it is not known here what AWS asks about it."""


class Question(NamedTuple):
    """May the caller do this to that, under these circumstances?"""

    action: str
    resource: str
    context: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Condition keys with their values, in order of the keys; a key without values is present."""
    role: str = ""
    """The role that is asked, where it is another than the caller's."""


def context(**values: Any) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Condition keys with their values: `s3__prefix="a/"` is `s3:prefix`; None is an absent key."""
    given = {name.replace("__", ":"): value for name, value in values.items() if value is not None}
    return tuple(
        (name, (value,) if isinstance(value, str) else tuple(value))
        for name, value in sorted(given.items())
    )


@dataclass(frozen=True)
class Request:
    """What a signed request says; header names are in lower case."""

    service: str
    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    region: str = "us-east-1"
    account: str = "000000000000"
    parse: Callable[[bytes], Any] = json.loads
    """How JSON is read: the emulator reads the same body several times."""

    @cached_property
    def document(self) -> dict[str, Any]:
        """The body as JSON."""
        try:
            document = self.parse(self.body or b"{}")
        except ValueError:
            return {}
        return document if isinstance(document, dict) else {}

    @property
    def operation(self) -> str:
        """The operation that the protocols with one address for all name: JSON, CBOR, query.

        Raises:
            UnknownCallError: it names none.
        """
        target = self.headers.get("x-amz-target", "").rpartition(".")[2]
        if target:
            return target
        if "/operation/" in self.path:
            return self.path.rpartition("/")[2]
        named = self.query.get("Action") or self.form.get("Action")
        if named:
            return named
        raise UnknownCallError(f"{self.service} {self.method} {self.path}")

    @cached_property
    def form(self) -> dict[str, str]:
        """The body as a form, whose first values they are."""
        if b"Action=" not in self.body:
            return {}
        return {name: values[0] for name, values in parse_qs(self.body.decode()).items()}

    def arn(self, resource: str, service: str = "") -> str:
        """The ARN of something in the request's account and region."""
        return f"arn:aws:{service or self.service}:{self.region}:{self.account}:{resource}"
