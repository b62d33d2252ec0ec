"""Where a client reads on, and what page may follow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from lakesync.core.messages import SNAPSHOT, Pull
from lakesync.core.scope import EVERYTHING
from lakesync.errors import InternalError

if TYPE_CHECKING:
    import sqlite3

    from lakesync.core.clock import Stamp
    from lakesync.core.messages import PullPage


class Position(NamedTuple):
    """Where a client reads on."""

    cursor: Stamp
    epoch: str
    """What the cursor belongs to; empty unless the buffer was ever restored."""
    snapshot: str
    """Where a snapshot of the rows goes on, before the log does; empty if none is under way."""
    scope: str = ""
    """What decided which rows were sent; empty if that is not known."""

    @property
    def is_new(self) -> bool:
        """Tell whether nothing was read yet."""
        return self == NOTHING_READ

    def pull(self, client_id: str, deltas_max: int) -> Pull:
        """Give the request for the page that follows."""
        cursor, epoch, snapshot, scope = self
        if self.is_new:
            snapshot = SNAPSHOT
        return Pull(client_id, cursor, deltas_max, epoch, snapshot, removes=True, scope=scope)

    def is_followed_by(self, page: PullPage) -> bool:
        """Tell whether the rows stay true with a page that answers `pull`.

        A gateway that is sent a scope says itself which tables have to be read again.
        """
        compares = bool(self.scope) or self.shows_as(page)
        return self.is_new or (compares and page.epoch == self.epoch)

    def shows_as(self, page: PullPage) -> bool:
        """Tell whether a page was decided by the same rules and claims as all rows so far."""
        return page.scope == self.scope or (not self.scope and page.scope == EVERYTHING)


NOTHING_READ: Final = Position(0, "", "")


def position_of(connection: sqlite3.Connection) -> Position:
    """Give where a file's client reads on."""
    row = connection.execute("SELECT cursor, epoch, snapshot, scope FROM _lakesync_sync")
    return Position(*row.fetchone())


def advancing(page: PullPage, at: Position) -> PullPage:
    """Refuse a page that would lead backwards or nowhere."""
    before = (at.snapshot, at.scope) if page.snapshot else (at.cursor, at.scope)
    stays = before == (page.snapshot or page.cursor, page.scope)
    backwards = page.cursor < at.cursor and not page.snapshot
    if backwards or (page.has_more and stays):
        raise InternalError(
            f"the gateway answered the cursor {at.cursor} with the cursor {page.cursor}; nothing "
            "was applied: report it with the time of the request"
        )
    return page
