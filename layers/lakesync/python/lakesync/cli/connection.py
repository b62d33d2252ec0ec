"""Where the gateway and its stack are: from options, the environment, or a stack file.

Options win over the environment, the environment over a stack file. A stack file that was found,
not given, is used only if nothing else determines the gateway: otherwise a token for one stack
could be signed with the secret of another.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lakesync.cli.faults import UsageFault

if TYPE_CHECKING:
    from collections.abc import Mapping

STACK_FILE: Final = Path(".local") / "stack.json"
CLIENT: Final = "cli"
"""The default client id of the command line."""
NOWHERE: Final = (
    "it is not known which gateway to use: pass --url and --gateway (or LAKESYNC_URL and "
    "LAKESYNC_GATEWAY), or --stack, or run `make up` and stay in that folder"
)


@dataclass(frozen=True, kw_only=True)
class Given:
    """The options of the command line; None for those that were not given."""

    url: str | None = None
    gateway: str | None = None
    token: str | None = field(default=None, repr=False)
    client: str | None = None
    stack: str | None = None
    stack_file: Path | None = None
    json: bool = False


@dataclass(frozen=True, kw_only=True)
class Connection:
    """How to reach a gateway and its stack; None for what is not known."""

    gateway: str
    url: str | None = None
    token: str | None = field(default=None, repr=False)
    client: str = CLIENT
    stack: str | None = None
    endpoint: str | None = None
    """The endpoint of all AWS services, if it is not AWS."""
    region: str | None = None
    jwt_secret: str | None = field(default=None, repr=False)
    sockets: str | None = None
    """Where WebSockets are opened, by a stack file: an emulator's outputs name a host in AWS."""
    own_gateway: str = ""
    """The stack file's gateway, there from the stack's start; empty if there is none."""
    emulated: bool = False
    """Whether the endpoint is from a stack file: an emulator, which accepts any credentials."""


def resolve(
    given: Given, environment: Mapping[str, str], folder: Path, *, needs_gateway: bool = True
) -> Connection:
    """Return the connection by the command line, the environment and the stack file.

    Args:
        given: the options.
        environment: ``LAKESYNC_URL``, ``LAKESYNC_GATEWAY``, ``LAKESYNC_TOKEN``,
            ``LAKESYNC_CLIENT``, ``LAKESYNC_STACK``, and AWS's own variables.
        folder: where the search for a stack file begins; it continues in parent folders.
        needs_gateway: False for commands on a whole stack; the gateway may then be empty.

    Raises:
        UsageFault: something that is needed is nowhere to be found, or the file is unreadable.
    """

    def said(option: str | None, name: str) -> str | None:
        return option or environment.get(f"LAKESYNC_{name}") or None

    url, stack = said(given.url, "URL"), said(given.stack, "STACK")
    asked_for = given.stack_file or _path(environment.get("LAKESYNC_STACK_FILE"))
    path = asked_for or (None if url or stack else _nearest(folder))
    file = _read(path) if path else {}
    gateway = said(given.gateway, "GATEWAY") or file.get("gateway")
    if not gateway and needs_gateway:
        raise UsageFault("name the gateway: --gateway, or LAKESYNC_GATEWAY" if url else NOWHERE)
    return Connection(
        gateway=gateway or "",
        url=url or file.get("http"),
        # Out of a file that begins with a byte order mark, it begins so too.
        token=(said(given.token, "TOKEN") or "").removeprefix("\ufeff") or None,
        client=said(given.client, "CLIENT") or CLIENT,
        stack=stack or file.get("stack"),
        endpoint=file.get("endpoint") or environment.get("AWS_ENDPOINT_URL"),
        region=file.get("region")
        or environment.get("AWS_REGION")
        or environment.get("AWS_DEFAULT_REGION"),
        jwt_secret=file.get("jwt_secret"),
        sockets=file.get("sockets"),
        own_gateway=file.get("gateway", ""),
        emulated="endpoint" in file,
    )


def _path(text: str | None) -> Path | None:
    return Path(text) if text else None


def _nearest(folder: Path) -> Path | None:
    """Return the nearest stack file in a folder or its parents."""
    candidates = (parent / STACK_FILE for parent in (folder, *folder.parents))
    return next((path for path in candidates if path.is_file()), None)


def _read(path: Path) -> dict[str, str]:
    try:
        body = json.loads(path.read_text("utf-8-sig"))
    except FileNotFoundError:
        raise UsageFault(f"there is no stack file {path}: start a stack with `make up`") from None
    except (OSError, ValueError):
        raise UsageFault(f"the stack file {path} is damaged: start again with `make up`") from None
    if not isinstance(body, dict):
        raise UsageFault(f"the stack file {path} is not a JSON object")
    return {name: value for name, value in body.items() if isinstance(value, str) and value}
