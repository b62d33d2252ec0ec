"""Compiles every `requirements/*.in` into a lock file with hashes: `make lock`.

Pins that still fit are kept; `make lock UPGRADE=1` takes the newest of all. What is
deployed (`layer-*.in`, `job-*.in`) is held to the versions that the tests run (`dev.lock`). The
lock files name no index and no folder, so that they hold wherever packages come from.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from tools.local_stack.errors import LocalStackError
from tools.local_stack.paths import ROOT
from tools.uv import run_uv

if TYPE_CHECKING:
    from pathlib import Path

_FOLDER = ROOT / "requirements"


def compile_lock(source: Path, *, upgrade: bool) -> None:
    """Write the lock file beside its source."""
    name = source.relative_to(ROOT)
    is_constrained = source.stem.startswith(("layer-", "job-"))
    print(f"lock: {name}", flush=True)
    run_uv(
        "pip", "compile", "--quiet", "--universal", "--python-version", "3.11",
        "--generate-hashes", "--no-header", "--no-emit-index-url", "--no-emit-find-links",
        *(["--upgrade"] if upgrade else []),
        *(["--constraints", "requirements/dev.lock"] if is_constrained else []),
        "--output-file", str(name.with_suffix(".lock")), str(name),
    )  # fmt: skip


def main() -> int:
    """Compile all; `dev` first, since others are held to it."""
    sources = sorted(_FOLDER.glob("*.in"), key=lambda path: (path.stem != "dev", path.stem))
    try:
        for source in sources:
            compile_lock(source, upgrade=bool(os.environ.get("UPGRADE")))
    except LocalStackError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
