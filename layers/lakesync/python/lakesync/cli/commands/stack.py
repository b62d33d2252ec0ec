"""`lakesync stack`: what is done to a deployment as a whole."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from lakesync.cli.faults import UsageFault
from lakesync.cli.session import Session, command

if TYPE_CHECKING:
    from lakesync.cli.output import Output
    from lakesync.cli.stack_removal import Inventory


@command
def delete(
    session: Session,
    *,
    name: Annotated[str, typer.Argument(help="The CloudFormation stack's name.")],
    yes: Annotated[
        str,
        typer.Option("--yes", metavar="NAME", help="Confirm by the stack's name: delete it."),
    ] = "",
) -> None:
    """Delete a whole stack for good: buckets with all versions, secrets, lake tables, everything.

    Without --yes it only lists what would go and what stays. A stack whose data are protected
    (Stage=prod, termination protection, deletion protection of a table) is refused. Tables of
    another stack under the same prefix are kept. Safe to repeat after an interruption. Needs AWS
    credentials with the rights to delete all that is listed.

    Example:
      lakesync stack delete trial
      lakesync stack delete trial --yes trial
    """
    from lakesync.cli.aws import Aws
    from lakesync.cli.stack_removal import StackRemoval

    if yes and yes != name:
        raise UsageFault(f"--yes confirms {yes!r}, and the stack is {name!r}: pass --yes {name}")
    removal = StackRemoval(Aws(replace(session.place, stack=name)))
    removal.must_be_unprotected()
    inventory = removal.inventory()
    _show(session.out, name, inventory, deleted=bool(yes))
    if not yes:
        session.out.note(f"nothing was deleted: to delete it, repeat this with --yes {name}")
        return
    removal.remove(session.out.note)
    session.out.note(f"the stack {name} is deleted")


def _show(out: Output, name: str, inventory: Inventory, *, deleted: bool) -> None:
    answer = {
        "stack": name,
        "delete": deleted,
        "resources": inventory.resources,
        "buckets": inventory.buckets,
        "secrets": inventory.secrets,
        "tables": inventory.tables,
        "logGroups": inventory.log_groups,
        "kept": inventory.kept,
    }
    out.answer(answer, "\n".join(inventory.lines()))
