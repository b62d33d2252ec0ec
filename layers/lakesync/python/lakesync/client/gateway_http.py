"""HTTP with a gateway: its connections and token, and what an answer means, whoever sent it.

Rules of this module
    1. The gateway is recognised by the shape of its answers: an error is ``{"error", "code",
       "requestId"}``, anything else has the type that was asked for and decodes. Its authoriser
       never refuses (``docs/adr/0002``), so this holds for 401 and 403 as well.
    2. Every other answer is foreign: API Gateway's own ``{"message"}``, a proxy's page, a login
       page, a redirect. It says nothing about what was sent, and never becomes one of the errors
       that the gateway has for that (``LakeSyncError.is_foreign``).
    3. Requests that are no longer needed are ended, and silent sockets are probed. Closing an HTTP
       client does not wake the thread that waits for its answer; shutting its socket does.
    4. Tokens in handshakes, and signed addresses, are in no log of a library.

httpx is imported where it is needed: an app that only edits does not need it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import socket
import sys
import threading
import weakref
import zlib
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeVar

from lakesync import errors
from lakesync.errors import (
    AuthFailed,
    Fault,
    InvalidInput,
    LakeSyncError,
    NotTheGateway,
    Unreachable,
)
from lakesync.ports import ConnectorDescription

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import httpx

# --- certificates ---------------------------------------------------------------------------------


@cache
def trusted() -> ssl.SSLContext:
    """Return the trusted certificates: reading them for each client would outlast a request."""
    import httpx  # noqa: PLC0415 - only who connects needs it

    return httpx.create_ssl_context()


# --- connections ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long to wait, by phase: ``HttpTransport(..., timeouts=Timeouts(read_s=60))``."""

    connect_s: float = 5.0
    write_s: float = 15.0
    read_s: float = 35.0
    """For the next bytes of the answer; API Gateway itself gives up after 30."""
    pool_s: float = 5.0
    """For a free connection, if several threads share the transport."""


def connections(
    module: Any,
    address: str,
    headers: Mapping[str, str],
    http: httpx.BaseTransport | None,
    timeouts: Timeouts,
) -> tuple[httpx.Client, httpx.Client]:
    """Return what asks the gateway, and what asks other servers, which must not see the token."""
    timeout = module.Timeout(
        connect=timeouts.connect_s,
        write=timeouts.write_s,
        read=timeouts.read_s,
        pool=timeouts.pool_s,
    )
    shared = {"transport": http, "timeout": timeout, "verify": trusted()}
    return module.Client(base_url=address, headers=headers, **shared), module.Client(**shared)


# --- sockets --------------------------------------------------------------------------------------


PROBE_S: Final = 240
"""How long a WebSocket is silent before TCP probes it: routers on the way forget connections that
are silent for five minutes or longer, and API Gateway charges for messages alone.
"""
_PROBE_AGAIN_S: Final = 15
_PROBES: Final = 3
_IDLE: Final = "TCP_KEEPALIVE" if sys.platform == "darwin" else "TCP_KEEPIDLE"


def probe_when_silent(opened: socket.socket) -> None:
    """Have TCP probe a silent connection, as far as this platform can; a dead one then fails."""
    options = {_IDLE: PROBE_S, "TCP_KEEPINTVL": _PROBE_AGAIN_S, "TCP_KEEPCNT": _PROBES}
    with contextlib.suppress(OSError):
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in options.items():
            if hasattr(socket, name):
                opened.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class OpenSockets:
    """Notes the sockets that httpx opens: ``extensions={"trace": sockets.note}`` of a request."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()

    def note(self, event: str, info: Mapping[str, Any]) -> None:
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            opened = info["return_value"].get_extra_info("socket")
            if isinstance(opened, socket.socket):
                with self._lock:
                    self._sockets.add(opened)

    def shut(self) -> None:
        """Abort all requests on all connections; new requests open new ones."""
        with self._lock:
            for opened in list(self._sockets):
                # Not TLS's own shutdown, which would take the state from the reading thread.
                with contextlib.suppress(OSError):  # closed
                    socket.socket.shutdown(opened, socket.SHUT_RDWR)


# --- logs without secrets -------------------------------------------------------------------------


_SIGNED: Final[ContextVar[bool]] = ContextVar("lakesync_signed_request", default=False)


class SocketLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger for websockets, which at ``DEBUG`` would log each header and frame."""

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 - logging's name
        return level > logging.DEBUG and super().isEnabledFor(level)


