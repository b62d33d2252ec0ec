"""Secrets in AWS Secrets Manager, all below one prefix, which policies name."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, Final

from lakesync.errors import AdapterFailed, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

REMEMBERED_S_MAX: Final = 300
"""How long a secret that was read is cached: each read costs, and a changed secret takes effect
after this time, or when its source refuses the cached one.
"""

_FOR_A_MOMENT: Final = frozenset(
    {"InvalidRequestException", "ThrottlingException", "ResourceExistsException"}
)


class Secrets:
    """`lakesync.ports.SecretStore` in Secrets Manager.

    Args:
        client: gives boto3's client, created when it is first needed.
        prefix: the prefix of all names.
        seconds: a clock that only goes forward.
    """

    def __init__(
        self,
        client: Callable[[], Any],
        prefix: str,
        *,
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._prefix = prefix
        self._seconds = seconds
        self._read: dict[str, tuple[float, dict[str, str]]] = {}

    def get(self, name: str) -> Mapping[str, str]:
        """Return a secret's fields; none if there is no such secret."""
        known = self._read.get(name)
        if known and self._seconds() - known[0] < REMEMBERED_S_MAX:
            return known[1]
        answer = self._ask("get_secret_value", {"SecretId": self._prefix + name}, absent={})
        fields: dict[str, str] = json.loads(answer.get("SecretString", "{}"))
        self._read[name] = (self._seconds(), fields)
        return fields

    def put(self, name: str, fields: Mapping[str, str]) -> None:
        """Store a secret, replacing the one under the name; one without fields is not created."""
        self._read.pop(name, None)
        text = json.dumps(dict(fields))
        stored = self._ask(
            "put_secret_value",
            {"SecretId": self._prefix + name, "SecretString": text},
            absent=None,
        )
        if stored is None and fields:
            self._ask("create_secret", {"Name": self._prefix + name, "SecretString": text})

    def remove(self, name: str) -> None:
        """Remove a secret for good."""
        self._read.pop(name, None)
        request = {"SecretId": self._prefix + name, "ForceDeleteWithoutRecovery": True}
        self._ask("delete_secret", request, absent={})

    def forget(self, name: str) -> None:
        """Read a secret anew when it is asked for next."""
        self._read.pop(name, None)

    def _ask(self, operation: str, request: dict[str, Any], **absent: Any) -> Any:
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - when needed

        try:
            return getattr(self._client(), operation)(**request)
        except ClientError as exc:
            code = exc.response["Error"]["Code"]
            if code == "ResourceNotFoundException" and "absent" in absent:
                return absent["absent"]
            if code in _FOR_A_MOMENT:
                # One of that name is just being removed, or made.
                raise Unavailable(f"Secrets Manager cannot {operation} yet: {code}") from exc
            raise AdapterFailed(f"Secrets Manager refused {operation}: {code}") from exc
        except BotoCoreError as exc:
            raise AdapterFailed(f"Secrets Manager did not answer {operation}: {exc}") from exc
