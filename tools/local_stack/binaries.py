"""The programs of PostgreSQL and MariaDB: fetched as jars, unpacked once per machine."""

from __future__ import annotations

import fcntl
import platform
import shutil
import tarfile
import zipfile
from typing import TYPE_CHECKING

from tools.local_stack import paths
from tools.local_stack.errors import LocalStackError
from tools.local_stack.jars import LOCK, ensure_jars, locked

if TYPE_CHECKING:
    from pathlib import Path

# The beginnings of their sections in requirements/jars.lock.
POSTGRES = "postgres"
MARIADB = "mariadb"

_SERVERS = {POSTGRES: "bin/postgres", MARIADB: "bin/mariadbd"}


def ensure_binaries(name: str) -> Path:
    """The folder that holds the `bin` of a database, made if this machine has not got it yet.

    Raises:
        LocalStackError: there is none for this machine, or it cannot be fetched.
    """
    jar = ensure_jars(section(name, platform.system(), platform.machine()))[0]
    # Beside the jar, so that it goes when another version is locked.
    folder = jar.parent / "unpacked"
    with (paths.JARS / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder.exists() and list(folder.rglob(_SERVERS[name]))):
            print(f"{name}: unpacking {jar.name} …", flush=True)
            shutil.rmtree(folder, ignore_errors=True)
            draft = jar.parent / "draft"
            shutil.rmtree(draft, ignore_errors=True)
            _unpack(jar, draft)
            draft.rename(folder)
    return next(folder.rglob(_SERVERS[name])).parent.parent


def section(name: str, system: str, machine: str) -> str:
    """The section of the lock that holds a database for an operating system and a processor.

    Raises:
        LocalStackError: there is none.
    """
    title = f"{name}-{system}-{machine}".lower()
    if not locked(LOCK.read_text(), title):
        raise LocalStackError(
            "run this on Linux (x86_64) or on a Mac (arm64): Maven's central repository has no "
            f"{name} for {system} ({machine})."
        )
    return title


def _unpack(jar: Path, folder: Path) -> None:
    with zipfile.ZipFile(jar) as outer:
        outer.extractall(folder)  # noqa: S202 - the lock names its hash
    for archive in folder.glob("*.txz"):
        with tarfile.open(archive) as inner:
            # Python 3.11.2, which Debian 12 has, knows no filters.
            inner.extraction_filter = getattr(tarfile, "data_filter", None)
            inner.extractall(folder)  # noqa: S202 - the lock names its hash
        archive.unlink()
    # A jar keeps no permissions.
    for program in folder.rglob("bin/*"):
        program.chmod(0o755)
