"""The stored state of one follower, and its stored form."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from lakesync.core.stored import WRITES, check_format, known

if TYPE_CHECKING:
    from lakesync.core.clock import Stamp


class Position(NamedTuple):
    """Where a page begins."""

    since: Stamp = 0
    """The page reads the log after this commit."""
    snapshot: str = ""
    """If not empty, it reads rows as they are: `lakesync.core.messages.Pull.snapshot`."""

    def is_behind(self, other: Position) -> bool:
        """Get whether this position is before the other; rows as they are come before the log."""
        if self.snapshot or other.snapshot:
            return bool(self.snapshot) and self != other
        return self.since < other.since


START: Final = Position()


_LISTS: Final = ("replaced", "tables", "sent_tables", "page_tables")


class Resend(NamedTuple):
    """A row that is sent as it is, whatever the log says."""

    table: str
    row_id: str
    not_before_ms: int = 0
    """An edit of it is too new by the gateway's clock, and is accepted from then on."""
    proofs: int = 1
    """How many proven pages must still contain it."""
    is_sent: bool = False
    """The last page contained it."""


@dataclass(frozen=True, slots=True)
class Follower:
    """The stored state of one follower."""

    cursor: Stamp = 0
    """The cursor of its last request."""
    proven: Position = START
    """It has all rows and changes before this position that it may see."""
    ahead: Position = START
    """Where new pages begin; what lies between `proven` and this is only assumed to have arrived.
    """
    page_from: Position = START
    """Where the last page began."""
    page_until: Position = START
    page_cursor: Stamp = 0
    page_has_more: bool = False
    is_pending: bool = False
    """The last page contained something, and is not proven."""
    deliveries: int = 0
    """Pages from `ahead` on that were followed by a push."""
    lost: int = 0
    """How often the last page had no effect."""
    given_until: Stamp = 0
    """The furthest in the log that any page took it."""
    again_until: Stamp = 0
    """Up to here in the log, it may hold what it is sent."""
    rows_again: bool = False
    """It may hold rows of the snapshot that it is sent."""
    holds_rows: bool = False
    """It has come with a cursor, so it may hold rows."""
    holds_own: bool = False
    """It may hold its own edits of what it is sent."""
    by_receipt: bool = False
    """Its last request had a receipt's cursor: its earlier pushes are no longer in its queue."""
    begins_again: bool = False
    """Its next page begins with everything again."""
    scope: str = ""
    """The scope of its last page."""
    policy: str = ""
    """The rules that decided it and the token claims that they name, as JSON."""
    replaced: tuple[str, ...] = ()
    """Earlier policies under which it may have received rows up to `again_until`."""
    resend: tuple[Resend, ...] = ()
    tables: tuple[str, ...] = ()
    """Tables of pages that it has applied."""
    sent_tables: tuple[str, ...] = ()
    """Tables of pages that it may have applied, and of none that it has."""
    page_tables: tuple[str, ...] = ()
    """The tables of the last page."""

    @property
    def known_tables(self) -> frozenset[str]:
        """The tables of which it may hold rows."""
        return frozenset((*self.tables, *self.sent_tables))


def pack(follower: Follower) -> bytes:
    """Return the stored state of a follower."""
    body = {"format": WRITES} | asdict(follower)
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


def unpack(stored: bytes | None) -> Follower | None:
    """Read what `pack` gave, in any release; unknown fields are left out.

    Raises:
        UpgradeRequired: only a later release can read it.
    """
    if stored is None:
        return None
    body = json.loads(stored)
    check_format(body["format"], "a follower")
    positions = ("proven", "ahead", "page_from", "page_until")
    body |= {name: Position(*body[name]) for name in positions if name in body}
    rows = tuple(Resend(*row) for row in body.get("resend", ()))
    lists = {name: tuple(body.get(name, ())) for name in _LISTS}
    return known(Follower, body | lists | {"resend": rows})


def cursor_of(stored: bytes) -> Stamp:
    """Return the cursor of a follower's last request; 0 if it has never sent one.

    Raises:
        UpgradeRequired: only a later release can read what is stored.
    """
    follower = unpack(stored)
    return follower.cursor if follower else 0
