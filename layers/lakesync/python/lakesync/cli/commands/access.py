"""`lakesync access`: revoked users and clients of a gateway, and the user of each client."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import quote, urlencode

import typer

from lakesync.cli.existence import must_exist
from lakesync.cli.session import Session, command

if TYPE_CHECKING:
    from collections.abc import Iterator

LOOKED_AT_CLIENTS_MAX: Final = 10_000
"""Clients among which a revoked user is looked for: fifty requests. The gateway keeps the user of
each client, and no list of users."""


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
    must_exist(session, revoked)
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
    must_exist(session, answer["user"], answer["revoked"])
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

    It also holds for a name that nobody has used yet, and the answer says so, because the name may
    be misspelt: "known" is false, or null where there were too many clients to look through.

    Example:
      lakesync access revoke user auth0|5f7c
      lakesync access revoke client phone-1
    """
    must_exist(session)
    session.ask("POST", _path(session), {"revoke": {kind.value: name}})
    tell_revoked(session, kind, name)


@command
def restore(session: Session, *, kind: Annotated[Kind, _KIND], name: Annotated[str, _NAME]) -> None:
    """Restore the access of a revoked user or client, within a minute. Safe to repeat.

    Example:
      lakesync access restore user auth0|5f7c
    """
    listed = session.ask("GET", _path(session))["revoked"]
    must_exist(session, listed)
    was = any(each.get(kind.value) == name for each in listed)
    session.ask("POST", _path(session), {"restore": {kind.value: name}})
    sentence = f"restored within a minute: {kind} {name}"
    if not was:
        sentence = f"nothing to restore: {kind} {name} was not revoked; see lakesync access list"
    session.out.answer({"restored": {kind.value: name}, "wasRevoked": was}, sentence)


@command
def release(session: Session, *, client_id: Annotated[str, _CLIENT_ID]) -> None:
    """Release a client id from its user: the next user who uses it becomes its owner.

    Use it when a user has another name after a change of the identity provider. The previous user
    is refused within a minute.

    Example:
      lakesync access release phone-1
    """
    user = _user_of(session, client_id)
    must_exist(session, user)
    session.ask("POST", _path(session), {"release": {"client": client_id}})
    sentence = f"released: {client_id}, which was {user}'s"
    if user is None:
        sentence = f"nothing to release: the client {client_id} belonged to nobody"
    session.out.answer({"released": client_id, "user": user}, sentence)


def tell_revoked(session: Session, kind: Kind, name: str) -> None:
    """Print that a user or a client is revoked, and whether anybody of that name was ever seen."""
    known = _is_seen(session, kind, name)
    answer = {"revoked": {kind.value: name}, "known": known}
    session.out.answer(answer, f"revoked within a minute: {kind} {name}")
    gateway = session.connection.gateway
    if known is None:
        session.out.note(
            f"none of the first {LOOKED_AT_CLIENTS_MAX:,} clients of {gateway} is of the user "
            f"{name}; check the name"
        )
    elif not known:
        session.out.note(
            f"no {kind} {name} was ever seen at {gateway}: check the name, which is compared as it "
            f"is (lakesync clients list {gateway}); if it is right, it is refused when it comes"
        )


def _is_seen(session: Session, kind: Kind, name: str) -> bool | None:
    """Return whether a user or client was ever seen; None if there are too many to look through."""
    if kind is Kind.CLIENT:
        return _user_of(session, name) is not None
    for number, each in enumerate(clients_of(session)):
        if each["user"] == name:
            return True
        if number + 1 == LOOKED_AT_CLIENTS_MAX:
            return None
    return False


def _user_of(session: Session, client_id: str) -> str | None:
    """Return the user of a client; None if nobody has used it."""
    answer = session.ask("GET", f"{_path(session)}?client={quote(client_id, safe='')}")
    user: str | None = answer["user"]
    return user


def clients_of(session: Session) -> Iterator[dict[str, Any]]:
    """Yield the clients of the gateway that ever used it, page by page."""
    cursor: str | None = ""
    while cursor is not None:
        query = urlencode({"limit": "200"} | ({"cursor": cursor} if cursor else {}))
        page = session.ask("GET", f"/admin/clients/{session.connection.gateway}?{query}")
        yield from page["clients"]
        cursor = page.get("next")


def _path(session: Session) -> str:
    return f"/admin/access/{session.connection.gateway}"
