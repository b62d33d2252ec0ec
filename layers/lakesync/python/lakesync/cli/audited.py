"""The record of a change that the command line makes itself, with the caller's own AWS credentials.

It is written as for changes by the API: before the change, and its outcome behind it.
"""

from __future__ import annotations

import json
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from lakesync.errors import InternalError, LakeSyncError
from lakesync.ports import AuditOutcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from lakesync.cli.session import Session
    from lakesync.gateway.audit import Audit, Who

ROLE: Final = "iam"
"""Whose right a change by AWS credentials is."""
LISTED_BYTES_MAX: Final = 1_024
"""How much of a list of names stands in a state: a few of these fit into a record."""


def audit_of(session: Session) -> tuple[Audit, Who]:
    """Return what records changes in this stack, and who makes them.

    Raises:
        UsageFault: the stack keeps no records: it is of an older release.
    """
    from lakesync.buffer.audit import DynamoAudit
    from lakesync.gateway.audit import Audit, Who

    aws = session.aws
    store = DynamoAudit(aws.output("AuditTable"), aws.dynamo())
    arn: str = aws.client("sts").get_caller_identity()["Arn"]
    audit = Audit(store, wall_clock=_now_ms, token=lambda: uuid4().hex)
    return audit, Who(arn, ROLE)


@contextmanager
def audited(
    session: Session,
    operation: str,
    target: str = "",
    shows: Callable[[], object] = lambda: None,
    *,
    gateway: str = "",
) -> Iterator[None]:
    """Record what is changed in the block. Where that cannot be written, the block is not begun.

    If it is interrupted, the record says `begun`: nobody knows how far it came.

    Args:
        session: of the command.
        operation: its name.
        target: what of the gateway it changes; never the id of a row.
        shows: gives the state that is changed.
        gateway: whose record it is, if not the command's; or `lakesync.ports.audit.STACK`.
    """
    audit, who = audit_of(session)
    owner = gateway or session.connection.gateway
    record = audit.begin(owner, who, operation, target, shows())
    try:
        yield
    except Exception as error:
        code = error.code if isinstance(error, LakeSyncError) else InternalError.code
        audit.end(record, AuditOutcome.FAILED, _shown(shows), code)
        raise
    audit.end(record, AuditOutcome.DONE, _shown(shows))


def listed(names: Sequence[str]) -> dict[str, object]:
    """Return a list of names as a state shows it: how many there are, and the first of them."""
    first, size = list[str](), 0
    for name in names:
        size += len(json.dumps(name, ensure_ascii=False).encode()) + 1
        if size > LISTED_BYTES_MAX:
            break
        first.append(name)
    return {"number": len(names), "first": first}


def _shown(shows: Callable[[], object]) -> object:
    """Return the state behind a change, whose outcome is worth more than it."""
    from lakesync.gateway.audit import NOT_KNOWN

    try:
        return shows()
    except Exception:  # noqa: BLE001 - whatever it was, the record says that it is not known
        return NOT_KNOWN


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
