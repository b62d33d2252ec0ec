"""How a gateway's log is flushed: how often, and from how much on. Declared for each gateway.

A stack has one schedule, and one threshold from which a push asks for a flush. A gateway may wait
longer than the schedule, have another threshold, and give a table a budget from which it is flushed
before the others. Law D19: ``docs/spec/delivery.md``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

EVERY_S_MAX: Final = 3_600
"""How long a gateway may let its log wait: alarms and backpressure by age begin later than that."""
FLUSH_BYTES_MIN: Final = 16 * 1024
"""The least threshold or budget: a flush costs some calls, however little there is."""
FLUSH_BYTES_MAX: Final = 64 * 1024 * 1024
"""The largest threshold or budget: far below the bytes from which pushes are refused."""
PARQUET: Final = "parquet"
JSON: Final = "json"
FORMATS: Final = (PARQUET, JSON)
"""How objects of batches are written; JSON is larger, and people read it."""
BUDGETS_MAX: Final = 100
"""Tables with a budget of their own."""


@dataclass(frozen=True, slots=True)
class Flushing:
    """What a gateway declares of its flushes."""

    every_s: int = 0
    """How long commits may wait while they are few; 0: until the schedule's next run."""
    bytes: int = 0
    """From how many unflushed bytes on nothing waits; 0: the stack's threshold."""
    tables: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """By table, the unflushed bytes from which it is flushed before the others."""
    format: str = PARQUET
    """One of `FORMATS`, of the objects of batches."""

    def waits(self, age_ms: int, unflushed_bytes: int) -> bool:
        """Return whether a scheduled flush leaves the log as it is for now."""
        if self.bytes and unflushed_bytes >= self.bytes:
            return False
        return age_ms < self.every_s * 1000


BY_SCHEDULE: Final = Flushing()


def flushing_to_json(flushing: Flushing) -> dict[str, Any]:
    """Write it as plain JSON values, as it can be declared again."""
    return {
        "everyS": flushing.every_s,
        "bytes": flushing.bytes,
        "tables": dict(sorted(flushing.tables.items())),
        "flushFormat": flushing.format,
    }


def flushing_from_stored(body: Mapping[str, Any]) -> Flushing:
    """Read what `flushing_to_json` wrote, in any release."""
    tables = MappingProxyType(dict(body.get("tables", {})))
    form = body.get("flushFormat", PARQUET)
    return Flushing(body.get("everyS", 0), body.get("bytes", 0), tables, form)