def socket_logger() -> SocketLogger:
    return SocketLogger(logging.getLogger("lakesync.client"), {})


class _WithoutQuery(logging.Filter):
    """Removes the query, which contains the signature, from the addresses that httpx logs."""

    def filter(self, record: logging.LogRecord) -> bool:
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


# --- the token ------------------------------------------------------------------------------------


_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*")  # RFC 6750, "b64token"


class Token:
    """A token, or a function that returns one. No error repeats it."""

    def __init__(self, token: str | Callable[[], str]) -> None:
        self._source: Callable[[], str] = (lambda: token) if isinstance(token, str) else token
        self._token = checked_token(token) if isinstance(token, str) else None

    def forget(self) -> None:
        self._token = None

    def give(self) -> str:
        """Return a token that may be sent: the last one, until it is forgotten."""
        if self._token is None:
            try:
                self._token = checked_token(self._source())
            except LakeSyncError:
                raise
            except Exception as exc:
                # Its message is not repeated, because it may contain a secret.
                raise AuthFailed(
                    f"the function that gives the token raised {type(exc).__name__}",
                    field="token",
                ) from exc
        return self._token


def checked_token(token: object) -> str:
    """Return a token if a header may carry it; the error does not repeat it."""
    if isinstance(token, str) and _TOKEN.fullmatch(token):
        return token
    raise AuthFailed(
        "the token is malformed: it must be text of letters, digits and -._~+/= alone, without "
        "'Bearer', spaces or a line feed at its end",
        field="token",
    )


# --- answers --------------------------------------------------------------------------------------


A = TypeVar("A")

ANSWER_BYTES_MAX: Final = 64_000_000
"""The longest answer that is read, decompressed: ten times the longest that a gateway gives."""
FOREIGN_RETRY_AFTER_S_MAX: Final = 60
"""The longest wait that somebody on the way may ask for."""
EMPTY: Final = "the answer says nothing, as if it were not a LakeSync gateway's"
SHAPE: Final = ("error", "code", "requestId")
"""The fields that each error of a gateway has, all of them text."""
_BY_STATUS: Final[dict[int, type[LakeSyncError]]] = {
    400: errors.ValidationFailed,
    401: errors.AuthFailed,
    403: errors.Forbidden,
    404: errors.NotFound,
    405: errors.NotOffered,
    409: errors.Conflict,
    410: errors.CursorExpired,
    413: errors.BodyTooLarge,
    429: errors.RateLimited,
}
_ASKS_TO_WAIT: Final[dict[int, type[LakeSyncError]]] = {
    408: errors.Unavailable,
    429: errors.RateLimited,
    # A function crashed, timed out or is being replaced: repeating the request is safe.
    500: errors.Unavailable,
    502: errors.Unavailable,
    503: errors.Unavailable,
    504: errors.Unavailable,
}
"""What a foreign answer means that says no more than: not now."""
_SERVER_ERROR: Final = 500
_REFUSED: Final = 400
_REDIRECTS: Final = range(300, 400)
_RETRY_AFTER_S_MAX: Final = 3_600
_TEXT_SHOWN_MAX: Final = 200
_GZIP_WINDOW: Final = 31


def error_of(status: int, headers: Mapping[str, str], body: bytes) -> LakeSyncError:
    """Return the error that an answer with an unsuccessful status stands for."""
    fields = _object(body)
    if not all(isinstance(fields.get(name), str) for name in SHAPE):
        return foreign(status, headers, body)
    kind = errors.BY_CODE.get(str(fields["code"])) or _BY_STATUS.get(status) or _of_class(status)
    field = fields.get("field")
    error = kind(
        f"{fields['error']} [HTTP {status}, request {fields['requestId']}]",
        field=field if isinstance(field, str) else None,
        retry_after_s=_seconds(headers.get("retry-after"), _RETRY_AFTER_S_MAX),
    )
    if isinstance(error, InvalidInput):
        error.faults = _faults(fields.get("faults"))
    return error


