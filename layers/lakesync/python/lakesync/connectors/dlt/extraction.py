"""Extracts rows from one resource by dlt, and stores them before they are returned.

An *extraction* reads a resource from the state that the previous one left. It reads to the end, or,
if rows arrive in the order of their cursors, as far as time allows. It stores the rows as objects
in the connector's storage, its *parts*, which are given one by one. One more object holds dlt's
state and the number of parts.

Rules of this module
    1. The state that an extraction leaves is written after all of its parts. If the process is
       killed before, the extraction is repeated from the same state.
    2. After that a part is never rewritten, so reading it again gives the same rows. It is removed
       once the cursor behind it is durable.
    3. Of rows without the cursor by which a resource is read, one of each extraction is reported.
       If no row of the first extraction has one, the resource is refused.
    4. Memory holds one part, and what dlt yields at once; for rows without a cursor also a digest
       each, at most `LISTED_ROWS_MAX`.

A cursor is the number of an extraction, and the number of its parts that were given.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from dlt.common import json as dlt_json

from lakesync.connectors.dlt.comparison import Comparison
from lakesync.connectors.dlt.readings import pages_of
from lakesync.connectors.port import Change, SourcePage, Unreadable
from lakesync.connectors.storage import digest
from lakesync.errors import AdapterRefused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lakesync.connectors.dlt.readings import Reading
    from lakesync.connectors.dlt.rows import Rows
    from lakesync.connectors.storage import Storage

EXTRACT_S_MAX: Final = 15.0
"""How long a resource that must be read whole may take; a poll's function ends after 29 s."""
_EXTRACT_S: Final = 6.0
"""When an extraction that may be left is left."""
_EXTRACT_PARTS: Final = 10
"""After how many parts it is left, too."""
_FOLDER: Final = "dlt"


class Extracted(NamedTuple):
    """A completed extraction, as it is stored."""

    number: int
    parts: int
    is_complete: bool
    """Whether the source was read to its end."""
    state: str
    """dlt's, as its own JSON."""


