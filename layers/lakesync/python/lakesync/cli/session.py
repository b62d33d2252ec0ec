"""One run of one command: its connection and its output."""

from __future__ import annotations

import inspect
import os
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Self, get_type_hints

import typer

from lakesync.cli.aws import Aws
from lakesync.cli.connection import CLIENT, Connection, Given, resolve
from lakesync.cli.faults import Fault, UsageFault, fault_line, fault_of, is_bug_to_show
from lakesync.cli.output import Output, quiet_pipe
from lakesync.errors import NotTheGateway, Unreachable

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.client import HttpTransport

OWN_TOKEN_S: Final = 900
"""The lifetime of a token that the command line signs for itself."""
_PANEL: Final = "Connection"


class Session:
    """The connection, clients and output of a command. Everything is created lazily."""

    def __init__(self, given: Given) -> None:
        self._given = given
        self._open = ExitStack()
        self.out = Output(json_lines=given.json)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    @cached_property
    def connection(self) -> Connection:
        """The connection to the gateway."""
        return resolve(self._given, os.environ, Path.cwd())

    @cached_property
    def place(self) -> Connection:
        """The connection to the stack; its gateway may be empty."""
        return resolve(self._given, os.environ, Path.cwd(), needs_gateway=False)

    @cached_property
    def aws(self) -> Aws:
        """The stack."""
        return Aws(self.place)

    @cached_property
    def url(self) -> str:
        """The gateway's address."""
        return self.connection.url or self.aws.output("HttpUrl")

    def token(self, role: str = "client") -> str:
        """Return the token that was set, or else sign one for a few minutes.

        Raises:
            UsageFault: no token was set, and no stack is known whose secret could sign one.
        """
        from lakesync.cli.tokens import sign

        connection = self.connection
        if connection.token:
            return connection.token
        if not connection.jwt_secret and not connection.stack:
            raise UsageFault(
                "a token is needed: set LAKESYNC_TOKEN (see `lakesync token --help`), or --stack"
            )
        claims = {"sub": connection.client, "gw": connection.gateway, "role": role}
        return sign(claims, OWN_TOKEN_S, self.aws.jwt_secret(), int(time.time()))

    @property
    def client_id(self) -> str:
        """The client id of this command: the given one, else the token's user."""
        from lakesync.cli.tokens import subject

        client, token = self.connection.client, self.connection.token
        return (subject(token) if token and client == CLIENT else None) or client

    def speak_for(self, client: str) -> None:
        """Use the client id that the input names, unless another client or a token is set."""
        connection = self.connection
        if not connection.token and connection.client == CLIENT:
            self.connection = replace(connection, client=client)

    def transport(self, role: str = "client") -> HttpTransport:
        """Return the client library's transport to the gateway; the session closes it."""
        from lakesync.client import HttpTransport

        gateway = self.connection.gateway
        self.token()  # reports here what is missing for a token
        transport = HttpTransport(self.url, gateway, token=lambda: self.token(role))
        return self._open.enter_context(transport)

    def ask(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        """Call an administrative route of this gateway.

        Raises:
            LakeSyncError: the gateway's error.
        """
        from lakesync.cli.gateway import call

        return call(self.url, self.token("admin"), method, path, body)


def _shared(
    *,
    url: Annotated[
        str | None,
        typer.Option(rich_help_panel=_PANEL, help="The gateway's address, or LAKESYNC_URL."),
    ] = None,
    gateway: Annotated[
        str | None,
        typer.Option(rich_help_panel=_PANEL, help="The gateway's id, or LAKESYNC_GATEWAY."),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=_PANEL,
            help="A token; prefer LAKESYNC_TOKEN, which other users cannot see.",
        ),
    ] = None,
    client: Annotated[
        str | None,
        typer.Option(rich_help_panel=_PANEL, help="The client id to sign for, or LAKESYNC_CLIENT."),
    ] = None,
    stack: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=_PANEL, help="The CloudFormation stack's name, or LAKESYNC_STACK."
        ),
    ] = None,
    stack_file: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=_PANEL,
            help="A stack file; by default .local/stack.json here or in a parent folder.",
        ),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print JSON, one object per line, for programs.")
    ] = False,
) -> None:
    """Define the options that every command takes."""


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Turn ``function(session, …)`` into a command with shared options and one-line errors."""
    hints = get_type_hints(function, include_extras=True)
    shared = inspect.signature(_shared, eval_str=True).parameters
    own = list(inspect.signature(function).parameters.values())[1:]
    parameters = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[parameter.name])
        for parameter in own
    ]

    def run(**values: Any) -> None:
        given = Given(**{name: values.pop(name) for name in shared})
        session = Session(given)
        try:
            with quiet_pipe(), session:
                function(session, **values)
        except (typer.Exit, typer.TyperException):
            raise
        except BaseException as error:
            if is_bug_to_show(error):
                raise
            fault = _located(fault_of(error), session)
            sys.stderr.write(fault_line(fault, for_programs=given.json) + "\n")
            raise typer.Exit(fault.exit_code) from None

    run.__name__ = function.__name__
    run.__doc__ = unwrapped(function.__doc__ or "")
    run.__module__ = function.__module__
    run.__signature__ = inspect.Signature([*parameters, *shared.values()])  # type: ignore[attr-defined]  # what typer reads
    return run


def _located(fault: Fault, session: Session) -> Fault:
    """Add to the message the address that did not answer, which is usually the cause."""
    url = session.__dict__.get("url")
    if fault.code == NotTheGateway.code and url:
        return replace(fault, sentence=f"{fault.sentence} (asked: {url})")
    if fault.code != Unreachable.code or not url or url in fault.sentence:
        return fault
    hint = f"{url}: check --url and the network; a local stack is started by `make up`"
    return replace(fault, sentence=f"{fault.sentence.removesuffix('; try again')}, at {hint}")


def unwrapped(text: str) -> str:
    """Join the lines of each paragraph, for the terminal to wrap; examples keep their lines."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(
        part if part.startswith("Example:") else part.replace("\n", " ") for part in paragraphs
    )
