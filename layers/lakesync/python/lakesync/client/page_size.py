"""How large the pages are that a client asks for."""

from __future__ import annotations

from typing import Final

from lakesync.errors import ValidationFailed

PAGE_DELTAS: Final = 5_000
"""Deltas of one page, by default."""
PAGE_DELTAS_MAX: Final = 10_000
"""Deltas of one page that may be asked for; no gateway gives more."""


def check_page_deltas(page_deltas: int) -> None:
    """Refuse a page size that is none.

    Raises:
        ValidationFailed: it is not within 1 and `PAGE_DELTAS_MAX`.
    """
    if not 1 <= page_deltas <= PAGE_DELTAS_MAX:
        sentence = f"page_deltas must be 1 to {PAGE_DELTAS_MAX}, not {page_deltas}"
        raise ValidationFailed(sentence, field="page_deltas")
