"""Audit records of changes that the command line makes with the caller's AWS credentials.

They are written as for changes by the API: before the change, with the outcome added afterwards.
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
"""The role that is recorded for changes by AWS credentials."""
LISTED_BYTES_MAX: Final = 1_024
"""The maximum size of a list of names in a state: a few such lists fit into a record."""


def audit_of(session: Session) -> tuple[Audit, Who]:
    """Return the audit of this stack, and the identity of the caller.

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
    """Record the change that the block makes; without the record, the block is not run.

    If the process is killed, the record stays `begun`: the outcome is not known.

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
    """Return a list of names for a state: their number, and the first names."""
    first, size = list[str](), 0
    for name in names:
        size += len(json.dumps(name, ensure_ascii=False).encode()) + 1
        if size > LISTED_BYTES_MAX:
            break
        first.append(name)
    return {"number": len(names), "first": first}


def _shown(shows: Callable[[], object]) -> object:
    """Return the state after a change, if it can be read: the outcome matters more."""
    from lakesync.gateway.audit import NOT_KNOWN

    try:
        return shows()
    except Exception:  # noqa: BLE001 - whatever it was, the record says that it is not known
        return NOT_KNOWN


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
