"""How large the pages are that a client asks for."""

from __future__ import annotations

from typing import Final

from lakesync.client.arguments import checked_whole

PAGE_DELTAS: Final = 5_000
"""Deltas of one page, by default."""
PAGE_DELTAS_MAX: Final = 10_000
"""The largest page that may be requested; no gateway returns more."""


def check_page_deltas(page_deltas: int) -> None:
    """Refuse an invalid page size.

    Raises:
        ValidationFailed: it is not between 1 and `PAGE_DELTAS_MAX`.
    """
    checked_whole(page_deltas, "page_deltas", 1, PAGE_DELTAS_MAX)
