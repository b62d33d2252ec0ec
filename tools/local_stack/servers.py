"""Servers that listen on a port of this machine for as long as a block runs."""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING

from tools.local_stack.ports import is_listening, wait_until
from tools.local_stack.processes import end_group, start_detached

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

_READY_SECONDS = 60.0


@contextlib.contextmanager
def serving(
    command: Sequence[str],
    port: int,
    *,
    what: str,
    mark: str,
    environment: Mapping[str, str],
    folder: Path,
    log: Path,
    end_by: int = signal.SIGTERM,
) -> Iterator[None]:
    """Run a program until the block ends; begin the block once it listens.

    Args:
        command: what is run, in ``folder``; ``environment`` is all that it is given.
        port: where it will listen.
        what: what it is, for who reads that it did not start.
        mark: a part of its command line, by which it is known.
        environment: of the program.
        folder: where it runs.
        log: what it prints goes there.
        end_by: the signal that it is asked to end by.

    Raises:
        LocalStackError: it did not come up; the sentence names its log.
    """
    process = start_detached(command, environment=environment, folder=folder, log=log)
    try:
        wait_until(
            lambda: is_listening(port),
            alive=lambda: process.poll() is None,
            what=what,
            log=str(log),
            seconds=_READY_SECONDS,
        )
        yield
    finally:
        end_group(process.pid, mark, first=end_by)
