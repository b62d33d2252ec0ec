"""Files and folders of a client, which only their owner may read, whatever the umask is.

SQLite gives the files beside a database (``-wal``, ``-shm``, ``-journal``) the database's own mode.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_FILE: Final = 0o600
_FOLDER: Final = 0o700


def owner_only(path: str, flags: int) -> int:
    """Open a file, as ``opener`` of ``open``; one that is made is its owner's alone."""
    descriptor = os.open(path, flags, _FILE)
    if flags & os.O_CREAT:
        os.chmod(path, _FILE)  # noqa: PTH101 - the umask can have taken the owner's rights too
    return descriptor


@contextlib.contextmanager
def made_file(path: str | Path) -> Iterator[None]:
    """Have a file made, if there is none, before the block opens it; removed again if that fails.

    What the disk refuses is for the block to report.
    """
    is_made = False
    with contextlib.suppress(OSError, ValueError), open(path, "xb", opener=owner_only):
        is_made = True
    try:
        yield
    except BaseException:
        if is_made:
            os.unlink(path)  # noqa: PTH108 - a path as it was given
        raise


def make_folder(path: Path) -> None:
    """Make a folder; one that is there stays as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=_FOLDER)
        path.chmod(_FOLDER)


def copy_file(source: Path, target: Path) -> None:
    """Copy a file with its times, and not with who may read it."""
    with source.open("rb") as read, open(target, "wb", opener=owner_only) as written:
        shutil.copyfileobj(read, written)
    times = source.stat()
    os.utime(target, ns=(times.st_atime_ns, times.st_mtime_ns))
