"""Makes what a fresh machine lacks: the virtual environments, and a Java that Spark can use.

    tools/bootstrap.sh [dev] [emulator] [bigquery] [lambda] [sam] [java]
                       [nessie] [spark-4] [chromium]

Every environment is installed from `requirements/<name>.lock` with hashes. A stamp inside the
environment holds the lock's hash, and is written last: an interrupted run is simply done again,
and a run with nothing to do takes a fraction of a second. Standard library only: this runs first.
"""

from __future__ import annotations

import fcntl
import shutil
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tools.chromium import ensure_chromium
from tools.local_stack.errors import LocalStackError
from tools.local_stack.java import (
    JAVA_VERSIONS,
    JDK_FOLDER,
    NESSIE_JAVA_VERSIONS,
    NESSIE_JDK_FOLDER,
    java_candidates,
    java_version,
    make_own_home,
)
from tools.local_stack.paths import LOCAL, ROOT, SPARK_4, VENVS
from tools.uv import check_disk, explain, fingerprint, read, run_uv, say

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@dataclass(frozen=True)
class Environment:
    """A virtual environment, its lock file's name and what is particular about it."""

    name: str
    folder: Path
    with_pip: bool = False

    @property
    def python(self) -> Path:
        """The environment's interpreter."""
        return self.folder / "bin" / "python"

    @property
    def lock(self) -> Path:
        """The pinned requirements, with hashes."""
        return ROOT / "requirements" / f"{self.name}.lock"


ENVIRONMENTS = (
    Environment("dev", ROOT / ".venv"),
    Environment("emulator", VENVS / "emulator"),
    Environment("bigquery", VENVS / "bigquery"),
    Environment("lambda", VENVS / "lambda"),
    # `sam build` installs requirements with the pip of the interpreter that it finds beside it.
    Environment("sam", VENVS / "sam", with_pip=True),
)


def main(names: list[str]) -> int:
    """Make the named parts, or all but what only some tests need: the last three."""
    environments = [environment.name for environment in ENVIRONMENTS]
    known = [*environments, "java", "nessie", "spark-4", "chromium"]
    unknown = sorted(set(names) - set(known))
    if unknown:
        print(
            f"error: choose from {', '.join(known)}: there is no {unknown[0]!r}.", file=sys.stderr
        )
        return 2
    try:
        LOCAL.mkdir(exist_ok=True)
        with (LOCAL / "bootstrap.lock").open("w") as lock:
            wait_for_lock(lock.fileno())
            ensure(names)
    except LocalStackError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(
            f"error: {explain(str(error), 'prepare this folder', fetches=False)}", file=sys.stderr
        )
        return 1
    except KeyboardInterrupt:
        print("\nbootstrap: interrupted; run the same command again to go on.", file=sys.stderr)
        return 130
    return 0


def ensure(names: list[str]) -> None:
    """Make the parts, one after the other."""
    for environment in ENVIRONMENTS:
        if not names or environment.name in names:
            ensure_environment(environment)
    if not names or "java" in names:
        ensure_jdk(JDK_FOLDER, JAVA_VERSIONS, make_own_home)
    if "nessie" in names:
        ensure_jdk(NESSIE_JDK_FOLDER, NESSIE_JAVA_VERSIONS)
    if "spark-4" in names:
        ensure_folder(SPARK_4)
    if "chromium" in names:
        ensure_chromium()
    if not names or "dev" in names:
        ensure_project(ENVIRONMENTS[0])


def wait_for_lock(descriptor: int) -> None:
    """Hold the lock file: two bootstraps in one folder take turns."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say("waiting for another bootstrap in this folder …")
        fcntl.flock(descriptor, fcntl.LOCK_EX)


def ensure_environment(environment: Environment) -> None:
    """Make `environment` equal to its lock file."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stamp = environment.folder / ".stamp"
    wanted = fingerprint(environment.lock, version)
    if not (environment.python.exists() and read(stamp) == wanted):
        started = time.monotonic()
        say(f"{environment.name}: installing {environment.lock.relative_to(ROOT)} …")
        stamp.unlink(missing_ok=True)
        install(environment, version)
        stamp.write_text(wanted)
        say(f"{environment.name}: ready after {time.monotonic() - started:.1f} s")


def install(environment: Environment, version: str) -> None:
    """Install the lock file into the environment, made anew when its Python is another."""
    check_disk()
    if read(environment.folder / "pyvenv.cfg").find(f"version_info = {version}.") < 0:
        seed = ["--seed"] if environment.with_pip else []
        run_uv(
            "venv", "--quiet", "--clear", *seed, "--python", sys.executable, str(environment.folder)
        )
    # `pip sync` would take away the pip that --seed put in; installing on top leaves it.
    verb = ["install"] if environment.with_pip else ["sync"]
    run_uv(
        "pip", *verb, "--quiet", "--require-hashes", "--python", str(environment.python),
        *(["-r"] if environment.with_pip else []), str(environment.lock),
    )  # fmt: skip


def ensure_project(environment: Environment) -> None:
    """Install this project itself, editable, whenever its metadata or the environment changed."""
    project = ROOT / "pyproject.toml"
    if not project.exists():
        return
    stamp = environment.folder / ".project-stamp"
    wanted = fingerprint(project, read(environment.folder / ".stamp"))
    if read(stamp) == wanted:
        return
    say(f"{environment.name}: installing the project itself, editable …")
    # The build tools are in the lock file, so that this needs no network and no isolation.
    run_uv(
        "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--offline",
        "--python", str(environment.python), "--editable", str(ROOT),
    )  # fmt: skip
    stamp.write_text(wanted)


def ensure_jdk(folder: Path, versions: range, finish: Callable[[], None] = lambda: None) -> None:
    """Install the Java whose lock file has the folder's name, unless there is one of a version."""
    if not any(java_version(java) in versions for java in java_candidates()):
        ensure_folder(folder, finish)


def ensure_folder(folder: Path, finish: Callable[[], None] = lambda: None) -> None:
    """Make a folder of packages equal to the lock file that has its name."""
    lock = ROOT / "requirements" / f"{folder.name}.lock"
    wanted = fingerprint(lock, "")
    stamp = folder / ".stamp"
    if read(stamp) == wanted:
        return
    started = time.monotonic()
    say(f"{folder.name}: installing {lock.relative_to(ROOT)} …")
    check_disk()
    shutil.rmtree(folder, ignore_errors=True)
    run_uv(
        "pip", "install", "--quiet", "--require-hashes", "--python", sys.executable,
        "--target", str(folder), "-r", str(lock),
    )  # fmt: skip
    finish()
    stamp.write_text(wanted)
    say(f"{folder.name}: ready after {time.monotonic() - started:.1f} s")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
