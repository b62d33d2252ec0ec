"""Calls the gateway's administrative routes, which the client library does not have."""

from __future__ import annotations

from typing import Any, Final

from lakesync.errors import Unreachable

TIMEOUT_S: Final = 60.0
"""Long enough for a flush."""


def call(url: str, token: str, method: str, path: str, body: object = None) -> dict[str, Any]:
    """Send a request to the gateway and return its JSON answer.

    Raises:
        LakeSyncError: the gateway's error, or `Unreachable`.
    """
    import httpx

    from lakesync.client.transport.answers import error_of, foreign
    from lakesync.client.transport.certificates import trusted
    from lakesync.client.transport.token import checked_token

    headers = {"Authorization": f"Bearer {checked_token(token)}"}
    try:
        answer = httpx.request(
            method, url.rstrip("/") + path,
            headers=headers, json=body, timeout=TIMEOUT_S, verify=trusted(),
        )  # fmt: skip
    except (httpx.HTTPError, httpx.InvalidURL) as exc:
        raise Unreachable(f"the gateway did not answer: {str(exc) or type(exc).__name__}") from exc
    if not answer.is_success:
        raise error_of(answer.status_code, answer.headers, answer.content)
    try:
        fields: dict[str, Any] = answer.json()
    except ValueError:
        fields = {}
    is_json = answer.headers.get("content-type", "").startswith("application/json")
    if not is_json or not isinstance(fields, dict | list):
        raise foreign(answer.status_code, answer.headers, answer.content)
    return fields
