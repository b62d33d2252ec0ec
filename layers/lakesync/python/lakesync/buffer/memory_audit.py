"""The audit records of gateways, in one process."""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import TYPE_CHECKING

from lakesync.buffer.audit import bounds, owner_of
from lakesync.ports import AuditOutcome

if TYPE_CHECKING:
    from lakesync.ports import AuditQuery, AuditRecord


class MemoryAudit:
    """`lakesync.ports.AuditStore` in memory, for tests."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._records: dict[str, dict[str, AuditRecord]] = defaultdict(dict)

    def begin(self, record: AuditRecord, keep_until_s: int) -> None:
        """Write a record."""
        del keep_until_s  # a process does not live that long
        with self._lock:
            self._records[owner_of(record.gateway)].setdefault(record.id, record)

    def end(self, record: AuditRecord) -> None:
        """Write a record's outcome, unless it has one."""
        with self._lock:
            known = self._records[owner_of(record.gateway)]
            if record.id in known and known[record.id].outcome is AuditOutcome.STARTED:
                known[record.id] = record

    def records(self, gateway: str, query: AuditQuery) -> tuple[list[AuditRecord], str]:
        """Return records, the latest first."""
        low, high = bounds(query)
        with self._lock:
            known = sorted(self._records[owner_of(gateway)].items(), reverse=True)
        wanted = [
            record
            for name, record in known
            if low <= name <= high
            and name != query.below
            and query.user in {"", record.user}
            and query.operation in {"", record.operation}
        ]
        page = wanted[: query.limit]
        return page, page[-1].id if len(wanted) > len(page) else ""
