"""Functions ask others, and wait: those that have the drivers, subnets and secrets of databases.

The administration has neither all drivers nor the databases' secrets, and is in none of their
subnets. So it passes on its questions: whether a declared database answers, what a flow would move,
and what a source that is a database says of itself.
"""

from __future__ import annotations

import json
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

from lakesync.adapters.network import NO_ANSWER
from lakesync.core.destinations import ICEBERG
from lakesync.core.flows import LAKES, DatabaseSource, flow_from_stored, flow_to_stored
from lakesync.errors import LakeSyncError, SourceUnavailable, ValidationFailed
from lakesync.runtime import observe

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lakesync.connectors.port import Asks, Outside
    from lakesync.core.flows import Flow
    from lakesync.flows.routes import OpenDatabase
    from lakesync.gateway.destination_admin import AsksDatabase
    from lakesync.ports import ObjectStore
    from lakesync.runtime.observe import Handler, Invoke, Seconds


def answer_of(invoke: Invoke, request: Mapping[str, Any]) -> dict[str, Any]:
    """Return what another function answers; empty if it failed, or did not answer in time."""
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - a cold start

    try:
        returned, payload = invoke(json.dumps(request))
    except (BotoCoreError, ClientError):
        return {}
    answer: dict[str, Any] = json.loads(payload) if returned else {}
    return answer


def _also(handler: Handler, word: str, answers: Callable[[dict[str, Any]], object]) -> Handler:
    """Return the handler that also answers events with a word; a failure by its reason."""

    @observe.publishing
    def handle(event: dict[str, Any], context: Any) -> object:
        if word not in event:
            return handler(event, context)
        try:
            return answers(event)
        except LakeSyncError as error:
            observe.failure(error, gateway=str(event.get("gateway")))
            return {"reason": error.message}

    return handle


# --- checks of databases --------------------------------------------------------------------------


ASK_S: Final = 20
"""How long the administration waits for a database's answer: longer than connecting may take."""


def asked_by(invoke: Invoke, invoke_lakes: Invoke) -> AsksDatabase:
    """Return a function that has another function ask a database."""

    def asks(gateway: str, kind: str, secret: str) -> None:
        request = {"gateway": gateway, "ask": {"kind": kind, "secret": secret}}
        answer = answer_of(invoke_lakes if kind == ICEBERG else invoke, request)
        if not answer.get("answers"):
            raise ValidationFailed(
                f"the database of the secret {secret} cannot be used: "
                f"{answer.get('reason', NO_ANSWER)}",
                field="secret",
            )

    return asks


def with_questions(handler: Handler, opened: OpenDatabase) -> Handler:
    """Return the handler that also asks a database whether it answers; nothing is made there."""

    def asked(event: dict[str, Any]) -> object:
        gateway, place = event["gateway"], event["ask"]
        with closing(opened(gateway, place["secret"], place["kind"], gateway)) as database:
            database.answers().unwrap()
        return {"answers": True}

    return _also(handler, "ask", asked)


# --- plans of flows -------------------------------------------------------------------------------


COUNT_S: Final = 20
"""How long the administration waits for a plan's rows."""
_BEGINS_S: Final = 12
"""After this the rows of no other table are counted."""


def counted_by(invoke: Invoke, invoke_lakes: Invoke) -> Callable[[str, Flow], Mapping[str, Any]]:
    """Return a function that has ``functions/flow`` count a flow's rows."""

    def counts(gateway: str, flow: Flow) -> Mapping[str, Any]:
        request = {"gateway": gateway, "name": flow.name, "plan": flow_to_stored(flow)}
        answer = answer_of(invoke_lakes if flow.place == LAKES else invoke, request)
        if "tables" not in answer:
            reason = answer.get("reason", "the function that reads databases did not answer")
            raise SourceUnavailable(reason)
        return answer

    return counts


def with_counts(handler: Handler, opened: OpenDatabase, seconds: Seconds) -> Handler:
    """Return the handler that also counts what a flow would move."""

    def counted(event: dict[str, Any]) -> object:
        ends = seconds() + _BEGINS_S
        return _counted(event, opened, lambda: seconds() < ends)

    return _also(handler, "plan", counted)


def _counted(
    event: Mapping[str, Any], opened: OpenDatabase, has_time: Callable[[], bool]
) -> Mapping[str, Any]:
    from lakesync.flows.shaping import (  # noqa: PLC0415 - polls do without
        plan_of_database,
        plan_of_plain,
    )

    flow = flow_from_stored(event["name"], event["plan"], 0, paused=False)
    source = flow.source
    if not isinstance(source, DatabaseSource):
        raise ValidationFailed("the flow does not read a database", field="source")
    database = opened(event["gateway"], source.secret, source.kind, source.gateway)
    with closing(database):
        if source.plain:
            return plan_of_plain(flow, database)
        return plan_of_database(flow, database, has_time)


# --- questions to sources -------------------------------------------------------------------------


def sources_asked_by(invoke: Invoke) -> Asks:
    """Return a function that has another function ask a source."""
    return lambda question: answer_of(invoke, {"source": question}) or None


def with_source_questions(handler: Handler, objects: ObjectStore, outside: Outside) -> Handler:
    """Return the handler that also asks sources that are databases."""
    from lakesync.systems.sql.asked_source import answered  # noqa: PLC0415

    return _also(handler, "source", lambda event: answered(event["source"], objects, outside))
