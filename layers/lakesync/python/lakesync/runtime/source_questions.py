"""Sources that are databases are asked by ``functions/flow``, which is in their subnets.

The administration, which registers connectors, is in none: it passes its questions on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lakesync.runtime import observe
from lakesync.runtime.asking import answer_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from lakesync.connectors.outside import Asks, Outside
    from lakesync.ports import ObjectStore
    from lakesync.runtime.observe import Handler


def sources_asked_by(invoke: Callable[[str], tuple[bool, bytes]]) -> Asks:
    """Return a function that has another function ask a source.

    Args:
        invoke: passes it a request; tells whether it answered, and what.
    """
    return lambda question: answer_of(invoke, {"source": question}) or None


def with_source_questions(handler: Handler, objects: ObjectStore, outside: Outside) -> Handler:
    """Return the handler that also asks sources that are databases.

    Args:
        handler: answers everything else.
        objects: where connectors keep what is large.
        outside: what connectors may use.
    """
    from lakesync.connectors.asked_source import answered  # noqa: PLC0415

    def handle(event: dict[str, Any], context: Any) -> object:
        if "source" not in event:
            return handler(event, context)
        try:
            return answered(event["source"], objects, outside)
        finally:
            observe.publish()

    return handle
