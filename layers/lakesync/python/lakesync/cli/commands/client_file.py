"""`lakesync client`: what can be done with a client's file on this machine."""

from __future__ import annotations

import contextlib
from pathlib import Path  # noqa: TC003 - typer reads it
from typing import Annotated

import typer

from lakesync.cli.faults import UsageFault
from lakesync.cli.session import Session, command
from lakesync.core.plural import plural


@command
def move(
    session: Session,
    *,
    file: Annotated[Path, typer.Argument(help="The client's file; close the app first.")],
    keep: Annotated[
        str, typer.Option(help="edits: push what waits to the new gateway; nothing: give it up.")
    ] = "edits",
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without this, only show it.")] = False,
) -> None:
    """Give a client's file to another gateway: the next one that it is opened with.

    A file belongs to the gateway that answered it first, and is refused by any other with
    ANOTHER_GATEWAY. Once it is moved, it reads everything of the new gateway, and rows that this
    one lacks go. Actions that have not ended become dead letters; conflicts go. Without --yes the
    command shows how many edits are concerned, and changes nothing.

    Example:
      lakesync client move app.db --keep edits --yes
    """
    from lakesync.client.recovery.rebind import checked_keep, edits_to_move, rebind
    from lakesync.client.storage.file import open_file

    kept = checked_keep(keep)
    client_file = open_file(file, _client_id(file))
    with contextlib.closing(client_file.database), client_file.database.transaction():
        number = rebind(client_file, kept) if yes else edits_to_move(client_file)
    edits = plural(number, "edit")
    done = {"edits": "kept", "nothing": "given up"}[kept]
    sentence = (
        f"{edits} {done}; the file takes the next gateway that it is opened with"
        if yes
        else f"{edits} would be {done}; nothing was changed: pass --yes"
    )
    session.out.answer({"file": str(file), "edits": number, "keep": kept, "moved": yes}, sentence)


def _client_id(file: Path) -> str:
    """Return whose a file is.

    Raises:
        UsageFault: it is no client's file.
    """
    import sqlite3

    try:
        uri = f"{file.absolute().as_uri()}?mode=ro"
        with contextlib.closing(sqlite3.connect(uri, uri=True)) as connection:
            (owner,) = connection.execute("SELECT client_id FROM _lakesync_sync").fetchone()
    except (sqlite3.Error, TypeError) as exc:
        raise UsageFault(
            f"{file} is no client's file, or it is encrypted or damaged ({exc}); an app moves an "
            "encrypted one with client.rebind()"
        ) from exc
    return str(owner)
