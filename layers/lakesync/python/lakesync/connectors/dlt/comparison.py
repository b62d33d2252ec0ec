"""Rows of dlt without a cursor, compared by digests with the previous extraction's."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Final

from lakesync.connectors.listing import LISTED_ROWS_MAX
from lakesync.connectors.port import Change, Unreadable
from lakesync.errors import AdapterRefused

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lakesync.connectors.storage import Storage

_DIGEST_DIGITS: Final = 24


class Comparison:
    """Compares rows with those of the previous extraction, by digests.

    Digests are stored under the extraction's number, so a repeated extraction compares with the
    same ones. A row that occurs twice in one extraction is returned once; if it changed in between,
    the next extraction returns the change.
    """

    def __init__(self, storage: Storage, path: tuple[str, ...], number: int) -> None:
        self._storage = storage
        self._path = path
        self._before: dict[str, str] = storage.read(*path, f"digests{number % 2}") or {}
        self._seen: dict[str, str] = {}

    def is_new(self, change: Change | Unreadable) -> bool:
        """Return whether a change differs from the previous extraction, and is not given yet."""
        if isinstance(change, Change) and change.columns is None:
            self._seen.pop(change.row_id, None)
            return self._before.pop(change.row_id, None) is not None
        if change.row_id in self._seen:
            return False
        said = change.columns if isinstance(change, Change) else change.reason
        text = json.dumps(said, sort_keys=True)
        row_digest = hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_DIGITS]
        if change.row_id:
            self._seen[change.row_id] = row_digest
        if len(self._seen) > LISTED_ROWS_MAX:
            raise AdapterRefused(
                f"it has over {LISTED_ROWS_MAX} rows, which are compared, as they have no time "
                "of their last change: read it by incremental"
            )
        return self._before.get(change.row_id) != row_digest

    def gone(self) -> Iterator[str]:
        """Return the ids of previous rows that no longer exist."""
        return (row_id for row_id in self._before if row_id not in self._seen)

    def write(self, number: int) -> None:
        """Store the digests for the next extraction."""
        self._storage.write(self._seen, *self._path, f"digests{number % 2}")