class Extraction:
    """Extracts one resource, part by part.

    Args:
        reading: how it is read.
        rows: makes changes of its rows.
        storage: the connector's.
        table: the resource's name.
    """

    def __init__(self, reading: Reading, rows: Rows, storage: Storage, table: str) -> None:
        self._reading = reading
        self._rows = rows
        self._storage = storage
        self._path = (_FOLDER, digest(table))
        # A source that reports neither new rows nor change times is read by comparison.
        self._lacking = self._has_cursor = False
        self._compares = reading.is_whole or not (reading.is_incremental or rows.is_dated)

    def page(self, cursor: str, rows_max: int) -> SourcePage:
        """Return the part behind a cursor; extract, if all was given."""
        number, given = _placed(cursor)
        kept = self._kept()
        if kept.number != number:  # the process was killed before it saved its cursor
            return self._part(kept, 0)
        if given:
            self._storage.remove(*self._path, f"part{given - 1}")
        if given < kept.parts:
            return self._part(kept, given)
        kept = self._extracted(kept, rows_max)
        if kept.number == number:
            return SourcePage((), cursor, has_more=False)
        return self._part(kept, 0)

    def _part(self, kept: Extracted, given: int) -> SourcePage:
        stored = self._storage.read(*self._path, f"part{given}") if given < kept.parts else None
        changes, unreadable = stored or ((), ())
        return SourcePage(
            tuple(Change(*each) for each in changes),
            f"{kept.number}:{min(given + 1, kept.parts)}",
            has_more=given + 1 < kept.parts or not kept.is_complete,
            unreadable=tuple(Unreadable(*each) for each in unreadable),
        )

    def _kept(self) -> Extracted:
        stored = self._storage.read(*self._path, "extracted")
        return Extracted(**stored) if stored else Extracted(0, 0, True, "{}")

    def _extracted(self, before: Extracted, rows_max: int) -> Extracted:
        """Extract from the stored state; returns the previous extraction if nothing is new."""
        state = dlt_json.typed_loads(before.state)
        parts = _Parts(self._storage, self._path, rows_max)
        compared = Comparison(self._storage, self._path, before.number) if self._compares else None
        is_complete, left = True, before.state
        self._lacking, self._has_cursor = False, bool(before.number)
        began = time.monotonic()
        for rows in pages_of(self._reading.resource, state):
            spent_s = time.monotonic() - began
            is_enough = parts.count >= _EXTRACT_PARTS or spent_s > _EXTRACT_S
            here = _dumped(state)
            may_leave = self._reading.is_ordered and is_enough and before.state not in {here, left}
            if may_leave and not self._reading.is_root and here != left:
                is_complete = False  # of the parent's rows before all was given, of these nothing
                break
            self._add(rows, parts, compared)
            left = here
            if may_leave and self._reading.is_root:
                is_complete = False
                break
            if spent_s > EXTRACT_S_MAX:
                raise AdapterRefused(
                    f"it was not read whole within {EXTRACT_S_MAX:g} s: read it by incremental "
                    'with row_order "asc", so that it may be read in parts'
                )
        else:
            left = _dumped(state)
        return self._ended(before, parts, compared, is_complete=is_complete, state=left)

    def _ended(
        self,
        before: Extracted,
        parts: _Parts,
        compared: Comparison | None,
        *,
        is_complete: bool,
        state: str,
    ) -> Extracted:
        if self._lacking and not self._has_cursor:
            raise AdapterRefused(
                f"no row has a value of {self._reading.cursor_path}, by which it is read: set "
                "on_cursor_value_missing, or name another cursor_path"
            )
        if compared is not None and self._reading.is_whole:
            for row_id in compared.gone():
                parts.add(Change(row_id, None))
        parts.end()
        if not parts.count and is_complete and state == before.state:
            return before
        if compared is not None:
            compared.write(before.number + 1)
        kept = Extracted(before.number + 1, parts.count, is_complete, state)
        self._storage.write(kept._asdict(), *self._path, "extracted")
        return kept

    def _add(self, rows: Sequence[Any], parts: _Parts, compared: Comparison | None) -> None:
        for row in rows:
            if self._rows.lacks_cursor(row):
                if not self._lacking:
                    parts.add(self._rows.without_cursor(row))
                self._lacking = True
                continue
            self._has_cursor = True
            change = self._rows.change(row)
            if compared is None or compared.is_new(change):
                parts.add(change)


class _Parts:
    """The parts of an extraction in progress."""

    def __init__(self, storage: Storage, path: tuple[str, ...], rows_max: int) -> None:
        self._storage = storage
        self._path = path
        self._rows_max = rows_max
        self._changes: list[Change] = []
        self._unreadable: list[Unreadable] = []
        self.count = 0

    def add(self, change: Change | Unreadable) -> None:
        """Add a change."""
        if isinstance(change, Unreadable):
            self._unreadable.append(change)
        else:
            self._changes.append(change)
        if len(self._changes) + len(self._unreadable) >= self._rows_max:
            self.end()

    def end(self) -> None:
        """Store the rows that were added, if any."""
        if self._changes or self._unreadable:
            part = (self._changes, self._unreadable)
            self._storage.write(part, *self._path, f"part{self.count}")
            self.count += 1
            self._changes, self._unreadable = [], []


def _dumped(state: dict[str, Any]) -> str:
    """Return dlt's state as text: the same for the same state, in any process."""
    return str(dlt_json.typed_dumps(_sorted(state), sort_keys=True))


def _sorted(state: Any) -> Any:
    if not isinstance(state, dict):
        return state
    return {
        # Out of a set, in whatever order it is in this process.
        name: sorted(part) if name == "unique_hashes" else _sorted(part)
        for name, part in state.items()
    }


def _placed(cursor: str) -> tuple[int, int]:
    number, _, given = cursor.partition(":")
    return int(number or 0), int(given or 0)
