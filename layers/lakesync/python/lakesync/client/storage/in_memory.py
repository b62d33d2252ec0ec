"""`Client(":memory:")`: a client whose file goes when it is closed, for tests and short programs.

It is a file like any other, so every law holds until then: in the system's memory where there is
such a folder (``/dev/shm``), else among its temporary files. A program that is killed leaves it
there.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lakesync.client.storage.failures import attempt
from lakesync.client.storage.waiting import what_waits
from lakesync.errors import ValidationFailed
from lakesync.result import Ok

if TYPE_CHECKING:
    from lakesync.client.storage.file import ClientFile

MEMORY: Final = ":memory:"
"""SQLite's own name for a database that is in no file."""
_SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - the folder in it is this user's alone
_log = logging.getLogger("lakesync.client")


class MemoryFile:
    """The file of one client in memory, which lives as long as this."""

    def __init__(self) -> None:
        is_there = os.access(_SHARED_MEMORY, os.W_OK)
        try:
            folder = tempfile.mkdtemp(prefix="lakesync-", dir=_SHARED_MEMORY if is_there else None)
        except OSError as exc:
            raise ValidationFailed(
                f"there is no room for a client in memory ({exc}): give the path of a file",
                field="path",
            ) from exc
        self.path = Path(folder) / "client.db"
        self._remove = weakref.finalize(self, _removed, folder, os.getpid())

    def close(self, file: ClientFile) -> None:
        """Say what is lost with the file, close it and remove it; safe to repeat."""
        if not self._remove.alive:
            return
        waiting = attempt(lambda: what_waits(file.database.read))
        if isinstance(waiting, Ok) and waiting.value:
            _log.warning("a client in memory is closed: %s; this is lost", waiting.value)
        file.database.close()
        self._remove()


def _removed(folder: str, process: int) -> None:
    """Remove a folder, unless this is a process that was forked from its owner."""
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)
