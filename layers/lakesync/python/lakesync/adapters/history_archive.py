"""The archive of a `Lifecycle`: the history of tables as objects of a bucket, kept for ever.

    FOLDER/GATEWAY/TABLE/archive/AFTER-LAST.json.gz              the deltas of the commits in
                                                                 (AFTER, LAST]
    FOLDER/GATEWAY/TABLE/archive/AFTER-LAST.VERSION-….json.gz    what an erasure left of them
    FOLDER/GATEWAY/TABLE/archive/index-VERSION.json              which of both are read since then

A file is named by its range of commits and never changes. A repeated step puts the same file again,
and concurrent writers put files that agree on the commits that they share. The archive has no rows;
the database has them. The end of the last file is the table's mark. If a file does not begin where
another ends, history is missing; reading across such a gap is an error. Which files are read, and
how they are replaced: `Index`.

Rows are erased, and the beginning is forgotten, in three steps; all other deltas stay:

    1. files that have the rows are written anew    under names that nobody reads yet
    2. the next index is put                        from now on it names these
    3. what they replace is removed                 by this process, or by who comes next

This is done for so many files as there is time for; the index says how far it came. Erased deltas
leave their places free, so all others keep theirs.

A line of a file is a commit: ``[stamp, records]``, or ``[stamp, records, places]`` where deltas of
it were erased. The others keep their places, so that a reader in the middle of a commit continues.

Rules of the index
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
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple, Self, TypeVar
from uuid import uuid4

from lakesync.adapters.database import ORDINAL_END, Inserted, PlacedDelta, Position
from lakesync.adapters.lake.adapter import file_of, lines_in
from lakesync.adapters.ledger_database import check_history, delta_page, missing_batch
from lakesync.core.config import WRITES, check_format, known
from lakesync.core.deliveries import rows_name
from lakesync.errors import AdapterTimedOut, Contention, CursorExpired, LakeSyncError, NotFound
from lakesync.result import Err, Ok
from lakesync.wire.records import decode_records, encode_records

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from lakesync.adapters.database import DeltaPage, TableBatch
    from lakesync.adapters.lake.adapter import LakeAdapter
    from lakesync.core.clock import Stamp
    from lakesync.result import Result

T = TypeVar("T")

_READS_MAX: Final = 5


class HistoryArchive:
    """One gateway's history in one bucket, below a prefix that is empty or ends with a slash."""

    def __init__(self, objects: LakeAdapter, prefix: str, gateway: str) -> None:
        self._objects = objects
        self._prefix = f"{prefix}{gateway.replace('/', '.')}/"

    def mark(self, table: str) -> Result[Stamp, LakeSyncError]:
        """Return the commit up to which a table's history is archived; 0 before the first."""
        return _answered(lambda: self._folder(table).contents().mark)

    def insert_deltas(self, batch: TableBatch) -> Result[Inserted, LakeSyncError]:
        """Take a batch of history. Safe to repeat, and to kill: it is one object.

        What of it was erased after it was read does not come back.

        Errors: Conflict, if a batch before this one is missing; see `begin_anew`.
        """

        def work() -> Inserted:
            folder = self._folder(batch.table)
            mark = folder.contents().mark
            if mark >= batch.last:
                return Inserted()
            if mark < batch.after:
                raise missing_batch(batch, mark)
            fresh = [one for one in batch.deltas if one.position.commit > mark]
            file = archived(mark, batch.last)
            is_new = folder.put(file, fresh)
            is_kept = file.name not in folder.sweep()
            return Inserted(len(fresh) if is_new and is_kept else 0)

        return _answered(work)

    def sweep(self, table: str) -> Result[None, LakeSyncError]:
        """Remove objects that nobody reads, which killed processes left. Safe to repeat."""
        return _answered(lambda: self._folder(table).sweep()).map(lambda _: None)

    def erase_rows(
        self,
        table: str,
        row_ids: Collection[str],
        until: Stamp,
        has_time: Callable[[], bool] = lambda: True,
    ) -> Result[bool, LakeSyncError]:
        """Remove the deltas of some rows up to a commit; False if time ran out. Safe to repeat.

        All other deltas stay, and files without these rows are not touched. It continues where it
        was killed. Removed deltas do not come back, even from concurrent archiving, which continues
        behind the commit.

        Errors: Contention, if the archive was changed otherwise at the same time.
        """
        return _answered(lambda: erase_rows(self._folder(table), row_ids, until, has_time))

    def begin_anew(self, table: str, at: Stamp) -> Result[None, LakeSyncError]:
        """Continue behind a commit, though the history before it is missing and lost everywhere."""
        return _answered(lambda: self._folder(table).put(archived(at, at), ())).map(lambda _: None)

    def query_deltas_since(
        self, table: str, since: Position, deltas_max: int
    ) -> Result[DeltaPage, LakeSyncError]:
        """Return a table's history behind a position, as far as it is archived.

        Errors: CursorExpired, if some of it is missing.
        """
        return _answered(lambda: self._read(table, since, deltas_max, keeps_rows=False))

    def query_deltas_to_follow(
        self, table: str, since: Position, deltas_max: int
    ) -> Result[DeltaPage, LakeSyncError]:
        """Return the history behind a position for a reader that keeps the rows.

        Errors: CursorExpired, if some of it is missing; also the deletion of a row that was erased,
            and that the reader may have.
        """
        return _answered(lambda: self._read(table, since, deltas_max, keeps_rows=True))

    def forget_history(self, table: str, until: Stamp) -> Result[None, LakeSyncError]:
        """Remove a table's deltas up to a commit; the mark stays. Safe to repeat, and to kill."""
        return _answered(lambda: forget(self._folder(table), until))

    def close(self) -> None:
        close = getattr(self._objects, "close", None)
        if close is not None:
            close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self, table: str, since: Position, deltas_max: int, *, keeps_rows: bool) -> DeltaPage:
        folder = self._folder(table)
        for _ in range(_READS_MAX):
            contents = folder.contents()
            if keeps_rows:
                check_history(table, since, contents.index.erased)
            try:
                read = _deltas(folder, contents, since, deltas_max)
            except NotFound:
                continue  # a file was just replaced
            if read is None:
                raise CursorExpired(
                    f"the archive of {table} lacks history behind {since.commit}; read its rows, "
                    "then its history"
                )
            return delta_page(read, since, deltas_max)
        raise AdapterTimedOut("others keep changing the same archive; repeat the operation")

    def _folder(self, table: str) -> ArchiveFolder:
        return ArchiveFolder(self._objects, f"{self._prefix}{table}/archive/")


