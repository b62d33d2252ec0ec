"""The rows and the history of one table, as its head names them, and the next head of a write."""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from lakesync.adapters.batches import check_refused
from lakesync.adapters.objects.heads import Head, HistoryFile, RowFile, file_name
from lakesync.adapters.objects.lines import (
    as_it_was,
    commit_lines,
    commits_in,
    file_of,
    row_line,
    rows_in,
    state_in,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lakesync.adapters.database import PlacedDelta
    from lakesync.adapters.lake.adapter import LakeAdapter
    from lakesync.adapters.objects.lines import Line
    from lakesync.adapters.sql.definition import Definition
    from lakesync.core.clock import Stamp
    from lakesync.core.merge import RowState

FILE_ROWS_MAX: Final = 10_000
"""Rows of one file: the unit that is in memory, and rewritten when one of them changes."""
HISTORY_FILES_MAX: Final = 500
"""Files of a table's history, one for each write; with more, the older half is forgotten."""
_CACHED_ROWS_MAX: Final = 100_000


class ObjectTable:
    """One table's files.

    Args:
        objects: the bucket.
        prefix: the prefix of the table's keys.
    """

    def __init__(self, objects: LakeAdapter, prefix: str) -> None:
        self._objects = objects
        self._prefix = prefix
        self._cache: OrderedDict[str, dict[str, bytes]] = OrderedDict()

    def states(self, head: Head, row_ids: Sequence[str]) -> dict[str, RowState]:
        """Return the states of rows; those that are not there are left out."""
        states: dict[str, RowState] = {}
        for hidden in (False, True):
            for file, wanted in _by_file(_leaves(head, hidden=hidden), row_ids):
                lines = self.lines(file)
                states |= {one: state_in(lines[one]) for one in wanted if one in lines}
        return states

    def states_after(self, head: Head, row_id: str, count: int) -> dict[str, RowState]:
        """Return the states of a table's rows behind a row id, in the order of its bytes."""
        at = row_id.encode()
        behind: dict[bytes, bytes] = {}
        for hidden in (False, True):
            more = 0
            for file in _leaves(head, hidden=hidden):
                if file.last.encode() > at and more < count:
                    ids = {key: one for one in self.lines(file) if (key := one.encode()) > at}
                    behind |= {key: self.lines(file)[one] for key, one in ids.items()}
                    more += len(ids)
        ordered = heapq.nsmallest(count, behind.items())
        return {key.decode(): state_in(line) for key, line in ordered}

    def commits(self, head: Head, after: Stamp) -> list[tuple[Stamp, bytes]]:
        """Return the next commits behind a stamp with their records, none at the end."""
        for file in head.history:
            if file.last > after:
                read = commits_in(self._objects.get_object(file.key))
                return [one for one in read if one[0] > max(after, head.forgotten)]
        return []

    def written(
        self,
        head: Head,
        definition: Definition,
        deltas: Sequence[PlacedDelta],
        states: Mapping[str, RowState | None],
        *,
        anew: bool = False,
    ) -> Head:
        """Put the files of the next head; see `lakesync.adapters.headed.TableFiles`."""
        write = _Write(self, head, definition)
        return write.made(deltas, states, anew=anew)

    def count(self, head: Head) -> int:
        """Count the rows, those that no reader is to see too."""
        return sum(file.rows for file in head.files)

    def lines(self, file: RowFile) -> dict[str, bytes]:
        """Return a file's lines by row id; the last file is cached, as files never change."""
        lines = self._cache.pop(file.key, None)
        if lines is None:
            lines = rows_in(self._objects.get_object(file.key))
        self._cache[file.key] = lines
        while len(self._cache) > 1 and sum(map(len, self._cache.values())) > _CACHED_ROWS_MAX:
            self._cache.popitem(last=False)
        return lines

    def put(self, folder: str, version: int, lines: Sequence[bytes]) -> str:
        """Put a file for a version of the table; returns its key."""
        key = f"{self._prefix}{folder}/{file_name(version, uuid4().hex)}"
        self._objects.put_object(key, file_of(lines), "application/gzip")
        return key


class _Write:
    """One write."""

    def __init__(self, table: ObjectTable, head: Head, definition: Definition) -> None:
        self._table = table
        self._head = head
        self._definition = definition
        self._version = head.version + 1
        self._files: list[RowFile] = []

    def made(
        self,
        deltas: Sequence[PlacedDelta],
        states: Mapping[str, RowState | None],
        *,
        anew: bool,
    ) -> Head:
        """Put the files, and give the next head."""
        lines = {row_id: row_line(self._definition, row_id, state)
                 for row_id, state in states.items() if state is not None}  # fmt: skip
        refused = {one: why for one, why in self._head.refused.items() if one not in states}
        if anew:
            refused = {}  # every row is looked at
            for file in self._head.files:
                for row_id, text in self._table.lines(file).items():
                    if row_id not in states:
                        lines[row_id] = row_line(self._definition, row_id, state_in(text))
        unfit = {row_id: line for row_id, line in lines.items() if line.refusal}
        refused |= {row_id: line.refusal for row_id, line in unfit.items()}
        check_refused(self._definition.table, refused.values())
        if not anew:  # else the shown lines have columns that no longer exist
            lines |= self._as_they_were(unfit)
        for hidden in (False, True):
            leaves = () if anew else _leaves(self._head, hidden=hidden)
            mine = {row_id: line.text for row_id, line in lines.items() if line.hidden is hidden}
            self._merge(leaves, mine, [one for one in states if one not in mine], hidden=hidden)
        history, forgotten = self._history(deltas)
        return replace(
            self._head, version=self._version, files=tuple(self._files), refused=refused,
            definition=self._definition.to_json(), history=history, forgotten=forgotten,
        )  # fmt: skip

    def _as_they_were(self, refused: Mapping[str, Line]) -> dict[str, Line]:
        """Return the lines of refused rows that are shown, as they are shown."""
        shown: dict[str, Line] = {}
        for file, row_ids in _by_file(_leaves(self._head, hidden=False), list(refused)):
            lines = self._table.lines(file)
            shown |= {one: as_it_was(lines[one], refused[one]) for one in row_ids if one in lines}
        return shown

    def _merge(
        self,
        leaves: Sequence[RowFile],
        put: Mapping[str, bytes],
        gone: Sequence[str],
        *,
        hidden: bool,
    ) -> None:
        """Write those files anew that rows are put into, or taken from."""
        puts, takes = (dict(_by_file(leaves, ids, near=near)) for ids, near in
                       ((list(put), True), (gone, False)))  # fmt: skip
        for file in leaves:
            there = self._table.lines(file) if file in puts or file in takes else {}
            changed = {one: put[one] for one in puts.get(file, ())}
            left = {**there, **changed}
            for row_id in takes.get(file, ()):
                left.pop(row_id, None)
            if left == there:
                self._files.append(file)
            else:
                self._cut(left, hidden=hidden, is_last=file is leaves[-1])
        if not leaves:
            self._cut(put, hidden=hidden, is_last=True)

    def _cut(self, rows: Mapping[str, bytes], *, hidden: bool, is_last: bool) -> None:
        """Put rows into as few files as possible: of equal size, or full ones for appended rows."""
        ordered = sorted(rows, key=str.encode)
        count = -(-len(ordered) // FILE_ROWS_MAX)
        size = FILE_ROWS_MAX if is_last else -(-len(ordered) // max(1, count))
        for start in range(0, len(ordered), size or 1):
            some = ordered[start : start + size]
            folder = "hidden" if hidden else "rows"
            key = self._table.put(folder, self._version, [rows[row_id] for row_id in some])
            self._files.append(RowFile(key, some[0], some[-1], len(some), hidden))

    def _history(self, deltas: Sequence[PlacedDelta]) -> tuple[tuple[HistoryFile, ...], Stamp]:
        """Return the files of the history, and up to where it is forgotten."""
        if not deltas:
            return self._head.history, self._head.forgotten
        key = self._table.put("history", self._version, commit_lines(deltas))
        history = (*self._head.history, HistoryFile(key, deltas[-1].position.commit))
        if len(history) <= HISTORY_FILES_MAX:
            return history, self._head.forgotten
        half = len(history) // 2
        return history[half:], history[half - 1].last


def _leaves(head: Head, *, hidden: bool) -> tuple[RowFile, ...]:
    """Return the files of one kind, in the order of their ids; their id ranges do not overlap."""
    return tuple(file for file in head.files if file.hidden is hidden)


def _by_file(
    leaves: Sequence[RowFile], row_ids: Sequence[str], *, near: bool = False
) -> Iterator[tuple[RowFile, list[str]]]:
    """Yield files, each with the row ids that it may hold, or that it will hold as the nearest."""
    firsts = [file.first.encode() for file in leaves]
    by_place: dict[int, list[str]] = {}
    for row_id in row_ids:
        key = row_id.encode()
        place = bisect_right(firsts, key) - 1
        if leaves and (near or (place >= 0 and key <= leaves[place].last.encode())):
            by_place.setdefault(max(place, 0), []).append(row_id)
    for place, ids in sorted(by_place.items()):
        yield leaves[place], ids
