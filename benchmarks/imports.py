"""How long a cold start spends importing, and how large a function is.

Measured on what is deployed: the artefacts of the last `sam build`, function and layers, in the
order of Lambda, with boto3 beside them and nothing else. Without a build, on the source tree.
``python -m benchmarks.imports`` prints the figures; ``run`` gives them.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.entries import sized
from tests.support.function_environment import ENVIRONMENT
from tools.local_stack import paths

MEASURES: Final = (
    "functions/push",
    "functions/pull",
    "layers/lakesync/python/lakesync/buffer",
    "layers/lakesync/python/lakesync/core",
    "layers/lakesync/python/lakesync/gateway",
    "layers/lakesync/python/lakesync/log",
    "layers/lakesync/python/lakesync/runtime",
    "layers/lakesync/python/lakesync/wire",
)
IMPORT_MS_TARGET: Final = 400
PACKAGE_MB_TARGET: Final = 60
ROUNDS: Final = sized(9, 1)
_BUILD: Final = paths.ROOT / ".aws-sam" / "build"
_LAYERS: Final = {
    "push": ("LakesyncLayer", "WebLayer"),
    "pull": ("LakesyncLayer", "WebLayer"),
}
"""As template.yaml gives them; `_path` fails if a layer is not there."""
_CODE: Final = (
    "import time; clocks = time.perf_counter, time.process_time; began = [at() for at in clocks]; "
    "import app; print(*[(at() - start) * 1000 for at, start in zip(clocks, began)])"
)


@dataclass(frozen=True)
class Package:
    """A function as Lambda unpacks it: where its code is, and with what it is run."""

    folders: tuple[Path, ...]
    python: Path
    built: bool

    @property
    def what(self) -> str:
        """What was measured, in words."""
        return "built function and layers" if self.built else "source tree: nothing is built yet"


def run() -> list[dict[str, Any]]:
    """Measure, and give one entry for each figure."""
    entries = []
    for name in ("push", "pull"):
        package = _package(name)
        times = [_import_ms(package) for _ in range(ROUNDS + 1)][1:]  # the first fills the cache
        walls, processors = zip(*times, strict=True)
        value = statistics.median(walls)
        detail = (
            f"median of {ROUNDS} interpreters, {min(walls):.0f} to {max(walls):.0f} ms; "
            f"{statistics.median(processors):.0f} ms of processor time"
        )
        entries.append(
            _entry(f"import_ms_{name}", value, "ms", IMPORT_MS_TARGET, f"{detail}; {package.what}")
        )
    package = _package("push")
    if package.built:
        megabytes = sum(map(_size, package.folders)) / 1_000_000
        detail = "function and layers, unzipped; boto3 is Lambda's own"
        entries.append(_entry("package_mb_push", megabytes, "MB", PACKAGE_MB_TARGET, detail))
    else:
        missing = _entry("package_mb_push", -1, "MB", PACKAGE_MB_TARGET, "run `make up`: no build")
        entries.append(missing | {"value": None, "holds": False})
    return entries


def _package(name: str) -> Package:
    function = _BUILD / f"{name.capitalize()}Function"
    if not function.exists():
        folders = (paths.ROOT / "functions" / name, paths.ROOT / "layers" / "lakesync" / "python")
        return Package(folders, Path(sys.executable), built=False)
    layers = tuple(_BUILD / layer / "python" for layer in _LAYERS[name])
    missing = [str(layer) for layer in layers if not layer.exists()]
    if missing:
        raise FileNotFoundError(f"the build lacks {missing}: does benchmarks/imports.py name them?")
    return Package((function, *layers), paths.LAMBDA_PYTHON, built=True)


def _import_ms(package: Package) -> tuple[float, float]:
    environment = {
        **ENVIRONMENT,
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join(map(str, package.folders)),
        "PYTHONDONTWRITEBYTECODE": "1",  # Lambda's folders are read-only
    }
    answer = subprocess.run(
        [package.python, "-c", _CODE],
        env=environment,
        cwd=package.folders[0],
        capture_output=True,
        text=True,
        check=False,
    )
    if answer.returncode:
        raise RuntimeError(f"the function cannot be imported: {answer.stderr[-800:]}")
    wall, processor = map(float, answer.stdout.split())
    return wall, processor


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _entry(name: str, value: float, unit: str, target: float, detail: str) -> dict[str, Any]:
    return {
        "name": name,
        "value": round(value, 1),
        "unit": unit,
        "target": target,
        "holds": value <= target,
        "detail": detail,
    }


if __name__ == "__main__":
    for entry in run():
        print(entry)
