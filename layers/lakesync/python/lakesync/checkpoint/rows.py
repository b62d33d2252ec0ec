"""Reads a table's rows in the order of their ids, merging the parts over which they are spread.

So a client writes its own table from one end to the other. In the buffer's order it would pass over
the whole table once for each part, and touch every page of its file as often.
"""

from __future__ import annotations

from functools import partial
from heapq import merge
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from lakesync.ports import ROW_PARTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lakesync.ports import Buffer, StoredRow

_SLICE_ROWS_MAX: Final = 5_000
"""Rows that are read of a part at once, at most 1 MB; so much of each part is in memory."""


class OutOfTime(Exception):
    """There is no time to read on."""


def rows_in_order(
    buffer: Buffer, gateway: str, table: str, after: str, has_time: Callable[[], bool]
) -> Iterator[tuple[str, StoredRow]]:
    """Return every row behind an id that exists throughout the read, once.

    Raises:
        OutOfTime: there was no time for another read.
    """
    rows = partial(_of_part, buffer, gateway, table, after, has_time)
    return merge(*map(rows, range(ROW_PARTS)), key=itemgetter(0))


def _of_part(
    buffer: Buffer, gateway: str, table: str, after: str, has_time: Callable[[], bool], part: int
) -> Iterator[tuple[str, StoredRow]]:
    while True:
        if not has_time():
            raise OutOfTime
        page = buffer.scan_part(gateway, table, part, after, _SLICE_ROWS_MAX)
        yield from page.rows
        after = page.place
        if not after:
            return
