"""`lakesync access`: who may come into a gateway, and whose each client is."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated
from urllib.parse import quote

import typer

from lakesync.cli.session import Session, command


class Kind(StrEnum):
    """What can be shut out."""

    USER = "user"
    CLIENT = "client"


_KIND = typer.Argument(help="user or client.")
_NAME = typer.Argument(help="The user (its tokens' sub), or the client id.")
_CLIENT_ID = typer.Argument(help="A client id.")


@command
def list_(session: Session) -> None:
    """List the users and clients that are shut out, since when, and by whom.

    Example:
      lakesync access list
    """
    revoked = session.ask("GET", _path(session))["revoked"]
    if session.out.json_lines:
        for each in revoked:
            session.out.json(each)
        return
    rows = [
        (kind, each[kind], each["at"], each["by"])
        for each in revoked
        for kind in Kind
        if kind in each
    ]
    session.out.table(("kind", "name", "since", "by"), rows, title="Shut out.")


@command
def show(session: Session, *, client_id: Annotated[str, _CLIENT_ID]) -> None:
    """Show whose a client is, and whether it or its user is shut out.

    Example:
      lakesync access show phone-1
    """
    answer = session.ask("GET", f"{_path(session)}?client={quote(client_id, safe='')}")
    names = {("client", client_id), ("user", answer["user"])}
    shut = [each for each in answer["revoked"] for kind in Kind if (kind, each.get(kind)) in names]
    owner = answer["user"] or "nobody: whoever uses it first"
    lines = [f"user: {owner}"]
    lines += [f"shut out: {kind} {each[kind]}" for each in shut for kind in Kind if kind in each]
    session.out.answer(answer | {"revoked": shut}, "\n".join(lines))


@command
def revoke(session: Session, *, kind: Annotated[Kind, _KIND], name: Annotated[str, _NAME]) -> None:
    """Shut a user out with all clients, or one client; in force within a minute.

    A client is shut out under its id. Who may still hold its user's token (a phone that was stolen)
    is shut out by revoking the user, until the token has expired.

    Example:
      lakesync access revoke user auth0|5f7c
      lakesync access revoke client phone-1
    """
    session.ask("POST", _path(session), {"revoke": {kind.value: name}})
    session.out.answer({"revoked": {kind.value: name}}, f"shut out within a minute: {kind} {name}")


@command
def restore(session: Session, *, kind: Annotated[Kind, _KIND], name: Annotated[str, _NAME]) -> None:
    """Let a user or a client in again, within a minute.

    Example:
      lakesync access restore user auth0|5f7c
    """
    session.ask("POST", _path(session), {"restore": {kind.value: name}})
    session.out.answer({"restored": {kind.value: name}}, f"let in within a minute: {kind} {name}")


@command
def release(session: Session, *, client_id: Annotated[str, _CLIENT_ID]) -> None:
    """Take a client from its user: whoever uses it next has it.

    For users who come by another identity provider now, under another name.

    Example:
      lakesync access release phone-1
    """
    session.ask("POST", _path(session), {"release": {"client": client_id}})
    session.out.answer({"released": client_id}, f"released: {client_id}")


def _path(session: Session) -> str:
    return f"/admin/access/{session.connection.gateway}"
