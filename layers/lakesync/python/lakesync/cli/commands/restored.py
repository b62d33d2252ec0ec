"""`lakesync restored`: begins a new epoch after a buffer was restored from a backup."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from lakesync.cli.output import plural
from lakesync.cli.session import Session, command

if TYPE_CHECKING:
    from lakesync.ports import Buffer


@command
def restored(
    session: Session, *, table: Annotated[str, typer.Argument(help="The restored DynamoDB table.")]
) -> None:
    """Begin a new epoch in every gateway of a restored table, before anybody uses it.

    Every cursor becomes void: clients read everything anew, keep their unsent edits, and push once
    more what they wrote and the table no longer holds. Run it while no function writes to the
    table. Repeating it does no harm but that clients read everything once more.

    Example:
      lakesync restored lakesync-prod-buffer-restored
    """
    from lakesync.maintenance.restore import begin_epoch

    buffer = _buffer(session, table)
    gateways = buffer.gateways()
    for gateway in gateways:
        epoch = begin_epoch(buffer, gateway, wall_clock=_now_ms)
        session.out.answer({"gateway": gateway, "epoch": epoch}, f"{gateway}: epoch {epoch}")
    session.out.note(f"{plural(len(gateways), 'gateway')} in {table}")


def _buffer(session: Session, table: str) -> Buffer:
    from lakesync.buffer.caller import DynamoCaller
    from lakesync.buffer.dynamo import DynamoBuffer

    return DynamoBuffer(table, DynamoCaller(session.aws.region or "", session.aws.endpoint))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
