"""The files of an archive: their names, and the deltas in them. Pure.

A line is a commit: ``[stamp, records]``, or ``[stamp, records, places]`` where deltas of it were
erased. The others keep their places, so that a reader in the middle of a commit continues.
"""

from __future__ import annotations

import base64
import json
import re
from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import uuid4

from lakesync.adapters.database import PlacedDelta, Position
from lakesync.adapters.objects.lines import lines_in
from lakesync.wire.records import decode_records, encode_records

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from lakesync.core.clock import Stamp

_NAME: Final = re.compile(r"([0-9]{20})-([0-9]{20})(?:\.([0-9]{12})-[0-9a-f]{32})?\.json\.gz")
_SOUGHT_MAX: Final = 50
"""Row ids that are looked for in the bytes of a commit; for more, it is decoded."""


class ArchiveFile(NamedTuple):
    """A file: it has the commits in (after, last], and no other is read from it.

    An empty range, with after equal to last, only marks where history begins.
    """

    last: Stamp
    after: Stamp
    name: str
    version: int = 0
    """The index that it was written for; 0 for a file that was archived."""

    @property
    def begins_earlier(self) -> bool:
        """Whether the object has earlier commits too, which the archive has in other files."""
        return not self.name.startswith(f"{self.after:020d}-")


def archived(after: Stamp, last: Stamp) -> ArchiveFile:
    """Return a file as archiving names it."""
    return ArchiveFile(last, after, f"{after:020d}-{last:020d}.json.gz")


def rewritten(file: ArchiveFile, version: int) -> ArchiveFile:
    """Return the file that replaces another in an index; nobody else writes one of its name."""
    name = f"{file.after:020d}-{file.last:020d}.{version:012d}-{uuid4().hex}.json.gz"
    return ArchiveFile(file.last, file.after, name, version)


def file_named(name: str) -> ArchiveFile | None:
    """Return the file of a name; None if it is none of an archive's."""
    parts = _NAME.fullmatch(name)
    return ArchiveFile(int(parts[2]), int(parts[1]), name, int(parts[3] or 0)) if parts else None


def archive_lines(deltas: Sequence[PlacedDelta]) -> list[bytes]:
    """Return whole commits as a file has them."""
    return [
        _line(commit, list(placed))
        for commit, placed in groupby(deltas, key=lambda one: one.position.commit)
    ]


def archived_in(file: ArchiveFile, body: bytes) -> Iterator[PlacedDelta]:
    """Yield the deltas of a file, in order."""
    for line in lines_in(body):
        commit, deltas = _read(line)
        if commit > file.after:
            yield from deltas


def lines_without(
    file: ArchiveFile, body: bytes, row_ids: Collection[str], until: Stamp
) -> list[bytes] | None:
    """Return a file's lines without the deltas of some rows up to a commit; None if it has none.

    Every other commit is the same to the byte.
    """
    sought = [one.encode() for one in row_ids] if len(row_ids) <= _SOUGHT_MAX else []
    kept: list[bytes] = []
    is_changed = file.begins_earlier
    for line in lines_in(body):
        commit, encoded, *_ = json.loads(line)
        if commit <= file.after:
            continue
        records = base64.b64decode(encoded)
        if commit > until or (sought and not any(one in records for one in sought)):
            kept.append(line)
            continue
        _, deltas = _read(line)
        left = [one for one in deltas if one.delta.row_id not in row_ids]
        is_changed = is_changed or len(left) < len(deltas)
        if len(left) == len(deltas):
            kept.append(line)
        elif left:
            kept.append(_line(commit, left))
    return kept if is_changed else None


def _line(commit: Stamp, placed: Sequence[PlacedDelta]) -> bytes:
    records = base64.b64encode(encode_records(one.delta for one in placed)).decode()
    places = [one.position.ordinal for one in placed]
    is_whole = places == list(range(len(places)))
    return json.dumps([commit, records] if is_whole else [commit, records, places]).encode()


def _read(line: bytes) -> tuple[Stamp, list[PlacedDelta]]:
    commit, encoded, *rest = json.loads(line)
    deltas = decode_records(base64.b64decode(encoded))
    places = rest[0] if rest else range(len(deltas))
    return commit, [
        PlacedDelta(Position(commit, place), delta)
        for place, delta in zip(places, deltas, strict=True)
    ]
