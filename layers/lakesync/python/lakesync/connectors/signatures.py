"""Signatures of webhooks: they prove the sender, the time and the delivery's id. Pure.

Rules of this module
    1. The signature covers the received body, byte for byte; the body is not parsed before.
    2. Signatures are compared in constant time.
    3. The signature also covers the delivery's id and its time.
    4. Errors do not say which check failed, so a stranger learns nothing.
Law N14: ``docs/spec/connectors.md``.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from typing import TYPE_CHECKING, Final, NamedTuple

from lakesync.errors import AuthFailed

if TYPE_CHECKING:
    from collections.abc import Mapping

SECRET_BYTES_MIN: Final = 24
"""The shortest signing secret, as Standard Webhooks has it."""
SECRET_BYTES_MAX: Final = 64
"""The longest signing secret, as Standard Webhooks has it."""
SIGNATURES_MAX: Final = 8
"""Signatures of one delivery that are checked: a sender that rotates its secret sends two."""
REFUSED: Final = (
    "no webhook is accepted here with such a signature: check its address and its secret"
)
_PREFIX: Final = "whsec_"


class Signed(NamedTuple):
    """What a signature that is right says."""

    delivery: str
    """The same whenever the delivery is sent again."""
    sent_ms: int


def key(secret: str) -> bytes:
    """Return the key of a signing secret of Standard Webhooks.

    Raises:
        ValueError: it is not one.
    """
    try:
        decoded = base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
    except binascii.Error:
        decoded = b""
    if not secret.startswith(_PREFIX) or not SECRET_BYTES_MIN <= len(decoded) <= SECRET_BYTES_MAX:
        raise ValueError(
            f"a signing secret is {_PREFIX} and base64 of {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} "
            "random bytes"
        )
    return decoded


def signed(secret: str, webhook_id: str, seconds: int, body: bytes) -> str:
    """Return the header ``webhook-signature`` of Standard Webhooks."""
    content = f"{webhook_id}.{seconds}.".encode() + body
    digest = hmac.new(key(secret), content, hashlib.sha256).digest()
    return f"v1,{base64.b64encode(digest).decode()}"


def standard_webhook(secret: str, headers: Mapping[str, str], body: bytes) -> Signed:
    """Verify a delivery of `Standard Webhooks <https://www.standardwebhooks.com>`_.

    Args:
        secret: ``whsec_…``.
        headers: by names in lower case.
        body: the received bytes.

    Raises:
        AuthFailed: it is not signed with the secret.
    """
    webhook_id, seconds = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    given = headers.get("webhook-signature", "").split()[:SIGNATURES_MAX]
    if not webhook_id or not is_number(seconds):
        raise AuthFailed(REFUSED)
    try:
        right = signed(secret, webhook_id, int(seconds), body)
    except ValueError as exc:
        raise AuthFailed(REFUSED) from exc
    if not any(hmac.compare_digest(right.encode(), each.encode()) for each in given):
        raise AuthFailed(REFUSED)
    return Signed(webhook_id, 1000 * int(seconds))


def check_hub_signature(secret: str, headers: Mapping[str, str], body: bytes) -> str:
    """Verify WebSub's header ``X-Hub-Signature``; returns the delivery's id.

    It signs only the body, so the body must include the time.

    Raises:
        AuthFailed: it is not signed with the secret.
    """
    given = headers.get("x-hub-signature", "")
    digest = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    if not hmac.compare_digest(f"sha256={digest}".encode(), given.encode()):
        raise AuthFailed(REFUSED)
    return hashlib.sha256(body).hexdigest()


def is_number(text: str) -> bool:
    """Return whether text is a number of seconds or milliseconds."""
    return text.isascii() and text.isdecimal() and len(text) <= 15  # noqa: PLR2004 - any real time
