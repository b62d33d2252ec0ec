"""A connector's state: what one poll leaves for the next, as JSON in one item."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from lakesync.errors import ValidationFailed

if TYPE_CHECKING:
    from lakesync.errors import LakeSyncError

CURSOR_BYTES_MAX: Final = 2_048
"""A connector's cursor in one table; all cursors are in one item with the other state."""


@dataclass
class Fault:
    """What went wrong last."""

    code: str
    message: str
    at_ms: int
    table: str = ""


@dataclass
class PollState:
    """How far a connector is."""

    poll_ms: int = 0
    """When the unfinished poll began; 0 without one. It survives a crash."""
    finished: list[str] = field(default_factory=list)
    """The tables that this poll is done with: all was read, or it continues without them."""
    begun: dict[str, int] = field(default_factory=dict)
    """By table, when the poll began that left a page of it open and continued without it: the table
    is read with that time until its end."""
    cursors: dict[str, str] = field(default_factory=dict)
    deleted: dict[str, int] = field(default_factory=dict)
    """By table, the latest poll that found deletions by comparing; see `deletions`."""
    rows: int = 0
    """Rows that were pushed since the beginning, deletions included."""
    dead_letters: int = 0
    polls: int = 0
    """Polls that came to their end."""
    polled_ms: int = 0
    """When the last of those began: everything of before is here."""
    fault: Fault | None = None
    """None once a whole poll came to its end without one."""
    source: dict[str, str | int] = field(default_factory=dict)
    """What the source said last of itself: `SourcePage.report`."""
    wait_until_ms: int = 0
    """Neither the source nor the gateway is asked before."""
    asked_s: int = 0
    """The pause that a table asked for in the unfinished poll; 0 if none did."""
    failures: int = 0
    """Consecutive pauses without progress."""
    job_ms: int = 0
    """When a job was last requested to read large tables; 0 if none was in this poll."""
    job_moved: bool = False
    """Whether that job brought something."""

    looked_ms: int = 0
    """When the source last told its columns."""
    schema_changes: list[dict[str, Any]] = field(default_factory=list)
    """The latest changes of the source's schema: `lakesync.connectors.source_schema`."""

    def begins(self, source: str) -> int:
        """Return when the poll began as of which a table is read."""
        return self.begun.get(source, self.poll_ms)

    def to_json(self) -> bytes:
        """Write it."""
        return json.dumps(asdict(self), separators=(",", ":"), ensure_ascii=False).encode()

    def note(self, error: LakeSyncError, now_ms: int, table: str = "") -> None:
        """Note what went wrong."""
        self.fault = Fault(error.code, error.message[:1_000], now_ms, table)


def state_from(body: bytes) -> PollState:
    """Read what `PollState.to_json` wrote; empty for a connector that was never polled."""
    if not body:
        return PollState()
    stored: dict[str, Any] = json.loads(body)
    fault = stored.pop("fault", None)
    known = {name: stored[name] for name in PollState.__dataclass_fields__ if name in stored}
    return PollState(**known, fault=Fault(**fault) if fault else None)


def check_cursor(cursor: str) -> str:
    """Return a cursor if it can be stored.

    Raises:
        ValidationFailed: it is larger than `CURSOR_BYTES_MAX`.
    """
    if len(cursor.encode()) > CURSOR_BYTES_MAX:
        raise ValidationFailed(
            f"a connector's cursor may have {CURSOR_BYTES_MAX} bytes; keep what is larger in its "
            "storage",
            field="cursor",
        )
    return cursor
