"""What belongs to a table's archive: what was archived, and what an index says instead.

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

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Final

from lakesync.adapters.objects.archive_files import (
    ArchiveFile,
    archive_lines,
    archived,
    archived_in,
    file_named,
    rewritten,
)
from lakesync.adapters.objects.lines import file_of
from lakesync.core.stored import WRITES, check_format, known
from lakesync.errors import AdapterTimedOut, Contention, NotFound

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lakesync.adapters.database import PlacedDelta
    from lakesync.adapters.lake.adapter import LakeAdapter
    from lakesync.core.clock import Stamp

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
