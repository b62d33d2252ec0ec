"""Pulls from a source are answered by ``functions/pull_source``, which has the databases' drivers.

API Gateway routes by path, and a source is named in the query. So ``functions/pull`` passes on the
whole event, including the authoriser's answer, and needs none of the other function's permissions.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs

from lakesync.errors import SourceUnavailable
from lakesync.runtime import observe
from lakesync.runtime.http import error_answer
from lakesync.runtime.uncached import NOT_CACHED

if TYPE_CHECKING:
    from collections.abc import Callable

    Handler = Callable[[dict[str, Any], Any], dict[str, Any]]

SOURCE_S: Final = 20
"""How long a page of a source may take: its function's time-out."""
_PULL: Final = "/pull"


def with_sources(handler: Handler, invoke: Callable[[str], tuple[bool, bytes]]) -> Handler:
    """Return the handler that has pulls from a source answered elsewhere.

    Args:
        handler: answers everything else.
        invoke: passes an event to ``functions/pull_source``; tells whether it answered, and what.
    """

    def handle(event: dict[str, Any], context: Any) -> dict[str, Any]:
        named = "source" in parse_qs(event.get("rawQueryString", ""), keep_blank_values=True)
        if not named or not str(event.get("rawPath", "")).endswith(_PULL):
            return handler(event, context)
        try:
            return _answer(invoke, event)
        finally:
            observe.publish()

    return handle


def _answer(invoke: Callable[[str], tuple[bool, bytes]], event: dict[str, Any]) -> dict[str, Any]:
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - a cold start

    answer: dict[str, Any] = {}
    cause = "it died, or took too long"
    try:
        returned, payload = invoke(json.dumps(event))
        answer = json.loads(payload) if returned else {}
    except (BotoCoreError, ClientError) as exc:
        cause = str(exc)  # for the log alone: it names what is in the account
    if "statusCode" in answer:
        return answer
    error = SourceUnavailable("the function that reads sources did not answer; try again later")
    observe.failure(error, path=str(event["rawPath"]), cause=cause)
    response = error_answer({"type": "http", "aws.event": event}, error)
    headers = dict([*response.headers.items(), NOT_CACHED])
    return {
        "statusCode": response.status_code,
        "headers": headers,
        "body": bytes(response.body).decode(),
    }
