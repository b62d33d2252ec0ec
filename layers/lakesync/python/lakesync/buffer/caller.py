"""A thin caller of AWS: ready-made JSON, signed here, sent over kept connections, and traced.

The SDK's own client spends 10 to 20 ms of CPU on validating and serialising a transaction of a
hundred items, most of the time of a push, and its import is most of a cold start. The figures are
in ``docs/adr/0001-thin-dynamodb-caller.md``. So requests are built by `lakesync.buffer.requests` as
DynamoDB's JSON, and signed here. Retries are left to the callers: the gateway knows its deadline.

Signature Version 4 is for uniform requests: one POST to one address, with a JSON body; `RestSigner`
is for requests whose path names the operation. The constant parts of a request are computed once,
so a signature costs a hash of the body and little more. Tests compare it with botocore's signer.

Each call of DynamoDB is shown in the trace of the invocation that makes it. Lambda begins the
trace, names it in an environment variable that also says whether it is sampled, and receives its
segments by UDP. The X-Ray SDK does no more than this for a call, but adds a tenth of a second to
every cold start. It only knows calls of the AWS SDK, and is only maintained.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import select
import socket
import time
import weakref
from functools import lru_cache
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol
from urllib.parse import quote, urlsplit

from lakesync.errors import InternalError, Unavailable, Unreachable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# --- DynamoDB -------------------------------------------------------------------------------------


_SERVER_FAULT: Final = 500
_OK: Final = 200

_TRY_AGAIN: Final = frozenset(
    {
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "ThrottlingException",
        "TransactionInProgressException",
        "InternalServerError",
        "ServiceUnavailable",
    }
)
_REFUSED: Final = frozenset(
    {
        "ConditionalCheckFailedException",
        "TransactionCanceledException",
        "TransactionConflictException",
    }
)
_OUTDATED: Final = frozenset({"ExpiredTokenException", "UnrecognizedClientException"})


class Refusal(Exception):
    """DynamoDB refused a request; ``body`` is its answer, with cancellation reasons."""

    def __init__(self, kind: str, body: Mapping[str, Any]) -> None:
        super().__init__(f"{kind}: {body.get('message') or body.get('Message') or ''}")
        self.kind = kind
        self.body = body


class Answered(Exception):
    """What DynamoDB called the reason of a failure, as AWS spells it; the cause of our error."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


