"""`Position`: the gateway that a file belongs to, and where it reads on. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from lakesync.core.epoch import check_identity
from lakesync.core.messages import Pull
from lakesync.core.scope import EVERYTHING
from lakesync.core.snapshot_order import begin_words
from lakesync.errors import InternalError

if TYPE_CHECKING:
    from lakesync.core.clock import Stamp
    from lakesync.core.messages import PullPage


class Position(NamedTuple):
    """Where a client reads on."""

    cursor: Stamp
    epoch: str
    """The gateway that the file belongs to, and its last restore that was noticed; empty until a
    gateway has told it."""
    snapshot: str
    """Where a snapshot of the rows continues; empty if none is in progress."""
    scope: str = ""
    """What decided which rows were sent; empty if that is not known."""

    @property
    def is_new(self) -> bool:
        """Return whether nothing was read yet."""
        return (self.cursor, self.snapshot, self.scope) == (0, "", "")

    @property
    def from_the_start(self) -> Position:
        """Where everything of the same gateway is read again."""
        return Position(0, self.epoch, "")

    def pull(self, client_id: str, deltas_max: int, first: tuple[str, ...] = ()) -> Pull:
        """Return the request for the next page; a client that begins asks for some tables first."""
        cursor, epoch, snapshot, scope = self
        if self.is_new:
            snapshot = begin_words(first)
        return Pull(client_id, cursor, deltas_max, epoch, snapshot, removes=True, scope=scope)

    def is_followed_by(self, page: PullPage) -> bool:
        """Return whether the rows stay true with a page that answers `pull`.

        A gateway that receives a scope determines itself which tables must be read again.
        """
        compares = bool(self.scope) or self.shows_as(page)
        return self.is_new or (compares and not self.is_before(page))

    def is_before(self, page: PullPage) -> bool:
        """Return whether the gateway was restored since the file was told its epoch."""
        return bool(self.epoch) and page.epoch != self.epoch

    def checked(self, page: PullPage) -> PullPage:
        """Return a page, unless it is another gateway's, or would lead backwards or nowhere.

        Raises:
            AnotherGateway: it is another gateway's.
            InternalError: it would.
        """
        check_identity(self.epoch, page.epoch)
        before = (self.snapshot, self.scope) if page.snapshot else (self.cursor, self.scope)
        stays = before == (page.snapshot or page.cursor, page.scope)
        backwards = page.cursor < self.cursor and not page.snapshot
        if backwards or (page.has_more and stays):
            raise InternalError(
                f"the gateway answered the cursor {self.cursor} with the cursor {page.cursor}; "
                "nothing was applied: report it with the time of the request"
            )
        return page

    def may_apply(self, broadcast: PullPage) -> bool:
        """Return whether a broadcast brings what a pull from here would."""
        same = (broadcast.epoch, broadcast.scope) == (self.epoch, self.scope)
        return same and not self.snapshot and not self.is_new and broadcast.follows(self.cursor)

    def reads_again(self, broadcast: PullPage) -> bool:
        """Return whether a pull from here will read tables again, as other rules decide now."""
        begins = not self.is_new and not self.snapshot
        return begins and bool(broadcast.scope) and not self.shows_as(broadcast)

    def shows_as(self, page: PullPage) -> bool:
        """Return whether a page was decided by the same rules and claims as all rows so far."""
        return page.scope == self.scope or (not self.scope and page.scope == EVERYTHING)
