"""The pages of a damaged SQLite file, read without SQLite, which stops at the first damage.

Only tables with a rowid are read. Nothing that a page says is trusted: whoever takes a row checks
that it is what was written. The format: https://www.sqlite.org/fileformat2.html.
"""

from __future__ import annotations

import mmap
import struct
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_MAGIC: Final = b"SQLite format 3\0"
_PAGE_BYTES: Final = 4_096
"""The size of a page, if the file does not say it any more: SQLite's own choice."""
_SIZES: Final = frozenset(1 << bits for bits in range(9, 17))
_HEADER_BYTES: Final = 100
_LOG_HEADER_BYTES: Final = 32
_FRAME_HEADER_BYTES: Final = 24
_INTERIOR: Final = 5
_LEAF: Final = 13
_SCHEMA_COLUMNS: Final = 5
PAYLOAD_BYTES_MAX: Final = 16 << 20
"""The size of a row that is read; a larger one is damage."""
_INTEGERS: Final = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}
_FAULTS: Final = (ValueError, LookupError, struct.error)

Cells: TypeAlias = "tuple[object, ...]"


class Table(NamedTuple):
    """A table's rows, as far as they can be reached from its root."""

    rows: dict[int, Cells]
    """By their rowids."""
    pages: set[int]
    """Those that it is known to consist of."""
    is_whole: bool


NO_ROWS: Final = Table({}, set(), is_whole=True)


