"""Finds and removes the attachments that erased rows refer to, or ever referred to.

Rules of this module
    1. A file is removed before that is which tells of it: the log and checkpoints, then the lake's
       history. So who was killed is followed by one that comes upon it again.
    2. A file that another row refers to stays, and is named.

Law E11: ``docs/spec/erasure.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from lakesync.cli.row_copies import checkpointed_runs, logged_runs
from lakesync.core.attachments import SCHEME, references_in
from lakesync.core.values import parse
from lakesync.gateway.attachments import file_key
from lakesync.wire.records import decode_records
from lakesync.wire.row_state import decode_row_state

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from lakesync.cli.changes import LakeChanges
    from lakesync.core.values import CanonicalJson
    from lakesync.ports import Buffer, ObjectStore, RowKey

_MARK: Final = SCHEME.encode()
"""Text that the JSON of every reference to a file contains."""
_SLICE_ROWS_MAX: Final = 1_000


class AttachmentErasure:
    """Removes the files of rows of one table. Every step may be repeated.

    Args:
        buffer: stores the rows.
        objects: stores files, checkpoints and batches.
        gateway: whose.
        keys: the rows.
    """

    def __init__(
        self, buffer: Buffer, objects: ObjectStore, gateway: str, keys: Sequence[RowKey]
    ) -> None:
        self._buffer = buffer
        self._objects = objects
        self._gateway = gateway
        self._table = keys[0][0]
        self._keys = frozenset(keys)
        self._files: set[str] = set()
        self.removed: set[str] = set()
        """Names of files that were removed."""
        self.shared: set[str] = set()
        """Names of files that stay, because other rows refer to them."""

    def look_into_rows(self) -> None:
        """Collect the references of the current rows."""
        for stored in self._buffer.rows(self._gateway, self._keys).values():
            self._files |= _files_of(stored.state)

    def look_into_past(self) -> None:
        """Collect former references from the log and from checkpoints."""
        for runs in (
            logged_runs(self._gateway, self._buffer),
            checkpointed_runs(self._objects, self._gateway, self._table),
        ):
            for run in runs:
                if _MARK in run:
                    self._note(decode_records(run))

    def look_into_lake(self, changes: LakeChanges) -> None:
        """Collect former references from the lake's tables and batches."""
        from pyiceberg.expressions import In

        make: Any = In  # its own type knows nothing of positions
        rows = [row for _, row in sorted(self._keys)]
        for batch in changes.scan(make("_id", rows)):
            self._note(placed.delta for placed in changes.placed(batch))

    def _note(self, deltas: Iterable[Any]) -> None:
        for delta in deltas:
            if (delta.table, delta.row_id) in self._keys:
                self._files |= _files_in(value for _, value in delta.columns)

    def remove(self) -> None:
        """Remove the collected files, except those that other rows refer to."""
        there = {name for name in self._files if self._is_there(name)}
        self.shared = self._shared(there) if there else set()
        for name in there - self.shared:
            self._objects.delete_object(self._key(name))
            self.removed.add(name)

    def left(self) -> int:
        """Count the existing files that no other row refers to."""
        return sum(map(self._is_there, self._files - self.shared))

    def remarks(self) -> Iterator[str]:
        """Report which files were removed, which were not, and why."""
        if self.removed:
            yield f"removed: {', '.join(map(self._key, sorted(self.removed)))}"
        if self.shared:
            names = ", ".join(map(self._key, sorted(self.shared)))
            yield f"not removed, as other rows refer to it: {names}"

    def _key(self, name: str) -> str:
        return file_key(self._gateway, name)

    def _is_there(self, name: str) -> bool:
        key = self._key(name)
        return key in self._objects.list_objects(key)

    def _shared(self, names: set[str]) -> set[str]:
        """Return which of the given files other rows refer to. Reads every row of the gateway."""
        shared: set[str] = set()
        for table in self._tables():
            for row_id, state in self._rows(table):
                if (table, row_id) not in self._keys:
                    shared |= names & _files_of(state)
        return shared

    def _tables(self) -> list[str]:
        config = self._buffer.config(self._gateway)
        flushed = self._buffer.flushed_tables(self._gateway)
        return sorted({*config.tables, *config.schemas, *flushed})

    def _rows(self, table: str) -> Iterator[tuple[str, bytes]]:
        place = ""
        while True:
            part = self._buffer.scan_rows(self._gateway, table, place, _SLICE_ROWS_MAX)
            for row_id, stored in part.rows:
                yield row_id, stored.state
            place = part.place
            if not place:
                return


def _files_of(state: bytes) -> set[str]:
    if _MARK not in state:
        return set()
    columns = decode_row_state(state).columns.values()
    return _files_in(value for _, _, value in columns)


def _files_in(values: Iterable[CanonicalJson]) -> set[str]:
    marked = (value for value in values if _MARK in value)
    return {file.file_name for value in marked for file in references_in(parse(value))}
