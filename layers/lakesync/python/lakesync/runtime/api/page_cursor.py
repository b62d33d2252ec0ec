"""The opaque cursor of an administrators' list: where the page before ended."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import TYPE_CHECKING

from lakesync.errors import ValidationFailed

if TYPE_CHECKING:
    import re


def cursor_of(place: str) -> str:
    """Return the cursor that `place_of` reads, safe in a URL."""
    return urlsafe_b64encode(place.encode()).decode()


def place_of(cursor: str, pattern: re.Pattern[str]) -> str:
    """Return the place in the list that a cursor represents; it matches the pattern as a whole.

    No cursor is the beginning of the list, and gives no place.

    Raises:
        ValidationFailed: no page of this list gave the cursor.
    """
    if not cursor:
        return ""
    try:
        place = urlsafe_b64decode(cursor.encode()).decode()
    except ValueError:  # of base64 too
        place = ""
    if pattern.fullmatch(place) is None:
        raise ValidationFailed("cursor must be `next` of the page before", field="cursor")
    return place
