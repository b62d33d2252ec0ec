"""A transport that answers what it was told to, page by page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lakesync.core.messages import PullPage, PushReceipt
from lakesync.errors import Unreachable
from lakesync.wire.records import encode_records
from tests.support.builders import WALL_MS, at_ms

if TYPE_CHECKING:
    from lakesync.core.delta import Delta
    from lakesync.core.messages import Pull, Push


class ScriptedPages:
    """Brings pages one after the other, None being no network; accepts every push."""

    def __init__(self, *pages: PullPage | None) -> None:
        self._pages = list(pages)
        self.commit = at_ms(5)
        """The last commit when a push is accepted."""

    def bring(self, *pages: PullPage) -> None:
        """Bring more pages behind those that are left."""
        self._pages += pages

    def pull(self, _pull: Pull) -> PullPage:
        page = self._pages.pop(0)
        if page is None:
            raise Unreachable("no network")
        return page

    def push(self, push: Push) -> PushReceipt:
        return PushReceipt(self.commit, accepted=len(push.deltas), server_time_ms=WALL_MS)


def page(*deltas: Delta, cursor: int, **more: Any) -> PullPage:
    """Build a page; ``cursor`` in milliseconds behind `WALL_MS`."""
    shown: dict[str, Any] = {"has_more": False, "epoch": "here", **more}
    return PullPage((encode_records(deltas),), len(deltas), at_ms(cursor), **shown)
