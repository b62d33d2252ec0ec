"""Reads a table without change times: all its rows at each poll, by difference.

For tables of some thousand rows, which a source lists page by page: its projects, its users. The
previous listing is kept as digests, in one object of the connector's storage.

Rules of this module
    1. A page is stored before it is given: read again in the same poll, it is the same.
    2. A row missing from a listing is gone only if the source confirms it.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from lakesync.connectors.port import Change, SourcePage
from lakesync.errors import AdapterRefused

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lakesync.connectors.storage import Storage

    Row: TypeAlias = tuple[str, Mapping[str, Any]]
    """A row's id and columns."""

LISTED_ROWS_MAX: Final = 100_000
"""Rows of a table that is read by listing it: their digests take 10 MB of memory."""
VERIFIED_MAX: Final = 25
"""Rows whose deletion the source is asked to confirm, one by one, within one page."""
_FOLDER: Final = "listing"
_DIGEST_DIGITS: Final = 24
_GONE: Final = "gone"
"""What a cursor begins with behind the listing."""


class Listing(NamedTuple):
    """How a source lists a table."""

    page: Callable[[int], tuple[Sequence[Row], int | None]]
    """Gives the rows from a place on, and the place of the next page; None after the last."""
    exists: Callable[[str], bool]
    """Returns whether a row exists."""


def read(table: str, listing: Listing, storage: Storage, after: str, poll_ms: int) -> SourcePage:
    """Return the changes in a page of the listing, and after its last page the deletions."""
    stored = storage.read(_FOLDER, table) or {"rows": {}, "pollMs": 0}
    if (stored["pollMs"], stored.get("after")) != (poll_ms, after):
        rows: dict[str, list[Any]] = stored["rows"]
        if after.startswith(_GONE):
            page, following = _gone(listing, rows, after, poll_ms)
        else:
            page, following = _listed(listing, rows, int(after or 0), poll_ms)
        if len(rows) > LISTED_ROWS_MAX:
            raise AdapterRefused(f"{table} has over {LISTED_ROWS_MAX} rows: leave it out")
        stored = {
            "rows": rows, "pollMs": poll_ms, "after": after, "page": page, "next": following,
        }  # fmt: skip
        storage.write(stored, _FOLDER, table)
    changes = tuple(Change(row_id, columns) for row_id, columns in stored["page"])
    return SourcePage(changes, stored["next"], bool(stored["next"]))


def _listed(
    listing: Listing, rows: dict[str, list[Any]], start: int, poll_ms: int
) -> tuple[list[Any], str]:
    """Compare a page of the listing; returns what changed, and the next cursor."""
    listed, following = listing.page(start)
    changed: list[Any] = []
    for row_id, columns in listed:
        text = json.dumps(columns, sort_keys=True, ensure_ascii=False)
        row_digest = hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_DIGITS]
        if rows.get(row_id, [""])[0] != row_digest:
            changed.append((row_id, columns))
        rows[row_id] = [row_digest, poll_ms]
    if following is not None:
        return changed, str(following)
    return changed, _GONE if _unlisted(rows, poll_ms) else ""


def _gone(
    listing: Listing, rows: dict[str, list[Any]], after: str, poll_ms: int
) -> tuple[list[Any], str]:
    """Ask the source for unlisted rows; returns those that are gone, and the next cursor."""
    gone: list[Any] = []
    for row_id in _unlisted(rows, poll_ms)[:VERIFIED_MAX]:
        if listing.exists(row_id):
            rows[row_id][1] = poll_ms
        else:
            del rows[row_id]
            gone.append((row_id, None))
    following = f"{_GONE}{int(after.removeprefix(_GONE) or 0) + 1}"
    return gone, following if _unlisted(rows, poll_ms) else ""


def _unlisted(rows: Mapping[str, Sequence[Any]], poll_ms: int) -> list[str]:
    return [row_id for row_id, (_, listed_ms) in rows.items() if listed_ms != poll_ms]
