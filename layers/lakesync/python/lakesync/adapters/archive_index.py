"""The files of a table's archive: what was archived, and what an index says instead.

A line of a file is a commit: ``[stamp, records]``, or ``[stamp, records, places]`` where deltas of
it were erased. The others keep their places, so that a reader in the middle of a commit continues.

Rules of this module
    1. As long as nothing was erased there is no index, and the archive is the files of archiving.
    2. Up to the commit of its newest index, the archive is the files that this index names. Beyond,
       it is the files of archiving, with their commits beyond. Nobody reads anything else.
    3. Files never change. One that replaces others has a name that nobody uses again, and says for
       which version of the index it was written; it is read once that index is put.
    4. Only one process can put the index of a version. The names of old ones stay: who slept finds
       that his version was put.
    5. What is not read any more is removed by who comes next: files of archiving that the index
       does not name, which late archiving has put, and files that were written for its version or
       an older one. Who archives looks for it before and after putting a file, each time.

Laws E9 and P15: ``docs/spec``.
"""

from __future__ import annotations

import base64
import json
import re
from dataclasses import asdict, dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import uuid4

from lakesync.adapters.database import PlacedDelta, Position
from lakesync.adapters.objects import file_of, lines_in
from lakesync.core.config import WRITES, check_format, known
from lakesync.errors import AdapterTimedOut, Contention, NotFound
from lakesync.wire.records import decode_records, encode_records

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from lakesync.adapters.lake.adapter import LakeAdapter
    from lakesync.core.clock import Stamp

# --- files ----------------------------------------------------------------------------------------


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


# --- the index ------------------------------------------------------------------------------------


_INDEX: Final = "index-"
_GZIP: Final = "application/gzip"
_JSON: Final = "application/json"
_REPLACED: Final = b"{}"
"""The text of an index that is no longer in force."""
_TRIES_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class Index:
    """The files of an archive up to a commit."""

    version: int = 0
    """0 without an index."""
    until: Stamp = 0
    erased: Stamp = 0
    """Up to here rows were erased: who read an earlier commit may have one of them."""
    files: tuple[str, ...] = ()
    erasing: Mapping[str, Stamp] = field(default_factory=dict)
    """How far erasures that are under way have come, each by its name."""


@dataclass(frozen=True, slots=True)
class Contents:
    """What an archive consists of."""

    index: Index
    files: tuple[ArchiveFile, ...]
    """In the order of their ends."""
    unread: tuple[str, ...]
    """The names of files that nobody reads any more."""

    @property
    def mark(self) -> Stamp:
        """The commit up to which history is archived."""
        return max(self.index.until, self.files[-1].last if self.files else 0)


class ArchiveFolder:
    """The objects of one table's archive.

    Args:
        objects: the bucket.
        prefix: the prefix of their keys.
    """

    def __init__(self, objects: LakeAdapter, prefix: str) -> None:
        self._objects = objects
        self._prefix = prefix

    def contents(self) -> Contents:
        """Return the current contents of the archive."""
        for has_tries in (*[True] * _TRIES_MAX, False):
            # Indexes are listed behind the files: what this one names was there before.
            names = [one.removeprefix(self._prefix)
                     for one in self._objects.list_objects(self._prefix)]  # fmt: skip
            newest = max((name for name in names if name.startswith(_INDEX)), default="")
            body = self._objects.get_object(self._prefix + newest) if newest else b""
            index = Index() if body in {b"", _REPLACED} else _decoded(body)
            is_whole = body != _REPLACED and frozenset(names).issuperset(index.files)
            if is_whole or (not has_tries and body != _REPLACED):
                return _contents(index, names)
        raise AdapterTimedOut("others keep changing the same archive; repeat the operation")

    def body(self, file: ArchiveFile) -> bytes:
        """Return a file's bytes.

        Raises:
            NotFound: another process replaced it.
        """
        return self._objects.get_object(self._prefix + file.name)

    def put(self, file: ArchiveFile, deltas: Sequence[PlacedDelta]) -> bool:
        """Put a file of archiving, unless it exists; returns whether it was put."""
        body = file_of(archive_lines(deltas))
        return self._objects.put_new_object(self._prefix + file.name, body, _GZIP)

    def rewrite(self, file: ArchiveFile, lines: Sequence[bytes], before: Index) -> ArchiveFile:
        """Put the file that replaces another in the index after the given one."""
        new = rewritten(file, before.version + 1)
        self._objects.put_object(self._prefix + new.name, file_of(lines), _GZIP)
        return new

    def follow(self, before: Index, index: Index) -> None:
        """Put the index after a given one, and remove what is not read any more.

        Raises:
            Contention: another process was first; the archive is not changed.
        """
        if not self._objects.put_new_object(self._key(index), _encoded(index), _JSON):
            raise Contention("another process changed the archive first", retry_after_s=1)
        if before.version:
            self._objects.put_object(self._key(before), _REPLACED, _JSON)
        self.sweep()

    def sweep(self) -> set[str]:
        """Remove what is not read any more; returns the names. Safe to repeat, and to kill."""
        removed: set[str] = set()
        for _ in range(_TRIES_MAX):
            contents = self.contents()
            early = [file for file in contents.files if file.begins_earlier]
            if not early and not contents.unread:
                break
            for file in early:
                self._put_rest(file)
            doomed = {*contents.unread, *(file.name for file in early)}
            self._objects.delete_objects([self._prefix + name for name in sorted(doomed)])
            removed |= doomed
        return removed

    def _put_rest(self, file: ArchiveFile) -> None:
        """Put the part of a file that is read, as a file of its own."""
        try:
            rest = list(archived_in(file, self.body(file)))
        except NotFound:
            return  # another process has done it
        self.put(archived(file.after, file.last), rest)

    def _key(self, index: Index) -> str:
        return f"{self._prefix}{_INDEX}{index.version:012d}.json"


def _contents(index: Index, names: Sequence[str]) -> Contents:
    """Say which files are read: rule 2. A named one that somebody took away is a gap."""
    named = frozenset(index.files).intersection(names)
    files = [file for name in sorted(named) if (file := file_named(name))]
    unread: list[str] = []
    for file in filter(None, map(file_named, names)):
        if file.name in named or file.version > index.version:
            continue
        if file.version or (index.version and file.last <= index.until):
            unread.append(file.name)
        else:
            files.append(file._replace(after=max(file.after, index.until)))
    return Contents(index, tuple(sorted(files)), tuple(unread))


def _encoded(index: Index) -> bytes:
    return json.dumps({"format": WRITES} | asdict(index), separators=(",", ":")).encode()


def _decoded(body: bytes) -> Index:
    stored = json.loads(body)
    check_format(stored.pop("format"), "an archive's index")
    return known(Index, stored | {"files": tuple(stored["files"])})
