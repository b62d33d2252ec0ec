"""Ports of 127.0.0.1: which are free, and waiting until somebody listens."""

from __future__ import annotations

import random
import socket
import time
from typing import TYPE_CHECKING

from tools.local_stack.errors import LocalStackError

if TYPE_CHECKING:
    from collections.abc import Callable

HOST = "127.0.0.1"
_PORTS = range(15_000, 30_000)


def is_free(port: int) -> bool:
    """Whether nobody listens on the port, on any address of this machine."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))  # noqa: S104
        except OSError:
            return False
    return True


def choose_port(preferred: int) -> int:
    """The preferred port if it is free, otherwise some free one.

    None of those that systems give to outgoing connections: one of these may take it before the
    server that it is chosen for has made its data.
    """
    if preferred and is_free(preferred):
        return preferred
    while not is_free(port := random.choice(_PORTS)):  # noqa: S311 - no secret
        pass
    return port


def is_listening(port: int) -> bool:
    """Whether somebody accepts connections on the port."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((HOST, port)) == 0


def wait_until(
    ready: Callable[[], bool], *, alive: Callable[[], bool], what: str, log: str, seconds: float
) -> None:
    """Wait until `ready`, as long as the started process is `alive`.

    Raises:
        LocalStackError: it ended, or `seconds` went by.
    """
    deadline = time.monotonic() + seconds
    while not ready():
        if not alive():
            raise LocalStackError(f"read {log}: {what} ended while it was starting.")
        if time.monotonic() > deadline:
            raise LocalStackError(f"read {log}: {what} was not ready after {seconds:.0f} s.")
        time.sleep(0.05)
