"""Capture's state in the connector's storage: the slot's name, and how each table is read.

A table is read whole once, as of one time, its *baseline*. All later changes from the feed have
later times, so they win over what was read. A table with a new baseline is read again.

Rules of this module
    1. It is written before the cursor that depends on it is saved; writing it again changes
       nothing.
    2. A table is read after every transaction that was open when its baseline was set has ended. So
       the read sees all changes that the feed had returned until then, even those that were not
       visible yet.

Law N13: ``docs/spec/connectors.md``.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lakesync.connectors.storage import Storage

CAPTURE: Final = "capture"
"""Its place in the storage."""


@dataclass
class Baseline:
    """The time as of which a table is read whole, and the table's definition then."""

    us: int
    """The time of its rows."""
    xid: str
    """What must have ended before it is read: transactions with a lower number (PostgreSQL), or the
    log's up to this position (MySQL)."""
    table_id: int
    """The source's number for the table; 0 if it has none."""
    types: dict[str, str]
    """`Plan.altered_by`: with another column, or another type, the table is read again."""
    key: list[str]
    parts: str = ""
    """Of a partitioned table, which partitions it had, and what was stored in each; a change of
    them is not in the log."""


@dataclass
class Kept:
    """The stored state."""

    slot: str = ""
    """The slot that this connector created, or is about to create; empty if the source has none."""
    made: bool = False
    """Whether the connector created the publication too."""
    floor_us: int = 0
    """All changes from now on have later times."""
    again: str = ""
    """The reason why all tables were last read again."""
    tables: dict[str, Baseline] = field(default_factory=dict)

    @property
    def all(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self)

    def mark(
        self,
        table: str,
        us: int,
        xid: str,
        table_id: int,
        types: Mapping[str, str],
        key: Sequence[str],
        parts: str = "",
    ) -> None:
        """Schedule a table to be read whole, as of a time."""
        self.tables[table] = Baseline(us, xid, table_id, dict(types), list(key), parts)


def kept_in(storage: Storage) -> Kept:
    """Read the stored state; empty at first."""
    stored = storage.read(CAPTURE) or {}
    tables = {name: Baseline(**mark) for name, mark in stored.pop("tables", {}).items()}
    return Kept(**stored, tables=tables)


def keep(storage: Storage, kept: Kept) -> None:
    """Store the state. Safe to repeat."""
    storage.write(kept.all, CAPTURE)
