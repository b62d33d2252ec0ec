"""One page of a source while it is filled: it contains all deltas of a commit, or none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakesync.wire.records import encode_records

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lakesync.core.delta import Delta


class SourcePage:
    """Deltas up to a count and a size; the first always fits, whatever its size.

    Args:
        deltas_max: how many, except that rows are never cut.
        bytes_max: the most bytes that they may take in stored form.
    """

    def __init__(self, deltas_max: int, bytes_max: int) -> None:
        self._deltas_max = deltas_max
        self._bytes_max = bytes_max
        self._size = 0
        self.runs: list[bytes] = []
        self.count = 0
        self.is_cut = False
        """Whether something is left for the next page."""

    @property
    def room(self) -> int:
        """Return how many more deltas are wanted."""
        return max(0, self._deltas_max - self.count)

    def add(self, deltas: Sequence[Delta]) -> bool:
        """Add deltas that belong together; False, and the page is cut, if they do not fit."""
        run = encode_records(deltas)
        too_large = self._size + len(run) > self._bytes_max
        if self.count and (too_large or not self.room):
            self.is_cut = True
            return False
        self.runs.append(run)
        self.count += len(deltas)
        self._size += len(run)
        return True