def _deltas(
    folder: ArchiveFolder, contents: Contents, since: Position, deltas_max: int
) -> list[PlacedDelta] | None:
    """Return more deltas behind a position than wanted, if there are; None if some are missing."""
    files, mark, at = contents.files, contents.mark, since.commit - 1
    if since.commit < mark and not _covers(files, since.commit):
        return None
    if since.commit <= mark and not _has_rest(files, since):
        return None
    read: list[PlacedDelta] = []
    while len(read) <= deltas_max:
        file = _next(files, at, since.commit)
        if file is None:
            break
        read += [
            one for one in archived_in(file, folder.body(file))
            if one.position.commit > at and one.position > since
        ]  # fmt: skip
        at = file.last
    is_lacking = not read and max(at, since.commit) < mark
    return None if is_lacking else read


def _covers(files: Sequence[ArchiveFile], commit: Stamp) -> bool:
    return any(file.after <= commit < file.last for file in files)


def _has_rest(files: Sequence[ArchiveFile], since: Position) -> bool:
    """Return whether the rest of a commit is archived for a reader that has read part of it."""
    is_read = since >= Position(since.commit, ORDINAL_END) or not since.commit
    return is_read or any(file.after < since.commit <= file.last for file in files)


def _next(files: Sequence[ArchiveFile], at: Stamp, since: Stamp) -> ArchiveFile | None:
    """Return the file that continues behind a commit and reaches farthest; others repeat it.

    The first file that is read may begin or end at the last commit that the reader has seen.
    """
    for begin in (at, max(at, since)):
        fits = [file for file in files if file.after <= begin and file.last > begin]
        if fits:
            return max(fits, key=lambda file: file.last)
    return None


def _answered(work: Callable[[], T]) -> Result[T, LakeSyncError]:
    try:
        return Ok(work())
    except LakeSyncError as error:
        return Err(error)


