"""`lakesync access`: revoked users and clients of a gateway, and the user of each client."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated
from urllib.parse import quote

import typer

from lakesync.cli.session import Session, command


class Kind(StrEnum):
    """What can be revoked."""

    USER = "user"
    CLIENT = "client"


_KIND = typer.Argument(help="user or client.")
_NAME = typer.Argument(help="The user (its tokens' sub), or the client id.")
_CLIENT_ID = typer.Argument(help="A client id.")


@command
def list_(session: Session) -> None:
    """List the revoked users and clients: since when, and by whom.

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
    session.out.table(("kind", "name", "since", "by"), rows, title="Revoked.")


@command
def show(session: Session, *, client_id: Annotated[str, _CLIENT_ID]) -> None:
    """Show the user of a client, and whether the client or its user is revoked.

    Example:
      lakesync access show phone-1
    """
    answer = session.ask("GET", f"{_path(session)}?client={quote(client_id, safe='')}")
    names = {("client", client_id), ("user", answer["user"])}
    known = [each for each in answer["revoked"] for kind in Kind if (kind, each.get(kind)) in names]
    owner = answer["user"] or "nobody yet: the first user who uses it"
    lines = [f"user: {owner}"]
    lines += [f"revoked: {kind} {each[kind]}" for each in known for kind in Kind if kind in each]
    session.out.answer(answer | {"revoked": known}, "\n".join(lines))


@command
def revoke(session: Session, *, kind: Annotated[Kind, _KIND], name: Annotated[str, _NAME]) -> None:
    """Revoke the access of a user with all of its clients, or of one client, within a minute.

    A revoked client is refused under its id only: a stolen phone that holds its user's token may
    return under another id. To prevent that, revoke the user until the token has expired. Safe to
    repeat.

    Example:
      lakesync access revoke user auth0|5f7c
      lakesync access revoke client phone-1
    """
    session.ask("POST", _path(session), {"revoke": {kind.value: name}})
    session.out.answer({"revoked": {kind.value: name}}, f"revoked within a minute: {kind} {name}")


@command
def restore(session: Session, *, kind: Annotated[Kind, _KIND], name: Annotated[str, _NAME]) -> None:
    """Restore the access of a revoked user or client, within a minute. Safe to repeat.

    Example:
      lakesync access restore user auth0|5f7c
    """
    session.ask("POST", _path(session), {"restore": {kind.value: name}})
    session.out.answer({"restored": {kind.value: name}}, f"restored within a minute: {kind} {name}")


@command
def release(session: Session, *, client_id: Annotated[str, _CLIENT_ID]) -> None:
    """Release a client id from its user: the next user who uses it becomes its owner.

    Use it when a user has another name after a change of the identity provider. The previous user
    is refused within a minute.

    Example:
      lakesync access release phone-1
    """
    session.ask("POST", _path(session), {"release": {"client": client_id}})
    session.out.answer({"released": client_id}, f"released: {client_id}")


def _path(session: Session) -> str:
    return f"/admin/access/{session.connection.gateway}"
