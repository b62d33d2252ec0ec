"""The repository's own files, for tests that read them."""

from __future__ import annotations

import ast
import functools
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIBRARY = ROOT / "layers" / "lakesync" / "python"
PRODUCT = ("layers", "functions", "glue_jobs", "stepfunctions")
"""What is deployed or installed; the rest tests, measures or documents it."""


@functools.cache
def tracked() -> tuple[Path, ...]:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    paths = (ROOT / name for name in listed.stdout.split("\0") if name)
    return tuple(path for path in paths if path.is_file())


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@dataclass(frozen=True)
class Module:
    name: str
    """From the root of the repository."""
    text: str

    @functools.cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def dotted(self) -> str:
        """Its name in an import; for modules of the library."""
        path = (ROOT / self.name).relative_to(LIBRARY).with_suffix("")
        parts = path.parts[:-1] if path.name == "__init__" else path.parts
        return ".".join(parts)


@functools.cache
def modules(*folders: str) -> tuple[Module, ...]:
    """Return the tracked Python files under some folders; generated ones are left out."""
    return tuple(module for module in _all_modules() if module.name.startswith(folders))


@functools.cache
def _all_modules() -> tuple[Module, ...]:
    """Return one `Module` for each file, so that a file is parsed once for all tests."""
    return tuple(
        Module(name_of(path), path.read_text("utf-8"))
        for path in tracked()
        if path.suffix == ".py" and not path.name.endswith("_pb2.py")
    )


def product_modules() -> tuple[Module, ...]:
    return modules(*(f"{folder}/" for folder in PRODUCT))


def library_modules() -> tuple[Module, ...]:
    return modules(f"{name_of(LIBRARY)}/")


def imported(module: Module) -> set[str]:
    names = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names
