"""Builds one Lambda layer: locked packages for AWS's Python, whatever Python this machine has.

    python3 layers/build_layer.py --name web --runtime python3.13 --architecture arm64 --into FOLDER

Wheels are chosen by processor and version, never built, so no matching interpreter is needed. Where
one is at hand, the sources are compiled for it too: Lambda's own folders are read-only, so a layer
without bytecode is compiled again in every cold start, which takes longer than running it.
The same lock gives the same bytes. Standard library only: `sam build` runs this first.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Lambda's names of processors, and Python's.
PROCESSORS = {"arm64": "aarch64", "x86_64": "x86_64"}
LIBC = "manylinux_2_28"
# pip does not know that a platform includes the older ones.
PIP_LIBCS = (LIBC, "manylinux_2_17", "manylinux2014")

# What no function reads. Metadata stays: packages ask for their own version and entry points.
UNUSED = (
    "bin",
    "**/__pycache__",
    "**/*.pyi",
    "**/py.typed",
    "**/*.proto",
    "**/tests",
    "**/RECORD",
    "**/INSTALLER",
    "**/REQUESTED",
    "**/direct_url.json",
    "**/uv_cache.json",
    # Batches are written with pyarrow's core and Parquet alone.
    "pyarrow/include",
    "pyarrow/includes",
    "pyarrow/src",
    "pyarrow/**/*.pyx",
    "pyarrow/**/*.pxi",
    "pyarrow/**/*.pxd",
    "pyarrow/libarrow_flight*",
    "pyarrow/libarrow_python_flight*",
    "pyarrow/_flight*",
    "pyarrow/_orc*",
    "pyarrow/_gcsfs*",
    "pyarrow/_azurefs*",
    # BigQuery is asked over HTTP; its library does without gRPC where that is missing.
    "grpc",
    "grpc_status",
    # Of Hive's catalogue, which no function asks.
    "hive_metastore",
    # Copies under names that only a compiler asks for.
    "pyarrow/libarrow_python*.so",
    "pyarrow/libarrow_python*.so.*.*.*",
)

# What functions/open answers.
KEPT = ("lakesync/wire/lakesync.proto",)

# What no function reads of PyIceberg: its command line, and what only that shows tables with; and
# a second copy of a codec, for other Pythons.
UNUSED_OF_ICEBERG = (
    "pyiceberg/cli",
    "click",
    "markdown_it",
    "mdurl",
    "pygments",
    "rich",
    "zstandard/_cffi*",
    "zstandard/backend_cffi.py",
)


class BuildError(Exception):
    """One sentence that says what to do."""


def main(arguments: list[str]) -> int:
    """Build the layer; 1 and a sentence if that cannot be done."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", required=True, help="requirements/layer-NAME.lock is installed")
    parser.add_argument("--runtime", required=True, help="the Lambda runtime: python3.13")
    parser.add_argument("--architecture", required=True, choices=sorted(PROCESSORS))
    parser.add_argument("--into", required=True, type=Path, help="SAM's artefacts folder")
    parser.add_argument("--package", type=Path, help="a package of ours to put beside them")
    options = parser.parse_args(arguments)
    target: Path = options.into / "python"
    version = options.runtime.removeprefix("python")
    try:
        lock = ROOT / "requirements" / f"layer-{options.name}.lock"
        install(lock, version, PROCESSORS[options.architecture], target)
    except (BuildError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if options.package:
        shutil.copytree(options.package, target / options.package.name, dirs_exist_ok=True)
    prune(target)
    compile_for(version, target)
    return 0


def install(
    lock: Path, version: str, processor: str, target: Path, link_mode: str = "copy"
) -> None:
    """Put the locked wheels into the folder, hashes checked.

    Copied, not linked: a file that is changed here must stay whole in uv's cache.

    Raises:
        BuildError: a wheel cannot be had, or is not the locked one.
    """
    target.mkdir(parents=True, exist_ok=True)
    common = ["--target", str(target), "--require-hashes", "--no-deps", "-r", str(lock)]
    uv = find_uv()
    if uv:
        command = [
            uv, "pip", "install", "--quiet", "--no-config", "--link-mode", link_mode,
            "--python", sys.executable, "--python-platform", f"{processor}-{LIBC}",
            "--python-version", version, "--only-binary", ":all:", *common,
        ]  # fmt: skip
    else:
        names = [f"{libc}_{processor}" for libc in PIP_LIBCS]
        platforms = [word for name in names for word in ("--platform", name)]
        command = [
            sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
            *platforms, "--python-version", version, "--implementation", "cp",
            "--only-binary", ":all:", *common,
        ]  # fmt: skip
    answer = subprocess.run(command, check=False, capture_output=True, text=True)
    if answer.returncode:
        raise BuildError(
            f"could not install {lock.name} for Python {version} on {processor}; connect this "
            f"machine to the package index and build again.\n{answer.stderr.strip()}"
        )


def prune(target: Path) -> None:
    """Remove what no function reads."""
    is_iceberg = (target / "pyiceberg").is_dir()
    kept = {target / name for name in KEPT}
    for pattern in (*UNUSED, *(UNUSED_OF_ICEBERG if is_iceberg else ())):
        for path in sorted(set(target.glob(pattern)) - kept):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


def compile_for(version: str, target: Path) -> None:
    """Compile everything for the runtime, if this machine has that Python."""
    python = interpreter(version)
    if python is None:
        print(f"layers: no Python {version} here, so without bytecode: slower cold starts.")
        return
    # Without looking at the source's time or hash: files in a layer never change.
    command = [
        python, "-m", "compileall", "-q", "-j", "0", "--invalidation-mode", "unchecked-hash",
        "-s", str(target), "-p", "/opt/python", str(target),
    ]  # fmt: skip
    subprocess.run(command, check=True, env=_quiet_environment())


def interpreter(version: str) -> str | None:
    """Return a Python of that version, None if there is none."""
    candidates = [sys.executable, shutil.which(f"python{version}")]
    uv = find_uv()
    if uv:
        known = [uv, "python", "find", "--no-config", "--no-python-downloads", version]
        candidates.append(_output(known))
    for candidate in filter(None, candidates):
        # A name on the path may be a shim that starts another version, or nothing.
        if (
            _output([candidate, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"])
            == version
        ):
            return candidate
    return None


def find_uv() -> str | None:
    """Get uv: the machine's own, or the one that the bootstrap made; None if there is neither."""
    own = ROOT / ".local" / "venvs" / "uv" / "bin"
    return shutil.which("uv") or shutil.which("uv", path=own)


def _output(command: list[str]) -> str:
    answer = subprocess.run(command, check=False, capture_output=True, text=True)
    return answer.stdout.strip() if answer.returncode == 0 else ""


def _quiet_environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
