"""`lakesync restored`: prepare a table that was restored from a backup for use."""

from __future__ import annotations

import time
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from lakesync.cli.audited import audited
from lakesync.cli.faults import UsageFault
from lakesync.cli.session import Session, command
from lakesync.core.plural import plural

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
        typer.Option("--no-record", help="Keep no record, because the stack no longer exists."),
    ] = False,
) -> None:
    """Prepare a restored DynamoDB table for use: protect it, and begin a new epoch in each gateway.

    It enables point-in-time recovery, deletion protection and the stream, which a restore leaves
    off. Every cursor becomes void: clients read everything again, keep their unsent edits, and push
    again their writes that the table lost. Run it while no function writes to the table. Repeating
    it is safe, but makes clients read everything once more. Needs AWS credentials.
    docs/operations.md has the steps before and after. The change is in the record of the stack
    (lakesync audit --stack-wide), and each new epoch in the record of its gateway.

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
