"""Keeps secrets out of the logs of libraries: tokens in handshakes, and signed addresses."""

from __future__ import annotations

import contextlib
import logging
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_SIGNED: Final[ContextVar[bool]] = ContextVar("lakesync_signed_request", default=False)


class SocketLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger for websockets, which at ``DEBUG`` would log each header and frame."""

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 - logging's name
        """Return whether a level is logged; ``DEBUG`` never is."""
        return level > logging.DEBUG and super().isEnabledFor(level)


def socket_logger() -> SocketLogger:
    """Return the logger of a socket."""
    return SocketLogger(logging.getLogger("lakesync.client"), {})


class _WithoutQuery(logging.Filter):
    """Removes the query, which contains the signature, from the addresses that httpx logs."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Pass a log record on, without the query string during a signed request."""
        if _SIGNED.get() and isinstance(record.args, tuple):
            record.args = tuple(_without_query(value) for value in record.args)
        return True


def _without_query(value: Any) -> Any:
    address, mark, _ = str(value).partition("?")
    return f"{address}?…" if mark else value


_FILTER: Final = _WithoutQuery()


@contextlib.contextmanager
def signed_request() -> Iterator[None]:
    """Keep the signatures of this thread's requests meanwhile out of httpx's log."""
    logging.getLogger("httpx").addFilter(_FILTER)  # once, however often it is added
    token = _SIGNED.set(True)
    try:
        yield
    finally:
        _SIGNED.reset(token)
