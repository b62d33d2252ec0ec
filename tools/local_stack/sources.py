"""Whether what `sam build` reads has changed."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_INPUTS = ("template.yaml", "samconfig.toml", "pyproject.toml", "functions", "layers", "glue_jobs")
_MORE_INPUTS = ("stepfunctions", "requirements", "statemachines")
_IGNORED = frozenset({"__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache"})
_PARAMETERS_SECTION = re.compile(r"^Parameters:\n((?:[ \t#].*\n|\n)+)", re.MULTILINE)
_SCRIPT = re.compile(r"ScriptLocation: +(?!s3:)([\w./-]+)\s*$", re.MULTILINE)
_PARAMETER = re.compile(r"^  (\w+):", re.MULTILINE)


def fingerprint(project: Path) -> str:
    """A hash of every file that the build may read: paths and contents, not times."""
    digest = hashlib.sha256()
    for path in sorted(_files(project)):
        digest.update(str(path.relative_to(project)).encode() + b"\0")
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def declared_parameters(template: str) -> set[str]:
    """The names under `Parameters` of a template: CloudFormation refuses any other."""
    section = _PARAMETERS_SECTION.search(template)
    return set(_PARAMETER.findall(section[1])) if section else set()


def build_outputs(project: Path) -> list[Path]:
    """What `sam build` leaves: its template, and the local scripts that the template names."""
    scripts = _SCRIPT.findall((project / "template.yaml").read_text())
    return [project / ".aws-sam" / "build" / "template.yaml", *(project / name for name in scripts)]


def _files(project: Path) -> list[Path]:
    files = []
    for name in (*_INPUTS, *_MORE_INPUTS):
        root = project / name
        files += [root] if root.is_file() else [p for p in root.rglob("*") if p.is_file()]
    return [p for p in files if not _IGNORED.intersection(p.parts) and p.suffix != ".pyc"]
