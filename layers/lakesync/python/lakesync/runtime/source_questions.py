"""Sources that are databases are asked by ``functions/flow``, which is in their subnets.

The administration, which registers connectors, is in none: it passes its questions on.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from lakesync.connectors.asked_source import answered
from lakesync.runtime import observe

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lakesync.connectors.outside import Asks, Outside
    from lakesync.ports import ObjectStore
    from lakesync.runtime.tasks import Handler


def sources_asked_by(invoke: Callable[[str], tuple[bool, bytes]]) -> Asks:
    """Return a function that has another function ask a source.

    Args:
        invoke: passes it a request; tells whether it answered, and what.
    """

    def asks(question: Mapping[str, Any]) -> Mapping[str, Any] | None:
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - a cold start

        try:
            returned, payload = invoke(json.dumps({"source": question}))
        except (BotoCoreError, ClientError):
            return None
        answer: Mapping[str, Any] = json.loads(payload) if returned else {}
        return answer or None

    return asks


def with_source_questions(handler: Handler, objects: ObjectStore, outside: Outside) -> Handler:
    """Return the handler that also asks sources that are databases.

    Args:
        handler: answers everything else.
        objects: where connectors keep what is large.
        outside: what connectors may use.
    """

    def handle(event: dict[str, Any], context: Any) -> object:
        if "source" not in event:
            return handler(event, context)
        try:
            return answered(event["source"], objects, outside)
        finally:
            observe.publish()

    return handle
