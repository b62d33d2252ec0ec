"""Collects a log's parts into pages of whole transactions, unless one is larger. Law N12."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from lakesync.connectors.sql.capture.parts import PART_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lakesync.connectors.sql.capture.parts import Part


class Gathered(NamedTuple):
    """The parts of one page."""

    parts: list[Part]
    """The parts with changes of rows."""
    last: Part | None
    """The last part that was read, with or without rows; None if there was none."""
    is_end: bool
    """Whether the reading is at its end."""


class Gathering:
    """Gathers the parts of one reading, page by page.

    Args:
        parts: in the order of commits.
        goes_on: asked before each part of a page; on False the page ends.
    """

    def __init__(self, parts: Iterator[Part], goes_on: Callable[[], bool] = lambda: True) -> None:
        self._parts = parts
        self._goes_on = goes_on
        self._carried: Part | None = None
        """A part that was read already, for the next page."""

    def page(self, rows_max: int) -> Gathered:
        """Return the next parts that fit a page: at least one, if any is left."""
        parts: list[Part] = []
        last: Part | None = None
        rows = size = 0
        while rows < rows_max and self._goes_on():
            part = self._carried or next(self._parts, None)
            self._carried = None
            if part is None:
                return Gathered(parts, last, is_end=True)
            if parts and (rows + part.rows > rows_max or size + part.size > PART_BYTES_MAX):
                self._carried = part
                break
            last = part
            if part.rows:
                parts.append(part)
            rows, size = rows + part.rows, size + part.size
        return Gathered(parts, last, is_end=False)
