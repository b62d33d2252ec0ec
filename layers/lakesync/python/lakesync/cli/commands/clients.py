"""`lakesync clients`: the clients of a gateway, their connections and their lag."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Annotated

import typer

from lakesync.cli.commands.access import Kind, clients_of, tell_revoked
from lakesync.cli.existence import must_exist
from lakesync.cli.session import Session, command
from lakesync.core.plural import plural

_GATEWAY = typer.Argument(help="The gateway's id.")
_CLIENT = typer.Argument(help="The client id.")


@command
def list_(
    session: Session,
    *,
    name: Annotated[str, _GATEWAY],
    connected: Annotated[
        bool, typer.Option("--connected", help="Show only clients with an open WebSocket.")
    ] = False,
    limit: Annotated[int, typer.Option(help="Show at most this many.", min=1)] = 1_000,
) -> None:
    """List all clients that ever used the gateway: user, connections, lag, quarantined edits.

    The position of a client is noted when it pulls, at most every 15 minutes: a client that reads
    steadily may be shown up to that far behind. "quarantined" is the number of refused edits that
    wait for a decision at the client, as it reports them. An operator's token suffices.

    Example:
      lakesync clients list acme --connected
    """
    session.connection = replace(session.place, gateway=name)
    must_exist(session)
    wanted = (each for each in clients_of(session) if each["connections"] or not connected)
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
            "revoked" if each["revoked"] else None,
        )
        for each in listed
    ]  # fmt: skip
    columns = ("client", "user", "connections", "since", "behind", "quarantined", "noted", "access")
    session.out.table(columns, rows, empty="no client matches")


@command
def disconnect(
    session: Session, *, name: Annotated[str, _GATEWAY], client_id: Annotated[str, _CLIENT]
) -> None:
    """Close a client's WebSockets. It may connect again; to prevent that, revoke it.

    Example:
      lakesync clients disconnect acme phone-1
    """
    session.connection = replace(session.place, gateway=name)
    must_exist(session)
    body = {"disconnect": {"client": client_id}}
    answer = session.ask("POST", f"/admin/clients/{name}", body)
    session.out.answer(answer, f"closed: {plural(answer['disconnected'], 'connection')}")


@command
def revoke(
    session: Session, *, name: Annotated[str, _GATEWAY], client_id: Annotated[str, _CLIENT]
) -> None:
    """Revoke a client's access within a minute, as `lakesync access revoke client` does.

    Its WebSockets are closed. `lakesync access restore client` restores its access.

    Example:
      lakesync clients revoke acme phone-1
    """
    session.connection = replace(session.place, gateway=name)
    must_exist(session)
    session.ask("POST", f"/admin/access/{name}", {"revoke": {"client": client_id}})
    tell_revoked(session, Kind.CLIENT, client_id)
