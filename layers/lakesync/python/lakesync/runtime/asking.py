"""One function asks another, and waits: the one that has the drivers, subnets and secrets."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def answer_of(
    invoke: Callable[[str], tuple[bool, bytes]], request: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what another function answers; empty if it failed, or did not answer in time.

    Args:
        invoke: passes it a request; tells whether it answered, and what.
        request: the request.
    """
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - a cold start

    try:
        returned, payload = invoke(json.dumps(request))
    except (BotoCoreError, ClientError):
        return {}
    answer: dict[str, Any] = json.loads(payload) if returned else {}
    return answer
