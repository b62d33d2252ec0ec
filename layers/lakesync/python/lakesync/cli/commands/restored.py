"""`lakesync restored`: makes a table that was restored from a backup fit for use."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from lakesync.cli.output import plural
from lakesync.cli.session import Session, command


@command
def restored(
    session: Session, *, table: Annotated[str, typer.Argument(help="The restored DynamoDB table.")]
) -> None:
    """Protect a restored table, and begin a new epoch in every gateway, before anybody uses it.

    Point-in-time recovery, deletion protection and the stream are switched on, which a restore
    leaves off. Every cursor becomes void: clients read everything anew, keep their unsent edits,
    and push once more what they wrote and the table no longer holds. Run it while no function
    writes to the table. Repeating it does no harm but that clients read everything once more.
    docs/operations.md has the steps before and after.

    Example:
      lakesync restored lakesync-prod-buffer-restored
    """
    from lakesync.cli.protection import protect
    from lakesync.errors import GatewayDeleted
    from lakesync.maintenance.restore import begin_epoch

    off = protect(session.aws.client("dynamodb"), table)
    sentence = f"{table}: switched on {', '.join(off)}" if off else f"{table}: protected already"
    session.out.answer({"table": table, "switchedOn": off}, sentence)
    buffer = session.aws.buffer(table)
    gateways = buffer.gateways()
    for gateway in gateways:
        try:
            epoch = begin_epoch(buffer, gateway, wall_clock=_now_ms)
        except GatewayDeleted:
            session.out.answer(
                {"gateway": gateway, "epoch": None, "deleted": True},
                f"{gateway}: is deleted and begins no epoch; go on with lakesync gateways delete",
            )
            continue
        session.out.answer({"gateway": gateway, "epoch": epoch}, f"{gateway}: epoch {epoch}")
    session.out.note(
        f"{plural(len(gateways), 'gateway')} in {table}; to put it in use: "
        f"sam deploy --parameter-overrides BufferTableName={table}"
    )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
