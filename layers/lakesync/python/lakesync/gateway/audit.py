"""Changes by administrators: who, when, what, the state before and after, and the outcome.

Rules of this module
    1. A record is written before its change is made; if it cannot be written, nothing is changed.
    2. Its outcome is written after the change. If that write is lost, the record says `begun`.
    3. A request is one record; the same request again is another.
    4. A state contains only what an administrator may read: never a secret.

Laws J1-J3: ``docs/spec/audit.md``.
"""

from __future__ import annotations

import json
from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lakesync.core.wording import utc_text
from lakesync.ports import AuditOutcome, AuditRecord
from lakesync.ports.access import id_of_time

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.ports import AuditQuery, AuditStore, WallClock

AUDIT_DAYS: Final = 400
"""How long a record is kept: a year, and another month in which it may be asked for."""
STATE_BYTES_MAX: Final = 4_096
"""The largest state that is stored in a record; a larger one is replaced by its digest and size."""
TARGET_CHARACTERS_MAX: Final = 300
"""The part of a target's name that is stored: longer than any name."""
_DAY_S: Final = 86_400
NOT_KNOWN: Final = "the state could not be read"


class Who(NamedTuple):
    """The user who requests a change."""

    user: str
    role: str
    request: str = ""
    """The request's id."""


class Audit:
    """Writes and reads the records of administrative changes.

    Args:
        store: the store of the records.
        wall_clock: the time.
        token: gives unique names.
    """

    def __init__(
        self, store: AuditStore, *, wall_clock: WallClock, token: Callable[[], str]
    ) -> None:
        self._store = store
        self._wall_clock = wall_clock
        self._token = token

    def begin(
        self, gateway: str, who: Who, operation: str, target: str, before: object
    ) -> AuditRecord:
        """Write that a change is about to be made.

        Raises:
            lakesync.errors.Unavailable: it was not written: make no change.
        """
        now_ms = self._wall_clock()
        record = AuditRecord(
            gateway,
            f"{id_of_time(now_ms)}-{self._token()}",
            now_ms,
            who.user,
            who.role,
            operation,
            _text(target[:TARGET_CHARACTERS_MAX]),
            who.request,
            stated(before),
        )
        self._store.begin(record, now_ms // 1000 + AUDIT_DAYS * _DAY_S)
        return record

    def end(
        self, record: AuditRecord, outcome: AuditOutcome, after: object, code: str = ""
    ) -> None:
        """Write the outcome of a change.

        Raises:
            lakesync.errors.Unavailable: it is not known whether that was written.
        """
        ended = replace(
            record, outcome=outcome, after=stated(after), code=code, ended_ms=self._wall_clock()
        )
        self._store.end(ended)

    def records(self, gateway: str, query: AuditQuery) -> tuple[list[AuditRecord], str]:
        """Get records, the latest first, and the id below which to continue, or "" at the end."""
        return self._store.records(gateway, query)


def record_to_json(record: AuditRecord) -> dict[str, Any]:
    """Return a record as it is shown."""
    shown: dict[str, Any] = {
        "id": record.id,
        "at": utc_text(record.at_ms, "milliseconds"),
        "who": record.user,
        "role": record.role,
        "operation": record.operation,
        "target": record.target,
        "outcome": record.outcome.value,
        "requestId": record.request,
        "before": json.loads(record.before),
    }
    if record.outcome is AuditOutcome.STARTED:
        return shown
    shown |= {
        "after": json.loads(record.after),
        "endedAt": utc_text(record.ended_ms, "milliseconds"),
    }
    return shown | ({"code": record.code} if record.code else {})


def stated(state: object) -> str:
    """Return a state as JSON text; for a large one, its digest and size."""
    text = _text(json.dumps(state, ensure_ascii=False, sort_keys=True, separators=(",", ":")))
    encoded = text.encode()
    if len(encoded) <= STATE_BYTES_MAX:
        return text
    return json.dumps({"sha256": sha256(encoded).hexdigest(), "bytes": len(encoded)})


def _text(text: str) -> str:
    """Return text that can be stored: JSON can contain halves of surrogate pairs."""
    return text.encode("utf-8", "replace").decode()
