"""`DatabaseAdapter` and `Materialisable` on objects of a bucket: JSON lines that anybody may read.

A table consists of files of rows, files of history, and a head that names them (`file_database`).
A write reads the files of its rows, puts new files, and then puts the next head, which only one
writer can make. So a write is atomic, even if the writer dies. For tables of up to some hundred
thousand rows: changing a row rewrites its whole file.

Files are lines of JSON, gzip outside. A row's line has its columns in canonical JSON, and its merge
state for LakeSync itself: ``{"row_id":"r1","n":1,"title":"x","lakesync_state":"…"}``.
"""

from __future__ import annotations

import base64
import heapq
import json
from bisect import bisect_right
from collections import OrderedDict
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import uuid4

from lakesync.adapters.connect import bucket_at
from lakesync.adapters.database_types import DatabaseType
from lakesync.adapters.file_database import (
    FileDatabase,
    FileTables,
    Head,
    Heads,
    HistoryFile,
    RowFile,
    file_name,
)
from lakesync.adapters.lake.adapter import file_of, lines_in
from lakesync.adapters.ledger_database import check_refused
from lakesync.adapters.sql.ledger import (
    DELETED_AT,
    PREFIX,
    REASON_CHARACTERS_MAX,
    deleted_at,
    sql_name,
)
from lakesync.core.column_types import Unfit, sql_value
from lakesync.core.delta import NULL, canonical
from lakesync.core.merge import view
from lakesync.core.schema import ROW_ID
from lakesync.wire.records import decode_row_state, encode_records, encode_row_state

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lakesync.adapters.database import PlacedDelta
    from lakesync.adapters.database_types import DatabasePlace
    from lakesync.adapters.lake.adapter import LakeAdapter
    from lakesync.adapters.sql.ledger import Definition
    from lakesync.core.clock import Stamp
    from lakesync.core.merge import RowState


class ObjectsDatabase(FileDatabase):
    """One gateway's deltas and rows in one bucket. Not for several threads at once.

    Args:
        prefix: the prefix of all keys; empty, or ending with a slash.
    """

    def __init__(self, objects: LakeAdapter, prefix: str, gateway: str) -> None:
        # Gateway names have no dots, so a flow's keys cannot collide with a gateway's.
        super().__init__(ObjectTables(objects, f"{prefix}{gateway.replace('/', '.')}/"))


class ObjectTables(FileTables):
    """The tables of one gateway.

    Args:
        prefix: the prefix of the gateway's keys.
    """

    def __init__(self, objects: LakeAdapter, prefix: str) -> None:
        super().__init__()
        self._objects = objects
        self._prefix = prefix

    def opened(self, table: str) -> tuple[Heads, ObjectTable]:
        prefix = f"{self._prefix}{table}/"
        return Heads(self._objects, prefix), ObjectTable(self._objects, prefix)

    def names(self) -> Iterator[str]:
        keys = self._objects.list_objects(f"{self._prefix}.tables/")
        return (key.rpartition("/")[2] for key in keys)

    def begin(self, table: str) -> None:
        self._objects.put_object(f"{self._prefix}.tables/{table}", b"", "text/plain")


FILE_ROWS_MAX: Final = 10_000
"""Rows of one file: the unit that is in memory, and rewritten when one of them changes."""
HISTORY_FILES_MAX: Final = 500
"""Files of a table's history, one for each write; with more, the older half is forgotten."""
_CACHED_ROWS_MAX: Final = 100_000


class ObjectTable:
    """One table's files."""

    def __init__(self, objects: LakeAdapter, prefix: str) -> None:
        self._objects = objects
        self._prefix = prefix
        self._cache: OrderedDict[str, dict[str, bytes]] = OrderedDict()

    def states(self, head: Head, row_ids: Sequence[str]) -> dict[str, RowState]:
        states: dict[str, RowState] = {}
        for hidden in (False, True):
            for file, wanted in _by_file(_leaves(head, hidden=hidden), row_ids):
                lines = self.lines(file)
                states |= {one: state_in(lines[one]) for one in wanted if one in lines}
        return states

    def states_after(self, head: Head, row_id: str, count: int) -> dict[str, RowState]:
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
        """Put the files of the next head; see `lakesync.adapters.file_database.TableFiles`."""
        write = _Write(self, head, definition)
        return write.made(deltas, states, anew=anew)

    def count(self, head: Head) -> int:
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


