"""What clients and the gateway say to each other, free of any encoding."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lakesync.core.clock import Stamp
    from lakesync.core.delta import Delta
    from lakesync.core.rules import SyncRules
    from lakesync.errors import LakeSyncError


PAGE_BYTES_MAX: Final = 2_000_000
"""Deltas of one page as they are stored, unless one commit or one row alone is larger: what a
function and a client hold in memory, and less than Lambda answers."""
SUB_PROTOCOL: Final = "lakesync.v1"
"""What both sides of a WebSocket say that they speak."""
BEARER: Final = "bearer."
"""What precedes the token among the sub-protocols that a WebSocket offers."""
NO_CLAIMS: Final[Mapping[str, Any]] = MappingProxyType({})
SNAPSHOT: Final = "begin"
"""What asks for all rows as they are, for a cursor that the log no longer reaches back to."""


def log_behind(snapshot: str) -> Stamp:
    """Give the stamp behind which the log goes on after a snapshot, by `PullPage.snapshot`."""
    return int(snapshot.partition("|")[0], 16)


@dataclass(frozen=True, slots=True)
class RefusedDelta:
    """A delta that could not be read from the wire; its neighbours could."""

    index: int
    """Its place in the push."""
    error: LakeSyncError
    delta_id: str = ""
    """As the client named it; empty if it did not."""
    row: tuple[str, str] | None = None
    """The table and id of its row, if those could be read."""


@dataclass(frozen=True, slots=True)
class Push:
    """A client's deltas, as they came in."""

    client_id: str
    deltas: tuple[tuple[int, Delta], ...]
    """Each readable delta with its place in the push."""
    last_seen_hlc: Stamp = 0
    atomic: bool = False
    """One commit or none: our clients ask so for each local transaction."""
    unreadable: tuple[RefusedDelta, ...] = ()
    epoch: str | None = None
    """The epoch that the client has read; the push is refused if it is another's. None if it does
    not know, or has read nothing."""
    claims: Mapping[str, Any] = field(default_factory=lambda: NO_CLAIMS)
    """Those of the client's token, by which sync rules judge its writes."""
    own_cursor: bool = True
    """The client's cursor is moved by pages alone."""
    typed: bool = True
    """Values must fit the types of their columns; else those that do not are taken as they are."""
    trusted: bool = False
    """Sync rules do not judge its writes: a connector's, which an administrator set up. Never read
    from the wire."""


class OutcomeKind(Enum):
    """What became of a delta that was not plainly accepted."""

    DUPLICATE = "duplicate"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class DeltaOutcome:
    """The outcome of one delta that was not plainly accepted."""

    index: int
    delta_id: str
    kind: OutcomeKind
    error: LakeSyncError | None = None
    """Why it was refused; None for a duplicate."""


@dataclass(frozen=True, slots=True)
class PushReceipt:
    """The answer to a push. What it counts as accepted is durable."""

    server_hlc: Stamp
    """The gateway's latest commit; never a read cursor, but for followers."""
    accepted: int
    """Deltas whose effect is durable, duplicates too."""
    outcomes: tuple[DeltaOutcome, ...] = ()
    server_time_ms: int = 0
    """The gateway's wall clock, by which a client corrects its own."""


QUARANTINED_MAX: Final = 1_000_000_000
"""Edits that a client may say it has in quarantine."""