class Pages:
    """The pages of a file and its log. Close it when done."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            file.seek(0, 2)
            self._file: mmap.mmap | bytes = (
                mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if file.tell() else b""
            )
        log = path.with_name(f"{path.name}-wal")
        content = log.read_bytes() if log.exists() else b""
        header = self._file[:_HEADER_BYTES]
        size = int.from_bytes(header[16:18], "big") if header[:16] == _MAGIC else 0
        size = 1 << 16 if size == 1 else size
        in_log = int.from_bytes(content[8:12], "big")
        self._size = size if size in _SIZES else in_log if in_log in _SIZES else _PAGE_BYTES
        reserved = header[20] if size in _SIZES else 0
        self._usable = self._size - reserved
        self._logged = dict(self._frames(content))

    def close(self) -> None:
        if isinstance(self._file, mmap.mmap):
            self._file.close()

    def table(self, root: int) -> Table:
        rows: dict[int, Cells] = {}
        pages: set[int] = set()
        waiting, is_whole = [root], True
        while waiting:
            number = waiting.pop()
            if number in pages:
                is_whole = False
                continue
            pages.add(number)
            page, start = self._page(number)
            kind = page[start] if page else 0
            if kind == _INTERIOR:
                places = list(self._places(page, start, 12))
                children = [page[place : place + 4] for place in places] + [page[start + 8 :][:4]]
                waiting += [int.from_bytes(child, "big") for child in children]
            elif kind == _LEAF:
                is_whole = self._leaf(page, start, rows) and is_whole
            else:
                is_whole = False
        return Table(rows, pages, is_whole)

    def schema(self) -> dict[str, tuple[int, str]]:
        """Return the roots of tables and the SQL that made them, by name, as far as readable."""
        return {
            name: (root, sql)
            for kind, name, _, root, sql in (
                row for row in self.table(1).rows.values() if len(row) == _SCHEMA_COLUMNS
            )
            if kind == "table" and isinstance(root, int)
            if isinstance(name, str) and isinstance(sql, str)
        }

    def free(self) -> set[int]:
        """Return the pages that are known to belong to nothing; they hold what was deleted."""
        free: set[int] = set()
        page, _ = self._page(1)
        trunk = int.from_bytes(page[32:36], "big") if page[:16] == _MAGIC else 0
        while trunk and trunk not in free and (page := self._page(trunk)[0]):
            free.add(trunk)
            count = min(int.from_bytes(page[4:8], "big"), self._usable // 4 - 2)
            free.update(struct.unpack_from(f">{count}I", page, 8))
            trunk = int.from_bytes(page[:4], "big")
        return free

    def leaves(self, without: set[int]) -> Iterator[tuple[int, Cells]]:
        """Yield the rows of all tables' pages but some, whichever table they are of."""
        in_file = range(1, len(self._file) // self._size + 1)
        for number in sorted({*in_file, *self._logged} - without):
            page, start = self._page(number)
            if page and page[start] == _LEAF:
                rows: dict[int, Cells] = {}
                self._leaf(page, start, rows)
                yield from rows.items()

    def _page(self, number: int) -> tuple[bytes, int]:
        end = number * self._size
        page = self._logged.get(number) or self._file[max(end - self._size, 0) : end]
        whole = page if len(page) == self._size else b""
        return whole, _HEADER_BYTES if number == 1 else 0

    def _frames(self, log: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield the pages of the log in order, up to its last commit; damaged ones too."""
        step = _FRAME_HEADER_BYTES + self._size
        starts = range(_LOG_HEADER_BYTES, len(log) - step + 1, step)
        salts = [log[start + 8 : start + 16] for start in starts]
        if not salts:
            return
        # Frames of before the last checkpoint have other salts. A damaged header tells no salts.
        own = log[16:24] if log[16:24] in salts else Counter(salts).most_common(1)[0][0]
        commits = [place for place, start in enumerate(starts) if any(log[start + 4 : start + 8])]
        for place, start in enumerate(starts[: commits[-1] + 1 if commits else 0]):
            page = log[start + _FRAME_HEADER_BYTES : start + step]
            if salts[place] == own:
                yield int.from_bytes(log[start : start + 4], "big"), page

    def _places(self, page: bytes, start: int, header: int) -> tuple[int, ...]:
        count = int.from_bytes(page[start + 3 : start + 5], "big")
        count = min(count, (self._size - start - header) // 2)
        return struct.unpack_from(f">{count}H", page, start + header)

    def _leaf(self, page: bytes, start: int, rows: dict[int, Cells]) -> bool:
        whole = True
        for place in self._places(page, start, 8):
            try:
                row_id, payload = self._payload(page, place)
                rows[row_id] = _record(payload)
            except _FAULTS:
                whole = False
        return whole

    def _payload(self, page: bytes, place: int) -> tuple[int, bytes]:
        size, place = _varint(page, place)
        row_id, place = _varint(page, place)
        if size > PAYLOAD_BYTES_MAX:
            raise ValueError("a row is too large")
        largest = self._usable - 35
        least = (self._usable - 12) * 32 // 255 - 23
        local = least + (size - least) % (self._usable - 4)
        local = size if size <= largest else local if local <= largest else least
        payload = bytearray(page[place : place + local])
        following = int.from_bytes(page[place + local : place + local + 4], "big")
        read: set[int] = set()
        while len(payload) < size:
            more, _ = self._page(following) if following and following not in read else (b"", 0)
            if not more:
                raise ValueError("a part of the row is missing")
            read.add(following)
            following = int.from_bytes(more[:4], "big")
            payload += more[4 : self._usable][: size - len(payload)]
        return row_id - (1 << 64 if row_id >> 63 else 0), bytes(payload)


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = 0
    for count in range(8):
        byte = data[place + count]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:  # noqa: PLR2004 - the bit that says that another byte follows
            return value, place + count + 1
    return value << 8 | data[place + 8], place + 9


def _record(payload: bytes) -> Cells:
    end, place = _varint(payload, 0)
    at, cells = end, []
    while place < end:
        kind, place = _varint(payload, place)
        size = _INTEGERS.get(kind, 8 if kind == 7 else max(kind - 12, 0) // 2)  # noqa: PLR2004
        data = payload[at : at + size]
        if len(data) != size:
            raise ValueError("a row ends early")
        at += size
        cells.append(_cell(kind, data))
    return tuple(cells)


def _cell(kind: int, data: bytes) -> object:
    if kind in _INTEGERS:
        return int.from_bytes(data, "big", signed=True)
    if kind >= 12:  # noqa: PLR2004 - text and bytes
        return data.decode() if kind % 2 else data
    return {0: None, 7: data and struct.unpack(">d", data)[0], 8: 0, 9: 1}[kind]