# --- lines of JSON --------------------------------------------------------------------------------


STATE: Final = f"{PREFIX}state"
_STATE_FIELD: Final = b",%b:" % canonical(STATE)
_BEGINS: Final = b'{"row_id":'
_DECODER: Final = json.JSONDecoder()


class Line(NamedTuple):
    """A row as a file has it."""

    text: bytes
    hidden: bool
    refusal: str = ""


def row_line(definition: Definition, row_id: str, state: RowState) -> Line:
    """Return a row's line; a row that does not fit its columns has no columns, and is hidden."""
    encoded = base64.b64encode(encode_row_state(state))
    values = view(definition.as_read(state))
    fields = [(ROW_ID, canonical(row_id))]
    hidden, refusal = False, ""
    if values is None:
        fields.append((DELETED_AT, canonical(deleted_at(state).isoformat())))
        hidden = not definition.keeps_deleted
    else:
        try:
            columns = [(sql_name(name), _checked(definition, name, kind, values.get(name)))
                       for name, kind in sorted(definition.stored_columns().items())
                       if name != ROW_ID]  # fmt: skip
            fields += [(name, value) for name, value in columns if value is not None]
        except Unfit as exc:
            hidden, refusal = True, str(exc)[:REASON_CHARACTERS_MAX]
    fields.append((STATE, b'"%b"' % encoded))
    text = b",".join(b"%b:%b" % (canonical(name), value) for name, value in fields)
    return Line(b"{%b}" % text, hidden, refusal)


def as_it_was(former: bytes, refused: Line) -> Line:
    """Return the line of a refused row that was shown before: it keeps its former columns.

    Its state, which is the last field, is the newest.
    """
    columns, newest = (line.rpartition(_STATE_FIELD) for line in (former, refused.text))
    return Line(b"".join((columns[0], *newest[1:])), hidden=False, refusal=refused.refusal)


def _checked(definition: Definition, name: str, kind: str, value: bytes | None) -> bytes | None:
    try:
        sql_value(kind, value)
    except Unfit as exc:
        raise Unfit(f"column {name}: {exc}") from exc
    if name in definition.keys and value in {None, NULL}:
        raise Unfit(f"column {name}: a primary key is never empty")
    return value


def state_in(text: bytes) -> RowState:
    return decode_row_state(base64.b64decode(json.loads(text)[STATE]))


def rows_in(body: bytes) -> dict[str, bytes]:
    """Return the lines of a file by row id."""
    return {_row_id(line): line for line in lines_in(body)}


def commit_lines(deltas: Sequence[PlacedDelta]) -> list[bytes]:
    return [
        json.dumps([commit, base64.b64encode(encode_records(d for _, d in placed)).decode()])
        .encode()
        for commit, placed in groupby(deltas, key=lambda placed: placed.position.commit)
    ]  # fmt: skip


def commits_in(body: bytes) -> list[tuple[Stamp, bytes]]:
    read = map(json.loads, lines_in(body))
    return [(commit, base64.b64decode(records)) for commit, records in read]


def _row_id(line: bytes) -> str:
    """Return a line's row id, which comes first, without reading the others."""
    row_id: str = _DECODER.raw_decode(line.decode(), len(_BEGINS))[0]
    return row_id


def _opened(place: DatabasePlace) -> ObjectsDatabase:
    return ObjectsDatabase(*bucket_at(place.url), place.keeper)


OBJECTS: Final = DatabaseType("Objects in a bucket", _opened)
