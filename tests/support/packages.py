"""Packages with entry points, installed for one test: as pip leaves them, in a folder."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import pytest


def install(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    package: str,
    code: str,
    entry_points: Mapping[str, Mapping[str, str]],
) -> None:
    """Install a package of one module.

    Args:
        entry_points: by group, the names with what each means in the module.
    """
    module = package.replace("-", "_")
    where = folder / f"of_{module}"
    about = where / f"{module}-1.0.dist-info"
    about.mkdir(parents=True)
    (where / f"{module}.py").write_text(code, "utf-8")
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = [
        line
        for group, named in entry_points.items()
        for line in (f"[{group}]", *(f"{name} = {module}:{what}" for name, what in named.items()))
    ]
    (about / "entry_points.txt").write_text("\n".join(lines) + "\n")
    monkeypatch.syspath_prepend(where)
    monkeypatch.delitem(sys.modules, module, raising=False)
    importlib.invalidate_caches()
