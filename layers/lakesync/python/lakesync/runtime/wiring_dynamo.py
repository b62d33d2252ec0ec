"""How DynamoDB is called. Part of `lakesync.runtime.wiring`."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lakesync.buffer.caller import DynamoCaller
    from lakesync.runtime.settings import BufferSettings


@cache
def dynamo(settings: BufferSettings) -> DynamoCaller:
    """Return the caller of the buffer's DynamoDB: one for each process, with one connection."""
    from lakesync.buffer.caller import DynamoCaller  # noqa: PLC0415

    return DynamoCaller(settings.region, settings.dynamodb_endpoint or settings.endpoint)
