"""Runs uv, and turns what goes wrong on a fresh machine into one sentence that says what to do."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

from tools.local_stack.errors import LocalStackError
from tools.local_stack.paths import ROOT, VENVS

if TYPE_CHECKING:
    from pathlib import Path

DISK_NEEDED_MIB = 3600
_NETWORK_SIGNS = (
    "certificate",
    "connect",
    "dns",
    "failed to fetch",
    "network",
    "no matching distribution",
    "resolve host",
    "sending request",
    "timed out",
    "tls",
    "unreachable",
)


def say(text: str) -> None:
    """Show the user what is being done."""
    print(f"bootstrap: {text}", flush=True)


def run_uv(*arguments: str) -> None:
    """Run uv; its errors become one sentence, with its own words above."""
    environment = {k: v for k, v in os.environ.items() if k not in {"VIRTUAL_ENV", "PYTHONPATH"}}
    answer = subprocess.run(
        [uv(), "--no-progress", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    if answer.returncode:
        print(answer.stderr.strip(), file=sys.stderr)
        raise LocalStackError(explain(answer.stderr, f"run `uv {' '.join(arguments[:2])}`"))


def uv() -> str:
    """The path of uv, in a small environment of its own: another version may know other options."""
    lock = ROOT / "requirements" / "uv.lock"
    folder = VENVS / "uv"
    own, stamp = folder / "bin" / "uv", folder / ".stamp"
    if own.exists() and read(stamp) == fingerprint(lock, ""):
        return str(own)
    say("uv: installing it into .local/venvs/uv …")
    for command in (
        [sys.executable, "-m", "venv", "--clear", str(folder)],
        [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet",
         "--disable-pip-version-check", "--require-hashes", "-r", str(lock)],
    ):  # fmt: skip
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        if answer.returncode:
            print((answer.stderr or answer.stdout).strip(), file=sys.stderr)
            raise LocalStackError(explain(answer.stderr + answer.stdout, "install uv"))
    stamp.write_text(fingerprint(lock, ""))
    return str(own)


def explain(output: str, action: str, *, fetches: bool = True) -> str:
    """The one sentence for a failure: what to do about it.

    Args:
        output: What the failed command said.
        action: What it was to do, after "could not".
        fetches: Whether it fetched packages, so that a lost connection is to blame on the network.
    """
    lowered = output.lower()
    if "no space left" in lowered:
        return f"the disk is full: free {DISK_NEEDED_MIB} MB, then run the same command again."
    if fetches and any(sign in lowered for sign in _NETWORK_SIGNS):
        return (
            "the package index cannot be reached: connect this machine to the network "
            "(or set the proxy that it needs), then run the same command again."
        )
    first = (output.strip() or "no output").splitlines()[0]
    return f"could not {action} ({first}): mend it, then run the same command again."


def check_disk() -> None:
    """Stop before anything is half installed on a disk that is too full."""
    free_mib = shutil.disk_usage(ROOT).free // 2**20
    if free_mib < DISK_NEEDED_MIB:
        raise LocalStackError(
            f"the disk is nearly full ({free_mib} MB left): "
            f"free {DISK_NEEDED_MIB} MB, then run the same command again."
        )


def fingerprint(path: Path, salt: str) -> str:
    """The hash of a file's bytes and of what else it depends on."""
    return hashlib.sha256(path.read_bytes() + salt.encode()).hexdigest()


def read(path: Path) -> str:
    """A small text file, or nothing where there is none."""
    try:
        return path.read_text()
    except OSError:
        return ""
