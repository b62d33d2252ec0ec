"""One reading of the log, from a position to where it ended when the reading began."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lakesync.connectors.sql.capture.gathering import Gathering

if TYPE_CHECKING:
    from lakesync.connectors.sql.binlog.log import Position
    from lakesync.connectors.sql.binlog.stream import Stream


@dataclass
class Reading:
    """One reading of the log, page by page."""

    position: Position
    until: tuple[str, int]
    server: str
    poll_ms: int
    back: tuple[int, ...] = ()
    """The place up to which the log is read for a second time."""
    stream: Stream | None = None
    gathering: Gathering = field(default_factory=lambda: Gathering(iter(())))
    expected: str = ""
    """The cursor with which its next page will be requested."""
    size: int = 0
    """Bytes of the log that were read for this page."""