@dataclass(frozen=True, slots=True)
class Pull:
    """A client asks for what became visible after its cursor."""

    client_id: str
    since: Stamp = 0
    deltas_max: int = 100
    epoch: str = ""
    """The epoch of the page that gave the cursor; empty if the client does not know it."""
    snapshot: str = ""
    """`SNAPSHOT` to begin again from the rows as they are, some tables first if it names them
    (`lakesync.core.snapshot_order`); or `PullPage.snapshot` to go on with that, whatever ``since``
    is."""
    claims: Mapping[str, Any] = field(default_factory=lambda: NO_CLAIMS)
    """Those of the client's token, by which sync rules decide what it sees."""
    removes: bool = False
    """The client knows removals; to others a row that leaves their sight is deleted."""
    scope: str = ""
    """The scope of the page that gave the cursor; empty if the client does not know it."""
    own_cursor: bool = True
    """The client merges by stamps, and its cursor is moved by pages alone."""
    at_least: Stamp = 0
    """The last page ends here or later: a receipt's stamp; `STAMP_MAX` for the newest commit."""
    source: str = ""
    """The declared destination to read in place of the gateway; only ``snapshot`` goes on in it."""
    quarantined: int | None = None
    """How many of the client's edits were refused and wait for a decision; None if it does not say.
    It decides nothing: administrators are shown it."""

    rules: SyncRules | None = None
    """What decides in the place of the rules in force: never a client's word."""
    bytes_max: int = PAGE_BYTES_MAX
    """Bytes of deltas that the answer can carry, in the form in which they are stored."""


@dataclass(frozen=True, slots=True)
class Resync:
    """Tables that are read again from here on, because other rules or claims decide.

    What a client holds of them, and no page brings until there are no more, is gone.
    """

    tables: tuple[str, ...] = ()
    named: tuple[str, ...] | None = None
    """If not None, all other tables are read again too, apart from these."""
    tombstone_horizons: Mapping[str, Stamp] = field(default_factory=lambda: MappingProxyType({}))
    """By table: of deletions up to here the gateway may know nothing any more. What a client holds
    from up to here, and is not brought, may have been deleted."""

    omitted: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))
    """By table that is named, columns in lower case that are left out of its rows from here on, and
    of which nothing is kept; those of the other tables under the empty name."""

    def omitted_of(self, table: str) -> tuple[str, ...]:
        """Give the columns that are left out of a table that is read again."""
        return self.omitted.get(table if table in self.tables else "", ())

    def concerns(self, table: str) -> bool:
        """Tell whether a table is read again."""
        return table in self.tables or (self.named is not None and table not in self.named)


class Progress(NamedTuple):
    """How far a checkpoint was read: rows of all its tables, hidden and deleted ones too."""

    read: int
    """Those before where reading goes on."""
    total: int


@dataclass(frozen=True, slots=True)
class PullPage:
    """Whole commits in order, and the cursor behind them."""

    records: tuple[bytes, ...]
    """Wire-ready runs of deltas, one for each commit and shard; see `lakesync.wire.records`."""
    count: int
    """Deltas in ``records``."""
    cursor: Stamp
    """Pull from here next. A commit stamp, never comparable with a delta's stamp."""
    has_more: bool
    epoch: str = ""
    snapshot: str = ""
    """Not empty in a page of rows as they are, after which the log goes on: ask with it for the
    next page. The cursor of such a page only carries the gateway's time."""
    scope: str = ""
    """What of the rules and claims decided that which the client holds with this page; see
    `lakesync.core.scope`."""
    resync: Resync | None = None
    """Tables that are read again, this page first; None if none begins with it."""
    schema_version: int = 0
    """`Schemas.version` of the gateway; who met another one asks for the schemas again."""
    behind_ms: int = 0
    """How far the newest commit is ahead of where pages can end now."""
    first: Stamp = 0
    """The first commit of which the page holds anything; 0 if it holds nothing."""
    previous: Stamp | None = None
    """Of a broadcast: its reader sees nothing between here and ``first``. Who stands at or behind
    ``previous`` and before ``first`` may apply it; None in a page that was asked for."""

    progress: Progress | None = None
    """Of rows as they are, how far they were read; None where nobody knows how many there are."""

    @property
    def is_poke(self) -> bool:
        """Tell whether a broadcast says no more than that there is something to pull."""
        return self.previous is None

    def follows(self, cursor: Stamp) -> bool:
        """Tell whether a broadcast goes on exactly where its reader's cursor stands."""
        return self.previous is not None and self.previous <= cursor < self.first
