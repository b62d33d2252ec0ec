"""Processes that outlive the command which started them, found again by a record on disk."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from pwd import struct_passwd

_END_SECONDS = 10.0
# Kept until they are ended: a Popen that is dropped earlier warns that its process still runs.
_children: dict[int, subprocess.Popen[bytes]] = {}


@atexit.register
def _let_go() -> None:
    """Leave alone what outlives this process on purpose; a Popen would warn that it runs."""
    for child in _children.values():
        if child.poll() is None:
            child.returncode = 0


def start_detached(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    folder: Path,
    log: Path,
    run_as: struct_passwd | None = None,
) -> subprocess.Popen[bytes]:
    """Start a program in a session of its own, so that Ctrl-C here does not reach it."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            user=run_as.pw_uid if run_as else None,
            group=run_as.pw_gid if run_as else None,
            extra_groups=[] if run_as else None,
        )
    _children[process.pid] = process
    return process


def command_line(pid: int) -> str:
    """The command of a process, empty when there is none (or only its remains)."""
    answer = subprocess.run(
        ["ps", "-ww", "-o", "stat=,command=", "-p", str(pid)],
        capture_output=True,
        text=True,
        check=False,
    )
    state, _, command = answer.stdout.strip().partition(" ")
    return "" if state.startswith("Z") else command.strip()


def is_running(pid: int, mark: str) -> bool:
    """Whether the process lives and is the one that was meant: pids are used again."""
    return mark in command_line(pid)


def end_group(pid: int, mark: str, *, first: int = signal.SIGTERM) -> None:
    """End a process with all that it started: asked `first`, made to after ten seconds.

    A process of an earlier command is ended only if it bears the mark: pids are used again.
    """
    child = _children.pop(pid, None)

    def alive() -> bool:
        return child.poll() is None if child is not None else is_running(pid, mark)

    if not alive():
        return
    _signal_group(pid, first)
    deadline = time.monotonic() + _END_SECONDS
    while alive() and time.monotonic() < deadline:
        time.sleep(0.05)
    _signal_group(pid, signal.SIGKILL)
    if child is not None:
        child.wait()


def read_record(path: Path) -> dict[str, Any]:
    """A JSON record on disk; empty when there is none or it was cut short."""
    try:
        record = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    """Write a JSON record whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(record, indent=2) + "\n")
    draft.replace(path)


def _signal_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
