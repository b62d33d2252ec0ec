"""Reports changes of sources' schemas: to the audit log, and as events on a bus of EventBridge.

A report that fails is logged, and the poll goes on: the connector's state has the change.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from lakesync.errors import AdapterFailed, LakeSyncError
from lakesync.gateway.audit import Who
from lakesync.ports import AuditOutcome
from lakesync.runtime import observe

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lakesync.connectors.source_schema import SchemaChange
    from lakesync.gateway.audit import Audit

OPERATION: Final = "sourceSchemaChanged"
"""The operation of the audit record."""
DETAIL_TYPE: Final = "Source schema changed"
"""Of the events, whose source is `SOURCE`."""
SOURCE: Final = "lakesync"
NO_BUS: Final = "none"
"""In place of a bus: there are no events."""
_ENTRIES_MAX: Final = 10
"""Events of one request; EventBridge's maximum."""


class SchemaReports:
    """Reports what changed.

    Args:
        audit: the audit log.
        bus: the event bus, or `NO_BUS`.
        events: gives the client of EventBridge.
    """

    def __init__(self, audit: Audit, bus: str, events: Callable[[], Any]) -> None:
        self._audit = audit
        self._bus = bus
        self._events = events

    def __call__(self, gateway: str, name: str, changes: Sequence[SchemaChange]) -> None:
        """Report what changed at the source of a connector."""
        for report in (self._record, self._put):
            try:
                report(gateway, name, changes)
            except LakeSyncError as error:
                observe.failure(error, gateway=gateway, connector=name)

    def _record(self, gateway: str, name: str, changes: Sequence[SchemaChange]) -> None:
        who = Who(f"connector:{name}", "connector")
        record = self._audit.begin(gateway, who, OPERATION, name, {})
        self._audit.end(record, AuditOutcome.DONE, {"changes": [*map(_shown, changes)]})

    def _put(self, gateway: str, name: str, changes: Sequence[SchemaChange]) -> None:
        if self._bus == NO_BUS:
            return
        entries = [
            {
                "EventBusName": self._bus,
                "Source": SOURCE,
                "DetailType": DETAIL_TYPE,
                "Detail": json.dumps({"gateway": gateway, "connector": name} | _shown(change)),
            }
            for change in changes
        ]
        for start in range(0, len(entries), _ENTRIES_MAX):
            if self._refused(entries[start : start + _ENTRIES_MAX]):
                raise AdapterFailed("EventBridge did not take events of a changed schema")

    def _refused(self, entries: Sequence[dict[str, str]]) -> int:
        """Put events; return how many the bus did not take."""
        try:
            return int(self._events().put_events(Entries=entries)["FailedEntryCount"])
        except Exception as exc:
            raise AdapterFailed(f"EventBridge was not reached: {type(exc).__name__}") from exc


def _shown(change: SchemaChange) -> dict[str, Any]:
    return {name: value for name, value in asdict(change).items() if name != "at_ms"}