class Send(Protocol):
    """How bytes are sent to DynamoDB; tests inject faults here that no emulator makes."""

    def __call__(self, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        """Return the status and the body of the answer, or raise `Unreachable`."""
        ...


class DynamoCaller:
    """Calls DynamoDB operations with ready-made JSON. Thread-safe.

    Args:
        region: the table's region.
        endpoint_url: DynamoDB's address, if it is not the region's own.
        send: replaces the network.
        on_capacity: called with each operation and the capacity units that it consumed; without it,
            DynamoDB is not asked for them.
        credentials: gives the credentials; without it, they come from the environment or the SDK's
            own chain.
    """

    def __init__(
        self,
        region: str,
        endpoint_url: str | None = None,
        *,
        send: Send | None = None,
        on_capacity: Callable[[str, float], None] | None = None,
        credentials: Callable[[], tuple[str, str, str | None]] | None = None,
    ) -> None:
        url = (endpoint_url or _regional(region)).rstrip("/")
        self._signer = Signer(url, "dynamodb", region)
        self._send = send or TracedSend(Network(url), region)
        self._on_capacity = on_capacity
        self._from_session: Any = None
        self._given_credentials = credentials

    def __call__(self, operation: str, body: bytes) -> dict[str, Any]:
        """Call one operation.

        Raises:
            Refusal: DynamoDB refused it; nothing was done.
            Unavailable: throttled or failing; it is safe to repeat.
            Unreachable: no answer arrived; a write may have happened.
        """
        if self._on_capacity is not None:
            body = body[:-1] + b',"ReturnConsumedCapacity":"TOTAL"}'
        now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        target = f"DynamoDB_20120810.{operation}"
        status, content = self._send(
            self._signer.headers(target, body, self._credentials(), now), body
        )
        try:
            answer = json.loads(content)
        except ValueError as exc:
            if status == _OK:
                raise Unreachable("DynamoDB's answer was cut off") from exc
            answer = {}
        if status != _OK:
            body_of = answer if isinstance(answer, dict) else {}
            kind = str(body_of.get("__type", "")).rpartition("#")[2] or f"HTTP {status}"
            raise self._failure(operation, status, kind, body_of) from Answered(kind)
        if self._on_capacity is not None:
            self._on_capacity(operation, _units(answer))
        return answer  # type: ignore[no-any-return]

    def _credentials(self) -> Credentials:
        if self._given_credentials is not None:
            return Credentials(*self._given_credentials())
        # Lambda puts them into the environment; only elsewhere is the SDK worth its import.
        access_key = os.environ.get("AWS_ACCESS_KEY_ID")
        secret_key = os.environ.get("AWS_SECRET_ACCESS_KEY")
        if access_key and secret_key:
            return Credentials(access_key, secret_key, os.environ.get("AWS_SESSION_TOKEN"))
        if self._from_session is None:
            from botocore.session import get_session  # noqa: PLC0415

            self._from_session = get_session().get_credentials()
        if self._from_session is None:
            raise InternalError("no AWS credentials; set AWS_PROFILE or the usual variables")
        return Credentials(*self._from_session.get_frozen_credentials())

    def _failure(
        self, operation: str, status: int, kind: str, body: Mapping[str, Any]
    ) -> Exception:
        if kind in _REFUSED:
            return Refusal(kind, body)
        if kind in _OUTDATED:
            self._from_session = None  # the next call reads fresh ones
        if kind in _TRY_AGAIN or kind in _OUTDATED or status >= _SERVER_FAULT:
            return Unavailable(
                f"DynamoDB is busy ({kind}); the same request may succeed in a moment"
            )
        return InternalError(f"DynamoDB refused {operation}: {kind}")


def _units(answer: Mapping[str, Any]) -> float:
    consumed = answer.get("ConsumedCapacity", [])
    parts = consumed if isinstance(consumed, list) else [consumed]
    return float(sum(part["CapacityUnits"] for part in parts))


def _regional(region: str) -> str:
    suffix = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    return f"https://dynamodb.{region}.{suffix}"


# --- signatures -----------------------------------------------------------------------------------


CONTENT_TYPE: Final = "application/x-amz-json-1.0"
_SIGNED: Final = "content-type;host;x-amz-date;x-amz-target"
_SIGNED_IN_SESSION: Final = "content-type;host;x-amz-date;x-amz-security-token;x-amz-target"


class Credentials(NamedTuple):
    """The credentials that sign."""

    access_key: str
    secret_key: str
    token: str | None


class Signer:
    """Signs requests to one address, of one service in one region."""

    def __init__(self, url: str, service: str, region: str) -> None:
        parts = urlsplit(url)
        default_port = {"http": 80, "https": 443}.get(parts.scheme)
        host = parts.hostname or ""
        self._host = host if parts.port in {None, default_port} else f"{host}:{parts.port}"
        self._scope = _Scope(service, region)

    def headers(
        self, target: str, body: bytes, credentials: Credentials, now: str
    ) -> dict[str, str]:
        """Return the headers of a request, signed.

        Args:
            target: the operation, as ``X-Amz-Target`` names it.
            body: the request's body.
            credentials: who signs.
            now: the time as ``20260131T235959Z``.
        """
        token = credentials.token
        secured = f"x-amz-security-token:{token}\n" if token else ""
        signed = _SIGNED_IN_SESSION if token else _SIGNED
        canonical = (
            f"POST\n/\n\ncontent-type:{CONTENT_TYPE}\nhost:{self._host}\nx-amz-date:{now}\n"
            f"{secured}x-amz-target:{target}\n\n{signed}\n{hashlib.sha256(body).hexdigest()}"
        )
        headers = {
            "Content-Type": CONTENT_TYPE,
            "Host": self._host,
            "X-Amz-Date": now,
            "X-Amz-Target": target,
            "Authorization": self._scope.authorization(canonical, signed, credentials, now),
        }
        if token:
            headers["X-Amz-Security-Token"] = token
        return headers


class RestSigner:
    """Signs requests whose path and method name the operation, for one host's service."""

    def __init__(self, host: str, service: str, region: str) -> None:
        self._host = host
        self._scope = _Scope(service, region)

    def headers(
        self, method: str, path: str, body: bytes, credentials: Credentials, now: str
    ) -> dict[str, str]:
        """Return the headers of a request, signed.

        Args:
            method: the HTTP method.
            path: the path as it is sent, its parts quoted.
            body: the request's body.
            credentials: who signs.
            now: the time as ``20260131T235959Z``.
        """
        token = credentials.token
        secured = f"x-amz-security-token:{token}\n" if token else ""
        signed = "host;x-amz-date;x-amz-security-token" if token else "host;x-amz-date"
        canonical = (
            # All services but S3 quote the path once more.
            f"{method}\n{quote(path, safe='/~')}\n\nhost:{self._host}\nx-amz-date:{now}\n"
            f"{secured}\n{signed}\n{hashlib.sha256(body).hexdigest()}"
        )
        headers = {
            "Host": self._host,
            "X-Amz-Date": now,
            "Authorization": self._scope.authorization(canonical, signed, credentials, now),
        }
        if token:
            headers["X-Amz-Security-Token"] = token
        return headers


class _Scope(NamedTuple):
    """The scope of a signature: a service in a region (AWS calls it the credential scope)."""

    service: str
    region: str

    def authorization(self, canonical: str, signed: str, credentials: Credentials, now: str) -> str:
        """Return the header that authenticates a request, from its canonical form."""
        scope = f"{now[:8]}/{self.region}/{self.service}/aws4_request"
        digest = hashlib.sha256(canonical.encode()).hexdigest()
        key = _signing_key(credentials.secret_key, now[:8], self.region, self.service)
        signature = _hmac(key, f"AWS4-HMAC-SHA256\n{now}\n{scope}\n{digest}").hex()
        return (
            f"AWS4-HMAC-SHA256 Credential={credentials.access_key}/{scope}, "
            f"SignedHeaders={signed}, Signature={signature}"
        )


@lru_cache(maxsize=4)
def _signing_key(secret_key: str, day: str, region: str, service: str) -> bytes:
    key = _hmac(f"AWS4{secret_key}".encode(), day)
    return _hmac(_hmac(_hmac(key, region), service), "aws4_request")


def _hmac(key: bytes, text: str) -> bytes:
    return hmac.digest(key, text.encode(), "sha256")


# --- kept connections -----------------------------------------------------------------------------


CONNECT_S_MAX: Final = 1.0
"""How long to wait for a connection."""
READ_S_MAX: Final = 5.0
"""How long to wait for an answer; a transaction takes 10 to 50 ms."""


class Network:
    """Sends requests to one address over kept connections. Thread-safe."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        self._host, self._port = parts.hostname or "", parts.port
        # Taking from a list and adding to it are atomic, so threads need no lock.
        self._idle: list[HTTPConnection] = []
        weakref.finalize(self, _close_all, self._idle)

    def __call__(self, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        """Return the status and the body of the answer.

        Raises:
            Unreachable: no answer arrived; the request may have been carried out.
        """
        return self.request("POST", "/", headers, body)

    def request(
        self, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, bytes]:
        """Return the status and the body of the answer to any request.

        Raises:
            Unreachable: no answer arrived; the request may have been carried out.
        """
        connection = None
        try:
            connection = self._connection()
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            content = answer.read()
        except (OSError, HTTPException) as exc:
            if connection is not None:
                connection.close()
            raise Unreachable(f"no answer came back: {type(exc).__name__}") from exc
        if answer.will_close:
            connection.close()
        else:
            self._idle.append(connection)
        return answer.status, content

    def _connection(self) -> HTTPConnection:
        while self._idle:
            connection = self._idle.pop()
            if _is_open(connection):
                return connection
            connection.close()
        connection = self._kind(self._host, self._port, timeout=CONNECT_S_MAX)
        connection.connect()
        connection.sock.settimeout(READ_S_MAX)
        return connection


def _close_all(connections: list[HTTPConnection]) -> None:
    for connection in connections:
        connection.close()


def _is_open(connection: HTTPConnection) -> bool:
    """Return whether an idle connection may be used: readable data means that it was closed."""
    if connection.sock is None:
        return False
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return not poll.poll(0)


# --- the trace ------------------------------------------------------------------------------------


TRACE: Final = "_X_AMZN_TRACE_ID"
"""Lambda's variable: ``Root=…;Parent=…;Sampled=1``, different for each invocation."""
DAEMON: Final = "AWS_XRAY_DAEMON_ADDRESS"
"""Lambda's variable: the address to which segments are sent, ``address:port``."""
_HEADER: Final = b'{"format": "json", "version": 1}\n'
_THROTTLED: Final = frozenset({b"ProvisionedThroughputExceeded", b"ThrottlingException"})
_BAD_REQUEST: Final = 400


class TracedSend:
    """Sends requests, and traces its calls if the invocation is sampled. Thread-safe."""

    def __init__(
        self, send: Callable[[dict[str, str], bytes], tuple[int, bytes]], region: str
    ) -> None:
        self._send = send
        self._region = region
        self._socket: socket.socket | None = None

    def __call__(self, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        """Send, and trace the duration and the outcome."""
        trace = _sampled_trace()
        if trace is None:
            return self._send(headers, body)
        began = time.time()
        status, content = 0, b""
        try:
            status, content = self._send(headers, body)
        except Unreachable:
            self._report(trace, headers, began, {"fault": True})
            raise
        self._report(trace, headers, began, _outcome(status, content))
        return status, content

    def _report(
        self,
        trace: tuple[str, str],
        headers: dict[str, str],
        began: float,
        outcome: dict[str, object],
    ) -> None:
        root, parent = trace
        operation = headers["X-Amz-Target"].rpartition(".")[2]
        document = {
            "name": "DynamoDB",
            "id": os.urandom(8).hex(),
            "trace_id": root,
            "parent_id": parent,
            "type": "subsegment",
            "namespace": "aws",
            "start_time": began,
            "end_time": time.time(),
            "aws": {"operation": operation, "region": self._region},
            **outcome,
        }
        address, _, port = os.environ.get(DAEMON, "").rpartition(":")
        try:
            if self._socket is None:
                self._socket = _open()
                weakref.finalize(self, self._socket.close)
            self._socket.sendto(_HEADER + json.dumps(document).encode(), (address, int(port)))
        except (OSError, ValueError):
            pass  # a trace never justifies a failed request


def _open() -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.setblocking(False)
    return made


def _sampled_trace() -> tuple[str, str] | None:
    """Return the trace and the segment that a call belongs to; None if it is not sampled."""
    text = os.environ.get(TRACE)
    if not text or DAEMON not in os.environ:
        return None
    fields = dict(part.partition("=")[::2] for part in text.split(";"))
    if fields.get("Sampled") != "1" or not fields.get("Root") or not fields.get("Parent"):
        return None
    return fields["Root"], fields["Parent"]


def _outcome(status: int, content: bytes) -> dict[str, object]:
    outcome: dict[str, object] = {"http": {"response": {"status": status}}}
    if status >= _SERVER_FAULT:
        outcome["fault"] = True
    elif status >= _BAD_REQUEST:
        outcome["error"] = True
        outcome["throttle"] = any(word in content for word in _THROTTLED)
    return outcome