# --- erasing and forgetting -----------------------------------------------------------------------


STEP_FILES: Final = 200
"""Files of an archive that an erasure looks at before it says how far it came."""


def erase_rows(
    folder: ArchiveFolder, row_ids: Collection[str], until: Stamp, has_time: Callable[[], bool]
) -> bool:
    """Remove the deltas of rows up to a commit from a table's archive; False if time ran out.

    Raises:
        Contention: another process changed the archive otherwise; what was done stays done.
    """
    name, rows = rows_name(row_ids), frozenset(row_ids)
    folder.sweep()  # of one that was killed
    while has_time():
        contents = folder.contents()
        at = contents.index.erasing.get(name, 0)
        due = [file for file in contents.files if file.last > at]
        looked_at, replaced = _looked_at(folder, contents, due, rows, until, has_time)
        erasing = {one: at for one, at in contents.index.erasing.items() if one != name}
        is_last = len(looked_at) == len(due)
        if not is_last:
            erasing[name] = looked_at[-1].last
        erased = max(contents.index.erased, until)
        files = [replaced.get(file, file) for file in contents.files]
        index = _next_index(contents, files, max(contents.mark, until))
        index = replace(index, erased=erased, erasing=erasing)
        if replace(index, version=contents.index.version) != contents.index:
            folder.follow(contents.index, index)
        if is_last:
            return True
    return False


def forget(folder: ArchiveFolder, until: Stamp) -> None:
    """Remove the deltas of a table's archive up to a commit. Safe to repeat, and to kill.

    Raises:
        Contention: another process changed the archive otherwise.
    """
    folder.sweep()
    contents = folder.contents()
    end = min(until, contents.mark)
    files = []
    for file in contents.files:
        if file.last > end and (file.after < end or file.begins_earlier):
            left = file._replace(after=max(file.after, end))
            lines = archive_lines(list(archived_in(left, _body(folder, file))))
            files.append(folder.rewrite(left, lines, contents.index))
        elif file.last > end:
            files.append(file)
    if files != list(contents.files):
        folder.follow(contents.index, _next_index(contents, files, contents.mark))


def _looked_at(
    folder: ArchiveFolder,
    contents: Contents,
    due: Sequence[ArchiveFile],
    rows: frozenset[str],
    until: Stamp,
    has_time: Callable[[], bool],
) -> tuple[list[ArchiveFile], dict[ArchiveFile, ArchiveFile]]:
    """Write files anew as long as there is time; returns those looked at, and the replaced ones.

    Files that end at the same commit are one step, as the index says by commits how far it came.
    """
    looked_at: list[ArchiveFile] = []
    replaced: dict[ArchiveFile, ArchiveFile] = {}
    for file in due:
        is_cut = bool(looked_at) and file.last > looked_at[-1].last
        if is_cut and (len(looked_at) >= STEP_FILES or not has_time()):
            break
        lines = lines_without(file, _body(folder, file), rows, until)
        if lines is not None:
            replaced[file] = folder.rewrite(file, lines, contents.index)
        looked_at.append(file)
    return looked_at, replaced


def _next_index(contents: Contents, files: Sequence[ArchiveFile], until: Stamp) -> Index:
    before = contents.index
    names = tuple(file.name for file in files)
    return replace(before, version=before.version + 1, until=until, files=names)


def _body(folder: ArchiveFolder, file: ArchiveFile) -> bytes:
    try:
        return folder.body(file)
    except NotFound as error:
        raise Contention("another process just changed the archive", retry_after_s=1) from error


# --- the index ------------------------------------------------------------------------------------


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
    return ArchiveFile(last, after, f"{after:020d}-{last:020d}.json.gz")


def rewritten(file: ArchiveFile, version: int) -> ArchiveFile:
    """Return the file that replaces another in an index; nobody else writes one of its name."""
    name = f"{file.after:020d}-{file.last:020d}.{version:012d}-{uuid4().hex}.json.gz"
    return ArchiveFile(file.last, file.after, name, version)


def file_named(name: str) -> ArchiveFile | None:
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
    """The objects of one table's archive."""

    def __init__(self, objects: LakeAdapter, prefix: str) -> None:
        self._objects = objects
        self._prefix = prefix

    def contents(self) -> Contents:
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
