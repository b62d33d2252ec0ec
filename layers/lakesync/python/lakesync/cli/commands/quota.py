"""`lakesync quota`: how much a gateway may push in a second. It needs AWS credentials."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from lakesync.cli.existence import must_exist_in_stack
from lakesync.cli.faults import UsageFault
from lakesync.cli.session import Session, command
from lakesync.ports import Quota

if TYPE_CHECKING:
    from lakesync.ports import QuotaStore

_WORDS = "; 0 for no limit."


@command
def show(session: Session) -> None:
    """Show the gateway's quota; limits that are not set follow the stack's parameters.

    Example:
      lakesync quota show --gateway acme
    """
    quota = _store(session).quota(session.connection.gateway)
    must_exist_in_stack(session, quota != Quota())
    _tell(session, quota)


@command
def set_(
    session: Session,
    *,
    pushes: Annotated[int | None, typer.Option(min=0, help=f"Pushes a second{_WORDS}")] = None,
    deltas: Annotated[int | None, typer.Option(min=0, help=f"Deltas a second{_WORDS}")] = None,
    size: Annotated[
        int | None, typer.Option("--bytes", min=0, help=f"Bytes a second{_WORDS}")
    ] = None,
) -> None:
    """Set the gateway's quota; limits that are not given follow the stack's parameters.

    Example:
      lakesync quota set --gateway acme --pushes 1000 --bytes 50000000
    """
    quota = Quota(pushes, deltas, size)
    if quota == Quota():
        raise UsageFault("specify how much: --pushes, --deltas or --bytes; `quota reset` undoes it")
    _set(session, quota)


@command
def reset(session: Session) -> None:
    """Remove the gateway's quota, so that the stack's parameters apply again. Safe to repeat.

    Example:
      lakesync quota reset --gateway acme
    """
    must_exist_in_stack(session)
    _set(session, Quota())


def _set(session: Session, quota: Quota) -> None:
    from lakesync.cli.audited import audited

    store, gateway = _store(session), session.connection.gateway
    with audited(session, "setQuota", shows=lambda: store.quota(gateway)._asdict()):
        store.set_quota(gateway, quota)
    _tell(session, quota)


def _store(session: Session) -> QuotaStore:
    from lakesync.buffer.quota import DynamoQuotas

    return DynamoQuotas(session.aws.output("BufferTable"), session.aws.dynamo())


def _tell(session: Session, quota: Quota) -> None:
    lines = [
        f"{name} a second: {'stack default' if limit is None else limit or 'no limit'}"
        for name, limit in zip(Quota._fields, quota, strict=True)
    ]
    session.out.answer({"gateway": session.connection.gateway} | quota._asdict(), "\n".join(lines))
