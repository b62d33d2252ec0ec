"""Reading ahead: the next page is on its way while the last one is applied.

A page determines its reader's next request, if the reader does nothing but apply it. So that page
is requested at once, on another thread, and is returned if it is indeed requested. An unused answer
is discarded, and so is one that has waited too long: rules and tokens change.
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.core.messages import Pull, PullPage

AGE_S_MAX: Final = 10
"""How long a page that was fetched ahead may wait to be asked for."""


class _Fetch(threading.Thread):
    """One request in progress, or with its answer."""

    def __init__(self, fetch: Callable[[Pull], PullPage], pull: Pull) -> None:
        # A program that ends does not wait for it.
        super().__init__(daemon=True, name="lakesync-read-ahead")
        self.pull = pull
        self._fetch = fetch
        self._page: PullPage | None = None
        self._error: Exception | None = None
        self._answered_s = 0.0

    def run(self) -> None:
        """Send the request, and store the result."""
        try:
            self._page = self._fetch(self.pull)
        except Exception as error:  # noqa: BLE001 - raised by `page`, where somebody hears it
            self._error = error
        self._answered_s = time.monotonic()

    def page(self, pull: Pull) -> PullPage | None:
        """Wait for the page; None if it does not fit the request, or is too old."""
        self.join()
        if self.pull != pull or time.monotonic() - self._answered_s > AGE_S_MAX:
            return None
        if self._error is not None:
            raise self._error
        return self._page


class ReadAhead:
    """Fetches each next page before it is requested: for one reader, one page at a time."""

    def __init__(self, fetch: Callable[[Pull], PullPage]) -> None:
        self._fetch = fetch
        self._ahead: _Fetch | None = None

    def pull(self, pull: Pull) -> PullPage:
        """Return the page that was asked for."""
        ahead, self._ahead = self._ahead, None
        page = ahead.page(pull) if ahead else None
        if page is None:
            page = self._fetch(pull)
        if page.has_more:
            self._ahead = _Fetch(self._fetch, following(pull, page))
            self._ahead.start()
        return page

    def wait(self) -> None:
        """Wait until no request is in progress; fetched pages are discarded."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.join()


def following(pull: Pull, page: PullPage) -> Pull:
    """Return the next request of a reader that has applied the answer to its last one."""
    since = pull.since if page.snapshot else page.cursor
    return replace(pull, since=since, epoch=page.epoch, snapshot=page.snapshot, scope=page.scope)
