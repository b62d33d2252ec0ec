"""`lakesync restored`: makes a table that was restored from a backup fit for use."""

from __future__ import annotations

import time
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from lakesync.cli.audited import audited
from lakesync.cli.faults import UsageFault
from lakesync.cli.output import plural
from lakesync.cli.session import Session, command

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from lakesync.buffer.dynamo import DynamoBuffer


@command
def restored(
    session: Session,
    *,
    table: Annotated[str, typer.Argument(help="The restored DynamoDB table.")],
    no_record: Annotated[
        bool,
        typer.Option("--no-record", help="The stack is gone, and with it who keeps the record."),
    ] = False,
) -> None:
    """Protect a restored table, and begin a new epoch in every gateway, before anybody uses it.

    Point-in-time recovery, deletion protection and the stream are switched on, which a restore
    leaves off. Every cursor becomes void: clients read everything anew, keep their unsent edits,
    and push once more what they wrote and the table no longer holds. Run it while no function
    writes to the table. Repeating it does no harm but that clients read everything once more.
    docs/operations.md has the steps before and after. The stack keeps the record of it, and each
    gateway one of its epoch: lakesync audit --stack-wide.

    Example:
      lakesync restored lakesync-prod-buffer-restored --stack lakesync-prod
    """
    from lakesync.cli.protection import protect
    from lakesync.ports.audit import STACK

    if not no_record and not session.aws.stack:
        raise UsageFault("name the stack, which keeps the record: --stack; or pass --no-record")
    buffer = session.aws.buffer(table)

    def recorded(operation: str, gateway: str) -> AbstractContextManager[None]:
        if no_record:
            return nullcontext()
        of = buffer.gateways() if gateway == STACK else [gateway]
        return audited(session, operation, table, partial(_epochs, buffer, of), gateway=gateway)

    with recorded("restoreBuffer", STACK):
        off = protect(session.aws.client("dynamodb"), table)
        sentence = f"switched on {', '.join(off)}" if off else "protected already"
        session.out.answer({"table": table, "switchedOn": off}, f"{table}: {sentence}")
        gateways = buffer.gateways()
        for gateway in gateways:
            with recorded("beginEpoch", gateway):
                _begin_epoch(session, buffer, gateway)
    session.out.note(
        f"{plural(len(gateways), 'gateway')} in {table}; to put it in use: "
        f"sam deploy --parameter-overrides BufferTableName={table}"
    )


def _begin_epoch(session: Session, buffer: DynamoBuffer, gateway: str) -> None:
    from lakesync.errors import GatewayDeleted
    from lakesync.maintenance.restore import begin_epoch

    try:
        epoch = begin_epoch(buffer, gateway, wall_clock=_now_ms)
    except GatewayDeleted:
        session.out.answer(
            {"gateway": gateway, "epoch": None, "deleted": True},
            f"{gateway}: is deleted and begins no epoch; go on with lakesync gateways delete",
        )
        return
    session.out.answer({"gateway": gateway, "epoch": epoch}, f"{gateway}: epoch {epoch}")


def _epochs(buffer: DynamoBuffer, gateways: list[str]) -> dict[str, str]:
    from lakesync.core.layout import MAIN_LANE
    from lakesync.ports import NO_HEAD

    return {name: buffer.heads(name).get(MAIN_LANE, NO_HEAD).epoch for name in gateways}


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