def foreign(status: int, headers: Mapping[str, str], body: bytes) -> LakeSyncError:
    """Return the error that an answer stands for which no gateway gave."""
    wait_s = _seconds(headers.get("retry-after"), FOREIGN_RETRY_AFTER_S_MAX)
    kind = _ASKS_TO_WAIT.get(status)
    if kind is not None:
        error = kind(f"{_said(body)} [HTTP {status}]; try again", retry_after_s=wait_s)
    else:
        error = NotTheGateway(
            f"the answer is not a LakeSync gateway's (HTTP {status}{_about(status, headers)}: "
            f"{_said(body)}): check the address, and whether this network wants a login or a "
            f"proxy refuses the request",
            retry_after_s=wait_s,
        )
        error.http_status = status
    error.is_foreign = True
    return error


def read(decode: Callable[[bytes], A], body: bytes) -> A:
    """Decode a successful answer; what does not decode is not the gateway's."""
    try:
        return decode(body)
    except InvalidInput as exc:
        raise NotTheGateway(
            f"the answer is of no use, as if it were not a LakeSync gateway's: {exc.message}"
        ) from exc


def plain_body(pieces: Iterable[bytes], headers: Mapping[str, str]) -> bytes:
    """Return a whole answer, decompressed.

    Raises:
        Unreachable: it ended early, or its compression is damaged.
        NotTheGateway: it is longer than any gateway's, or compressed in another way.
    """
    coding = headers.get("content-encoding", "identity").strip().lower()
    if coding not in {"identity", "gzip", ""}:
        raise NotTheGateway("the answer is compressed in a way that was not asked for")
    inflate = zlib.decompressobj(_GZIP_WINDOW) if coding == "gzip" else None
    plain, size = [], 0
    try:
        for piece in pieces:
            room = ANSWER_BYTES_MAX - size + 1
            plain.append(inflate.decompress(piece, room) if inflate else piece)
            size += len(plain[-1])
            if size > ANSWER_BYTES_MAX:
                raise NotTheGateway(f"the answer is over {ANSWER_BYTES_MAX:,} bytes long")
    except zlib.error as exc:
        raise Unreachable(f"the answer arrived damaged ({exc}); try again") from exc
    # A cut page may decode, and would lose what was cut off.
    is_whole = inflate.eof if inflate else _tells_its_end(headers)
    if not is_whole:
        raise Unreachable("the answer ended early; try again")
    return b"".join(plain)


def _tells_its_end(headers: Mapping[str, str]) -> bool:
    return "content-length" in headers or "transfer-encoding" in headers


def _about(status: int, headers: Mapping[str, str]) -> str:
    """Name where a redirect leads, without its query: it is not followed with a token."""
    if status not in _REDIRECTS or not headers.get("location"):
        return ""
    return f", to {headers['location'].partition('?')[0][:_TEXT_SHOWN_MAX]!r}"


def _said(body: bytes) -> str:
    fields = _object(body)
    text = fields.get("message") or fields.get("Message") or fields.get("error")
    if not isinstance(text, str):
        text = body[:_TEXT_SHOWN_MAX].decode(errors="replace")
    return " ".join(text[:_TEXT_SHOWN_MAX].split()) or "no reason was given"


def _of_class(status: int) -> type[LakeSyncError]:
    """Return what a status means whose code a later release has added."""
    if status >= _SERVER_ERROR:
        return errors.Unavailable
    return errors.ValidationFailed if status >= _REFUSED else errors.InternalError


def _object(body: bytes) -> dict[str, object]:
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _faults(faults: object) -> tuple[Fault, ...]:
    items = faults if isinstance(faults, list) else []
    return tuple(
        Fault(str(item.get("path")), str(item.get("error")))
        for item in items
        if isinstance(item, dict)
    )


def _seconds(text: str | None, most_s: int) -> int | None:
    """Read ``Retry-After`` in seconds; its other form, a date, would require a correct clock."""
    if text is None or not text.strip().isdecimal():
        return None
    return min(int(text), most_s)


def connector_types_in(body: bytes) -> list[ConnectorDescription]:
    try:
        return [
            ConnectorDescription(
                each["type"], each["title"], each.get("configuration", {}), each.get("error", "")
            )
            for each in json.loads(body)
        ]
    except (AttributeError, KeyError, TypeError, ValueError) as exc:
        raise errors.ValidationFailed("it lists no types of connectors") from exc
