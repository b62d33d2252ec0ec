"""``functions/flow``, which reaches databases, counts what a flow from one would move.

The administration has neither the databases' drivers nor their secrets, and is in none of their
subnets: it passes a plan on.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

from lakesync.core.flows import LAKES, DatabaseSource, flow_from_stored, flow_to_stored
from lakesync.errors import LakeSyncError, SourceUnavailable, ValidationFailed
from lakesync.runtime import observe
from lakesync.runtime.asking import answer_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lakesync.core.flows import Flow
    from lakesync.flows.routes import OpenDatabase
    from lakesync.runtime.observe import Handler

COUNT_S: Final = 20
"""How long the administration waits for a plan's rows."""
_BEGINS_S: Final = 12
"""After this the rows of no other table are counted."""


def counted_by(
    invoke: Callable[[str], tuple[bool, bytes]], invoke_lakes: Callable[[str], tuple[bool, bytes]]
) -> Callable[[str, Flow], Mapping[str, Any]]:
    """Return a function that has ``functions/flow`` count a flow's rows.

    Args:
        invoke: passes it a request; tells whether it answered, and what.
        invoke_lakes: the same for the function that has Iceberg.
    """

    def counts(gateway: str, flow: Flow) -> Mapping[str, Any]:
        request = {"gateway": gateway, "name": flow.name, "plan": flow_to_stored(flow)}
        answer = answer_of(invoke_lakes if flow.place == LAKES else invoke, request)
        if "tables" not in answer:
            reason = answer.get("reason", "the function that reads databases did not answer")
            raise SourceUnavailable(reason)
        return answer

    return counts


def with_counts(handler: Handler, opened: OpenDatabase, seconds: Callable[[], float]) -> Handler:
    """Return the handler that also counts what a flow would move.

    Args:
        handler: answers everything else.
        opened: opens databases.
        seconds: a clock that only goes forward.
    """

    def handle(event: dict[str, Any], context: Any) -> object:
        if "plan" not in event:
            return handler(event, context)
        ends = seconds() + _BEGINS_S
        try:
            return _counted(event, opened, lambda: seconds() < ends)
        except LakeSyncError as error:
            observe.failure(error, gateway=str(event.get("gateway")))
            return {"reason": error.message}
        finally:
            observe.publish()

    return handle


def _counted(
    event: Mapping[str, Any], opened: OpenDatabase, has_time: Callable[[], bool]
) -> Mapping[str, Any]:
    from lakesync.flows.plan import of_database, of_plain  # noqa: PLC0415 - polls do without

    flow = flow_from_stored(event["name"], event["plan"], 0, paused=False)
    source = flow.source
    if not isinstance(source, DatabaseSource):
        raise ValidationFailed("the flow does not read a database", field="source")
    database = opened(event["gateway"], source.secret, source.kind, source.gateway)
    with closing(database):
        if source.plain:
            return of_plain(flow, database)
        return of_database(flow, database, has_time)
