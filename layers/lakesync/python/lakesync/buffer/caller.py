"""A thin DynamoDB caller: ready-made JSON in, parsed JSON out, over kept connections.

The SDK's own client spends 10 to 20 ms of CPU on validating and serialising a transaction of a
hundred items, most of the time of a push, and its import is most of a cold start. The figures are
in ``docs/adr/0001-thin-dynamodb-caller.md``. So requests are built by `lakesync.buffer.requests`
and `lakesync.buffer.transaction` as DynamoDB's JSON, and signed here. Retries are left to the
callers: the gateway knows its deadline.
"""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any, Final, Protocol

from lakesync.buffer.network import Network
from lakesync.buffer.signing import Credentials, Signer
from lakesync.buffer.traced import TracedSend
from lakesync.errors import InternalError, Unavailable, Unreachable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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
