"""Erases rows from a table's archive, and forgets its beginning; all other deltas stay.

    1. files that have the rows are written anew    under names that nobody reads yet
    2. the next index is put                        from now on it names these
    3. what they replace is removed                 by this process, or by who comes next

This is one step, of so many files as there is time for; the index says how far it came. Erased
deltas leave their places free, so all others keep theirs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from lakesync.adapters.objects.archive_files import archive_lines, archived_in, lines_without
from lakesync.core.erasure_claims import rows_name
from lakesync.errors import Contention, NotFound

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from lakesync.adapters.objects.archive_files import ArchiveFile
    from lakesync.adapters.objects.archive_index import ArchiveFolder, Contents, Index
    from lakesync.core.clock import Stamp

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
