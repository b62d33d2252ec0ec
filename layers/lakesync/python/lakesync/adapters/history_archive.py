"""The archive of a `Lifecycle`: the history of tables as objects of a bucket, kept for ever.

    FOLDER/GATEWAY/TABLE/archive/AFTER-LAST.json.gz              the deltas of the commits in
                                                                 (AFTER, LAST]
    FOLDER/GATEWAY/TABLE/archive/AFTER-LAST.VERSION-….json.gz    what an erasure left of them
    FOLDER/GATEWAY/TABLE/archive/index-VERSION.json              which of both are read since then

A file is named by its range of commits and never changes. A repeated step puts the same file again,
and concurrent writers put files that agree on the commits that they share. The archive has no rows;
the database has them. The end of the last file is the table's mark. If a file does not begin where
another ends, history is missing; reading across such a gap is an error. Which files are read, and
how they are replaced: `archive_index`.

Rows are erased, and the beginning is forgotten, in three steps; all other deltas stay:

    1. files that have the rows are written anew    under names that nobody reads yet
    2. the next index is put                        from now on it names these
    3. what they replace is removed                 by this process, or by who comes next

This is done for so many files as there is time for; the index says how far it came. Erased deltas
leave their places free, so all others keep theirs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, Self, TypeVar

from lakesync.adapters.archive_index import (
    ArchiveFolder,
    archive_lines,
    archived,
    archived_in,
    lines_without,
)
from lakesync.adapters.batches import delta_page
from lakesync.adapters.database import (
    ORDINAL_END,
    Inserted,
    PlacedDelta,
    Position,
    check_history,
    missing_batch,
)
from lakesync.core.deliveries import rows_name
from lakesync.errors import AdapterTimedOut, Contention, CursorExpired, LakeSyncError, NotFound
from lakesync.result import Err, Ok

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from lakesync.adapters.archive_index import ArchiveFile, Contents, Index
    from lakesync.adapters.database import DeltaPage, TableBatch
    from lakesync.adapters.lake.adapter import LakeAdapter
    from lakesync.core.clock import Stamp
    from lakesync.result import Result

T = TypeVar("T")

_READS_MAX: Final = 5


class HistoryArchive:
    """One gateway's history in one bucket.

    Args:
        objects: the bucket.
        prefix: the prefix of all keys; empty, or ending with a slash.
        gateway: the gateway's id.
    """

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
        """Close the connection of objects that have one."""
        close = getattr(self._objects, "close", None)
        if close is not None:
            close()

    def __enter__(self) -> Self:
        """Use it."""
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
    """Return a file's bytes."""
    try:
        return folder.body(file)
    except NotFound as error:
        raise Contention("another process just changed the archive", retry_after_s=1) from error
