"""Jars from Maven's central repository: fetched once by the Ivy inside PySpark, and checked."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING
from xml.sax.saxutils import quoteattr

from tools.local_stack import paths
from tools.local_stack.errors import LocalStackError
from tools.local_stack.java import java
from tools.local_stack.java_network import network_options

if TYPE_CHECKING:
    from pathlib import Path

# The sections of requirements/jars.lock.
SPARK_S3 = "spark-s3"
SPARK_ICEBERG = "spark-iceberg"
SPARK_4_S3 = "spark-4-s3"
SPARK_4_ICEBERG = "spark-4-iceberg"
DYNAMODB_LOCAL = "dynamodb-local"
ICEBERG_REST = "iceberg-rest"
NESSIE = "nessie"

LOCK = paths.ROOT / "requirements" / "jars.lock"
# Central is Ivy's own default. The lock file lists every file that is needed and its hash, so
# nothing is resolved: no descriptors, no checksums from the server, a tenth of the requests.
_SETTINGS = """<ivysettings>
  <property name="ivy.checksums" value=""/>
  <settings defaultResolver="central"/>
  <caches defaultCacheDir={cache}/>
  <resolvers>
    <ibiblio name="central" m2compatible="true" usepoms="false" useMavenMetadata="false"/>
  </resolvers>
</ivysettings>
"""
_MODULE = """<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="lakesync" module="jars"/>
  <dependencies>{dependencies}</dependencies>
</ivy-module>
"""
_DEPENDENCY = (
    '<dependency org="{0.group}" name="{0.name}" rev="{0.version}" transitive="false">'
    "{1}</dependency>"
)
_ARTEFACT = '<artifact name="{0.name}" type="{0.extension}" ext="{0.extension}"{0.classified}/>'


@dataclass(frozen=True)
class Artefact:
    """One file of the central repository."""

    group: str
    name: str
    version: str
    extension: str
    sha256: str
    classifier: str = ""
    """Which of several files under the same name and version; empty for the one without."""

    @property
    def file_name(self) -> str:
        """Its name on disk."""
        which = f"-{self.classifier}" if self.classifier else ""
        return f"{self.name}-{self.version}{which}.{self.extension}"

    @property
    def classified(self) -> str:
        """What Ivy is told of the classifier."""
        return f' m:classifier="{self.classifier}"' if self.classifier else ""


def ensure_jars(section: str) -> list[Path]:
    """The files of a section of the lock, fetched if this machine has not got them yet.

    Raises:
        LocalStackError: they cannot be fetched, or are not what the lock says.
    """
    artefacts = locked(LOCK.read_text(), section)
    folder = paths.JARS / section
    files = [folder / artefact.file_name for artefact in artefacts]
    stamp = folder / ".stamp"
    wanted = repr(artefacts)
    paths.JARS.mkdir(parents=True, exist_ok=True)
    with (paths.JARS / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        kept = stamp.exists() and stamp.read_text() == wanted
        if not (kept and all(file.exists() for file in files)):
            print(f"jars: fetching {section} …", flush=True)
            shutil.rmtree(folder, ignore_errors=True)
            _retrieve(artefacts, folder)
            for artefact in artefacts:
                _check(artefact, folder / artefact.file_name)
            stamp.write_text(wanted)
    return files


def locked(text: str, section: str) -> list[Artefact]:
    """The artefacts that a lock file lists under `[section]`."""
    _, _, rest = text.partition(f"\n[{section}]\n")
    lines = rest.partition("\n[")[0].split("\n")
    return [_artefact(*line.split()) for line in lines if line.strip()]


def _artefact(coordinates: str, sha256: str) -> Artefact:
    group, name, version, extension, *classifier = coordinates.split(":")
    return Artefact(group, name, version, extension, sha256, *classifier)


def _retrieve(artefacts: list[Artefact], folder: Path) -> None:
    """Let Ivy put the artefacts into `folder`."""
    work = paths.JARS / ".work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    (work / "settings.xml").write_text(_SETTINGS.format(cache=quoteattr(str(work / "cache"))))
    modules: dict[tuple[str, str, str], list[Artefact]] = {}
    for one in artefacts:  # Ivy takes of a module what it is told first
        modules.setdefault((one.group, one.name, one.version), []).append(one)
    dependencies = "".join(
        _DEPENDENCY.format(files[0], "".join(map(_ARTEFACT.format, files)))
        for files in modules.values()
    )
    (work / "ivy.xml").write_text(_MODULE.format(dependencies=dependencies))
    ivy = next((paths.PACKAGES / "pyspark" / "jars").glob("ivy-*.jar"))
    answer = subprocess.run(
        [
            java(), *network_options(), "-jar", str(ivy),
            "-settings", str(work / "settings.xml"), "-ivy", str(work / "ivy.xml"),
            "-retrieve", f"{folder}/[artifact]-[revision](-[classifier]).[ext]",
        ],
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    shutil.rmtree(work, ignore_errors=True)
    # Ivy may end with 0 although it found nothing, so the files themselves are looked for.
    missing = [a.file_name for a in artefacts if not (folder / a.file_name).exists()]
    if answer.returncode or missing:
        log = paths.JARS / "ivy.log"
        log.write_text(answer.stdout + answer.stderr)
        raise LocalStackError(
            "connect this machine to Maven's central repository (or free some disk) and run the "
            f"same command again: {missing[0] if missing else 'Ivy'} was not fetched, see {log}."
        )


def _check(artefact: Artefact, file: Path) -> None:
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if digest != artefact.sha256:
        raise LocalStackError(
            f"find out why {artefact.file_name} changed before you write {digest} "
            "into requirements/jars.lock: its SHA-256 is not the locked one."
        )
