"""`lakesync clients`: who uses a gateway, who is connected and who is behind."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlencode

import typer

from lakesync.cli.output import plural
from lakesync.cli.session import Session, command

if TYPE_CHECKING:
    from collections.abc import Iterator

_GATEWAY = typer.Argument(help="The gateway's id.")
_CLIENT = typer.Argument(help="The client id.")


@command
def list_(
    session: Session,
    *,
    name: Annotated[str, _GATEWAY],
    connected: Annotated[
        bool, typer.Option("--connected", help="Only those that keep a WebSocket.")
    ] = False,
    limit: Annotated[int, typer.Option(help="Show at most this many.", min=1)] = 1_000,
) -> None:
    """List the clients that ever came: whose each is, its connections, how far it is behind.

    A client is noted as it pulls, at most every quarter of an hour: so one that reads on and on may
    be shown that far behind, and one that is further behind is. Quarantined are edits that were
    refused and wait for a decision, as the client says.

    Example:
      lakesync clients list acme --connected
    """
    session.connection = replace(session.place, gateway=name)
    wanted = (each for each in _clients(session) if each["connections"] or not connected)
    listed = list(islice(wanted, limit))
    if session.out.json_lines:
        for each in listed:
            session.out.json(each)
        return
    rows = [
        (
            each["client"], each["user"], len(each["connections"]),
            max((one["openedAt"] for one in each["connections"]), default=None),
            None if each["behindMs"] is None else f"{each['behindMs'] / 1000:,.1f} s",
            each["quarantined"] or None,
            each["notedAt"],
            "shut out" if each["revoked"] else None,
        )
        for each in listed
    ]  # fmt: skip
    columns = ("client", "user", "connections", "since", "behind", "quarantined", "noted", "access")
    session.out.table(columns, rows, empty="no client came yet, as far as was asked for")


@command
def disconnect(
    session: Session, *, name: Annotated[str, _GATEWAY], client_id: Annotated[str, _CLIENT]
) -> None:
    """Close a client's WebSockets. It may connect again: to keep it out, revoke it.

    Example:
      lakesync clients disconnect acme phone-1
    """
    session.connection = replace(session.place, gateway=name)
    body = {"disconnect": {"client": client_id}}
    answer = session.ask("POST", f"/admin/clients/{name}", body)
    session.out.answer(answer, f"closed: {plural(answer['disconnected'], 'connection')}")


@command
def revoke(
    session: Session, *, name: Annotated[str, _GATEWAY], client_id: Annotated[str, _CLIENT]
) -> None:
    """Shut a client out within a minute, as `lakesync access revoke client` does.

    Its WebSockets are closed; `lakesync access restore client` lets it in again.

    Example:
      lakesync clients revoke acme phone-1
    """
    session.connection = replace(session.place, gateway=name)
    session.ask("POST", f"/admin/access/{name}", {"revoke": {"client": client_id}})
    session.out.answer({"revoked": client_id}, f"shut out within a minute: client {client_id}")


def _clients(session: Session) -> Iterator[dict[str, Any]]:
    cursor: str | None = ""
    while cursor is not None:
        query = urlencode({"limit": "200"} | ({"cursor": cursor} if cursor else {}))
        page = session.ask("GET", f"/admin/clients/{session.connection.gateway}?{query}")
        yield from page["clients"]
        cursor = page.get("next")
